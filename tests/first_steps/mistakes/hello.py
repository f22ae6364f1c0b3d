"""A program without a mistake; what goes wrong is how people start it."""

import asyncio

from trellis import Service

app = Service("hello")


@app.job
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    await greet.create("world")


if __name__ == "__main__":
    asyncio.run(main())
