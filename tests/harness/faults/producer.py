"""A producer: creates as many jobs as it is told on its standard input, until that ends.

`python -m tests.harness.faults.producer NAME SEED`. Before each call it records what it asks for,
after it the answer. If it is killed in between, the answer is unknown, and the checker allows both.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import defaultdict
from collections.abc import Sequence
from random import Random

from tests.harness.faults.jobs import FOLDER, Task, app
from tests.harness.faults.recorder import Log, payload_hash
from tests.harness.faults.tasks import Task as Drawn
from tests.harness.faults.tasks import make_task
from trellis import TrellisError
from trellis.client.ref import JobRef


class Producer:
    """Creates what the dice say."""

    def __init__(self, name: str, seed: str) -> None:
        self._name = name
        self._random = Random(f"{seed}/{name}")
        self._log = Log(FOLDER / "clients" / f"{name}.jsonl")
        self._numbers = itertools.count()
        self._ops = itertools.count()

    async def produce(self, number: int) -> None:
        """Create so many jobs: some one by one, all at once, the rest in bulk."""
        drawn = [
            make_task(self._random, f"{self._name}/{next(self._numbers)}") for _ in range(number)
        ]
        alone = [task for task in drawn if task.delay or self._random.random() < 0.3]
        together: dict[str, list[Drawn]] = defaultdict(list)
        for task in drawn:
            if task not in alone:
                together[task.kind].append(task)
        await asyncio.gather(*(self._create([task]) for task in alone))
        for tasks in together.values():
            await self._create(tasks)

    async def _create(self, tasks: Sequence[Drawn]) -> None:
        op = f"{self._name}:{next(self._ops)}"
        payloads = [Task.model_validate(task.payload) for task in tasks]
        hashes = [payload_hash(payload.model_dump()) for payload in payloads]
        job = app.find(tasks[0].kind)
        delay = tasks[0].delay
        self._log.write(event="invoke", op=op, hashes=hashes, delay=delay * 1_000_000)
        try:
            refs: list[JobRef[object]]
            if len(tasks) == 1:
                refs = [await job.create(payloads[0], delay=f"{delay}ms")]
            else:
                refs = await job.create_many(payloads)
        except TrellisError as error:
            self._log.write(event="unknown", op=op, why=str(error))
        else:
            self._log.write(event="ok", op=op, ids=[ref.id for ref in refs])


async def main() -> None:
    """Produce until the input ends."""
    producer = Producer(*sys.argv[1:3])
    loop = asyncio.get_running_loop()
    async with app:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            await producer.produce(int(line))


if __name__ == "__main__":
    asyncio.run(main())
