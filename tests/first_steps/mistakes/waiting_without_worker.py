"""A program that waits for a job although no worker runs."""

import asyncio

from trellis import Service

app = Service("hello")


@app.job
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    ref = await greet.create("world")
    print(await ref.wait("5s"))


if __name__ == "__main__":
    asyncio.run(main())
