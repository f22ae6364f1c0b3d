"""A producer: creates rounds of jobs of every kind, as many as its standard input asks for.

`python -m tests.harness.flow.producer NAME SEED`. It writes down the ids that it was told. When it
is killed, a batch may stay open: such a batch must never finish by itself.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from itertools import count
from random import Random
from typing import Final

from tests.harness.faults.recorder import Log
from tests.harness.flow import jobs
from tests.harness.flow.jobs import FOLDER, app
from trellis import TrellisError

_MEMBERS: Final = (0, 1, 40)


class Producer:
    """Creates what the dice say."""

    def __init__(self, name: str, seed: str) -> None:
        self._random = Random(f"{seed}/{name}")
        self._log = Log(FOLDER / "clients" / f"{name}.jsonl")
        self._numbers = count(1)

    async def produce(self) -> None:
        """Create one round: a batch, a chain, limited, rated and hooked jobs."""
        for part in (self._batch, self._chain, self._singles):
            with suppress(TrellisError):  # the server is away: nothing was promised
                await part()

    def _payloads(self, number: int) -> list[int]:
        return [next(self._numbers) for _ in range(number)]

    async def _batch(self) -> None:
        async with app.batch(then=jobs.collect) as batch:
            size = self._random.choice(_MEMBERS)
            for payload in self._payloads(size // 10):
                await batch.create(jobs.member, payload)
            if size:
                await batch.create_many(jobs.member, self._payloads(size))
        self._log.write(event="sealed", batch=batch.id)

    async def _chain(self) -> None:
        start = next(self._numbers)
        chain = await (jobs.first | jobs.second | jobs.third).create(start)
        self._log.write(event="chain", start=start, ids=[ref.id for ref in chain.refs])

    async def _singles(self) -> None:
        spans = [self._random.randrange(5, 60) for _ in range(12)]
        for job, payloads in (
            (jobs.limited, spans),
            (jobs.rated, self._payloads(15)),
            (jobs.hooked, self._payloads(9)),
        ):
            refs = await job.create_many(payloads)
            self._log.write(event="created", ids=[ref.id for ref in refs])


async def main() -> None:
    """Produce a round for each line of input."""
    producer = Producer(*sys.argv[1:3])
    loop = asyncio.get_running_loop()
    async with app:
        while await loop.run_in_executor(None, sys.stdin.readline):
            await producer.produce()


if __name__ == "__main__":
    asyncio.run(main())
