"""A run: workers and a producer on one database, killed at random; then rest, and the verdict.

Every worker is killed again and again: the whole group, its child or its guardian; with a server,
the server too. So the maintenance leader, which creates scheduled jobs and repairs batches, dies as
often as any other. The decisions come from the seed.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import trellis
from tests.harness.faults.processes import Group, Place, left_behind
from tests.harness.faults.recorder import boot_ns
from tests.harness.faults.stores.store import Store
from tests.harness.faults.waiting import until
from tests.harness.flow.rules import Facts, Kill, check

_OPTIONS: Final = ("--lease=1.2s", "--grace=0.5s", "--poll=300ms", "--concurrency=6")
_TARGETS: Final = ("group", "group", "child", "guardian")


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how hard."""

    rounds: int = 12
    workers: int = 3
    kills: int = 20
    #: Of the server, if the store has one.
    crashes: int = 2
    rest: float = 120


class FlowCampaign:
    """One run in a folder of its own."""

    def __init__(
        self, seed: str, size: Size, folder: Path, store: Store, say: Callable[[str], None]
    ) -> None:
        self._random = Random(f"{seed}/flow")
        self._seed, self._size, self._folder, self._store = seed, size, folder, store
        self._say = say
        for name in ("effects", "clients"):
            (folder / name).mkdir()
        self._place = Place(folder, store.url)
        self._workers: dict[int, Group] = {}
        self._producer: Group | None = None
        self._names = 0
        self._kills: list[Kill] = []

    async def run(self) -> list[str]:
        """Do it all; return what is wrong."""
        try:
            self._tend()
            await until(lambda: len(self._store.sessions()) >= self._size.workers, "workers", 60)
            await self._rage()
            await self._come_to_rest()
            facts = self._facts()
        finally:
            self._end_all()
        self._say(facts.in_words())
        return check(facts)

    # -- faults ----------------------------------------------------------------------------------

    async def _rage(self) -> None:
        crash_at = set(self._random.sample(range(self._size.kills), self._size.crashes))
        rounds = self._size.rounds / self._size.kills
        asked = 0.0
        for number in range(self._size.kills):
            asked += rounds
            while asked >= 1:
                self._feed()
                asked -= 1
            await asyncio.sleep(self._random.uniform(0.2, 0.9))
            self._tend()
            if number in crash_at and self._store.server is not None:
                await asyncio.to_thread(self._store.server.kill_postmaster)
                await asyncio.sleep(self._random.uniform(0.1, 0.5))
                await asyncio.to_thread(self._store.server.start)
            else:
                await self._kill()

    async def _kill(self) -> None:
        which = self._random.randrange(self._size.workers + 1)
        if which == self._size.workers:
            if self._producer is not None:
                self._producer.end()
            return
        group, target = self._workers[which], self._random.choice(_TARGETS)
        members = group.members()
        if target == "child" and len(members) > 1:
            group.send(signal.SIGKILL, members[1])
            self._kills.append(Kill(boot_ns(), members[1]))
            return
        if target == "guardian":
            group.send(signal.SIGKILL, group.leader)
            await until(lambda: group.is_gone, "the processes of a killed guardian to end", 20)
        else:
            group.send_all(signal.SIGKILL)
            await until(lambda: group.is_gone, "a killed worker to be gone", 20)
        self._kills += [Kill(boot_ns(), pid) for pid in members]

    def _tend(self) -> None:
        """Start workers that are gone."""
        for number in range(self._size.workers):
            group = self._workers.get(number)
            if group is None or group.is_gone:
                arguments = ["-m", "trellis", "worker", f"{__package__}.jobs:app", *_OPTIONS]
                self._workers[number] = Group(arguments, self._place, f"worker-{number}.log")

    def _feed(self) -> None:
        if self._producer is None or self._producer.exit_code is not None:
            self._names += 1
            name = f"producer-{self._names}"
            arguments = ["-m", f"{__package__}.producer", name, self._seed]
            self._producer = Group(arguments, self._place, f"{name}.log", fed=True)
        self._producer.feed("\n")

    # -- rest ------------------------------------------------------------------------------------

    async def _come_to_rest(self) -> None:
        producer = self._producer
        if producer is not None:
            producer.hang_up()
            await until(lambda: producer.exit_code is not None, "the producer to finish", 60)
        async with trellis.connect(self._store.url, actor="campaign") as jobs:
            await jobs.schedules.pause("flow/tick", reason="The campaign ends.")

        def is_at_rest() -> bool:
            self._tend()
            return not self._store.unfinished()

        await until(is_at_rest, "everything to come to rest", self._size.rest)
        for group in self._workers.values():
            group.send(signal.SIGTERM, group.leader)
        for group in self._workers.values():
            await until(lambda g=group: g.is_gone, "a worker to stop", 30)  # type: ignore[misc]

    def _facts(self) -> Facts:
        return Facts(
            tables=self._store.tables(),
            effects=_lines(self._folder / "effects"),
            told=_lines(self._folder / "clients"),
            kills=self._kills,
        )

    def _end_all(self) -> None:
        for group in (*self._workers.values(), self._producer):
            if group is not None:
                group.end()
        self._store.close()
        if left := left_behind(self._folder):
            raise RuntimeError(f"Processes were left behind: {left}")


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Read the logs of all processes; the last line of a killed one may be cut off."""
    return [
        json.loads(line)
        for path in sorted(folder.iterdir())
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
