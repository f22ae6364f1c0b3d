"""`python -m bench.load.workers COUNT URL`: worker sessions in one process, until stdin ends.

Each one is a whole worker with an engine, a lease and a session of its own; only the guardian is
left out. The last line is JSON: how many jobs each of them has settled.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack

from bench.load.app import service
from trellis.config import WorkerSettings
from trellis.engines import make_engine
from trellis.worker.supervisor import Supervisor

#: Sessions that are opened at the same time.
_AT_ONCE = 10


async def work(count: int, url: str) -> None:
    """Run workers."""
    async with AsyncExitStack() as stack:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def start() -> Supervisor:
            async with gate:
                engine = make_engine(url)
                await engine.open()
                stack.push_async_callback(engine.close)
                worker = Supervisor(
                    engine, lambda: make_engine(url), service.job_types, WorkerSettings()
                )
                await worker.start()
                return worker

        workers = await asyncio.gather(*(start() for _ in range(count)))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await asyncio.gather(*(worker.stop() for worker in workers))
        print(json.dumps([worker.settled for worker in workers]), flush=True)


if __name__ == "__main__":
    asyncio.run(work(int(sys.argv[1]), sys.argv[2]))
