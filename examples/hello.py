import asyncio

from trellis import Service

app = Service("hello")


@app.job
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    async with app.worker():
        ref = await greet.create("world")
        print(await ref.wait("10s"))


if __name__ == "__main__":
    asyncio.run(main())
