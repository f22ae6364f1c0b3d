"""A job that is called like the function it once was."""

from trellis import Service

app = Service("hello")


@app.job
async def greet(name: str) -> str:
    return f"Hello, {name}!"


greet("x")
