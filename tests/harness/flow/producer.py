"""A producer: creates rounds of jobs of every kind, one for each line of its standard input.

`python -m tests.harness.flow.producer NAME SEED`. A line names what the round has beside the usual,
and how long members wait that are to be cancelled before they start. It writes down what it was
told. When it is killed, a batch may stay open: such a batch must never finish by itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from random import Random
from typing import Any, Final

from tests.harness.faults.recorder import Log
from tests.harness.flow import jobs
from tests.harness.flow.jobs import FOLDER, app
from trellis import TrellisError
from trellis.client.batches import OpenBatch

_MEMBERS: Final = (0, 1, 40)
#: What a large tenant has waiting when the small one comes.
_FLOOD: Final = 60


class Oops(Exception):
    """The producer's own failure, inside the block of a batch."""


class Producer:
    """Creates what the dice say."""

    def __init__(self, name: str, seed: str) -> None:
        self._random = Random(f"{seed}/{name}")
        self._log = Log(FOLDER / "clients" / f"{name}.jsonl")
        self._numbers = count(1)
        self._delay = "1s"
        self._kinds = {
            "nested": self._nested,
            "failing": self._failing,
            "cancelled": self._cancelled,
            "abandoned": self._abandoned,
            "flood": self._flood,
        }

    async def produce(self, kind: str, delay: str) -> None:
        """Create one round: a plain batch, what the kind says, a chain, and single jobs."""
        self._delay = delay
        is_whole = True
        for part in (self._plain, self._kinds[kind], self._chain, self._singles):
            try:
                await part()
            except TrellisError:  # the server is away: nothing was promised
                is_whole = False
        if is_whole:
            self._log.write(event="round", kind=kind)

    def _payloads(self, number: int) -> list[int]:
        return [next(self._numbers) for _ in range(number)]

    # -- batches -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _sealed(self, opened: OpenBatch) -> AsyncIterator[OpenBatch]:
        """Fill a batch in the block, then seal it; an exception inside cancels it."""
        async with opened as batch:
            with self._noted(batch):
                yield batch
        self._log.write(event="sealed", batch=batch.id)

    @contextmanager
    def _noted(self, batch: OpenBatch) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._log.write(event="cancelling", batch=batch.id)
            raise

    async def _plain(self) -> None:
        async with self._sealed(app.batch(then=jobs.collect)) as batch:
            size = self._random.choice(_MEMBERS)
            for payload in self._payloads(size // 10):
                await batch.create(jobs.member, payload)
            if size:
                await batch.create_many(jobs.member, self._payloads(size))

    async def _nested(self) -> None:
        async with self._sealed(app.batch(then=jobs.collect)) as outer:
            await outer.create_many(jobs.member, self._payloads(3))
            async with self._sealed(outer.batch(then=jobs.collect)) as inner:
                await inner.create_many(jobs.member, self._payloads(4))
                async with self._sealed(inner.batch(then=jobs.collect)):
                    pass

    async def _failing(self) -> None:
        """Let one member fail: those that wait are cancelled. In another batch nothing fails."""
        options: Any = {"then": jobs.collect, "on_failure": "cancel_rest"}
        async with self._sealed(app.batch(**options)) as spared:
            await spared.create_many(jobs.child, self._payloads(3))
            ref = await spared.create(jobs.child, 0, delay=self._delay)
            self._log.write(event="cancelling a member", job=ref.id)
            await ref.cancel()
        async with self._sealed(app.batch(**options)) as batch:
            await batch.create_many(jobs.child, self._payloads(4), delay=self._delay)
            await batch.create(jobs.failing)
            await batch.create_many(jobs.child, self._payloads(4))

    async def _cancelled(self) -> None:
        async with self._sealed(app.batch(then=jobs.collect)) as batch:
            await batch.create_many(jobs.child, self._payloads(4), delay=self._delay)
            await batch.create_many(jobs.child, self._payloads(4))
        self._log.write(event="cancelling", batch=batch.id)
        await batch.ref.cancel("no longer wanted")
        self._log.write(event="cancelled", batch=batch.id)

    async def _abandoned(self) -> None:
        with suppress(Oops):
            async with self._sealed(app.batch(then=jobs.collect)) as batch:
                await batch.create_many(jobs.child, self._payloads(4), delay=self._delay)
                raise Oops

    # -- others --------------------------------------------------------------------------------

    async def _flood(self) -> None:
        """Let a large tenant create many jobs, then a small one a few."""
        for job in (jobs.mail, jobs.letter):
            await self._many(job, [{"tenant": "large"}] * _FLOOD)
        await self._many(jobs.mail, [{"tenant": "small"}] * 3)

    async def _chain(self) -> None:
        start = next(self._numbers)
        chain = await (jobs.first | jobs.second | jobs.third).create(start)
        self._log.write(event="chain", start=start, ids=[ref.id for ref in chain.refs])

    async def _singles(self) -> None:
        await self._many(jobs.limited, [self._random.randrange(5, 60) for _ in range(12)])
        await self._many(jobs.rated, self._payloads(15))
        await self._many(jobs.hooked, self._payloads(9))
        await self._many(jobs.keyed, [{"key": self._random.choice("ab")} for _ in range(8)])

    async def _many(self, job: Any, payloads: list[Any]) -> None:  # noqa: ANN401 - any job of ours
        refs = await job.create_many(payloads)
        self._log.write(event="created", ids=[ref.id for ref in refs])


async def main() -> None:
    """Produce a round for each line of input."""
    producer = Producer(*sys.argv[1:3])
    loop = asyncio.get_running_loop()
    async with app:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            await producer.produce(*line.split())


if __name__ == "__main__":
    asyncio.run(main())
