"""A job that must run in a separate process, defined in the file that is run."""

import asyncio

from trellis import Service

app = Service("shop")


@app.job(isolation="process")
def resize(size: int) -> int:
    return size * 2


async def main() -> None:
    async with app.worker():
        print(await (await resize.create(1)).wait("10s"))


if __name__ == "__main__":
    asyncio.run(main())
