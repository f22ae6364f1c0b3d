"""A run: workers and a producer on one database, killed at random; then rest, and the verdict.

Every worker is killed again and again: the whole group, its child or its guardian; with a server,
the server too. So the maintenance leader, which creates scheduled jobs and repairs batches, dies as
often as any other. Meanwhile an operator changes limits and edits the schedule. The decisions come
from the seed.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Final

import trellis
from tests.harness.faults.processes import Group, Place, left_behind
from tests.harness.faults.recorder import boot_ns
from tests.harness.faults.stores.store import Store
from tests.harness.faults.waiting import Impatience, until
from tests.harness.flow.facts import SECOND, Change, Facts, Kill, Span, wall
from tests.harness.flow.limits import BURST, RATE
from tests.harness.flow.rules import check
from trellis import Operator

_OPTIONS: Final = ("--lease=1.2s", "--grace=0.5s", "--poll=300ms", "--concurrency=6")
_TARGETS: Final = ("group", "group", "child", "guardian")
#: What a producer is asked for, round after round, and how long the members of batches wait that
#: are to be cancelled; see `producer.py`.
_KINDS: Final = ("flood", "failing", "nested", "cancelled", "failing", "abandoned")
_DELAY: Final = "2s"
#: The same in the last rounds, in which no worker is killed: longer than it takes to cancel them.
_LAST_DELAY: Final = "30s"
#: How long the sessions of killed processes may take to end, in seconds: many leases.
_REAPING: Final = 15


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how hard."""

    rounds: int = 12
    workers: int = 3
    kills: int = 14
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
        self._kinds = cycle(_KINDS)
        self._kills: list[Kill] = []
        self._changes: list[Change] = []
        self._declared = self._paused = Span(0, None)

    async def run(self) -> list[str]:
        """Do it all; return what is wrong."""
        wrong: list[str] = []
        try:
            await self._begin()
            async with trellis.connect(self._store.url, actor="campaign") as jobs:
                await self._rage(jobs)
                await self._stop_feeding(jobs)
            try:
                await self._come_to_rest()
            except Impatience as error:
                wrong.append(str(error))
            facts = self._facts()
        finally:
            self._end_all()
        self._say(facts.in_words())
        return wrong + check(facts)

    async def _begin(self) -> None:
        asked = wall()
        self._tend()
        await until(lambda: bool(self._store.sessions()), "a worker", 60)
        self._declared = Span(asked, wall())
        await until(lambda: len(self._store.sessions()) >= self._size.workers, "workers", 60)

    # -- faults ----------------------------------------------------------------------------------

    async def _rage(self, jobs: Operator) -> None:
        crash_at = set(self._random.sample(range(self._size.kills), self._size.crashes))
        rounds = self._size.rounds / self._size.kills
        asked = 0.0
        for number in range(self._size.kills):
            asked += rounds
            while asked >= 1:
                self._feed(next(self._kinds))
                asked -= 1
            await asyncio.sleep(self._random.uniform(0.2, 0.9))
            self._tend()
            if number in crash_at and self._store.server is not None:
                await asyncio.to_thread(self._store.server.kill_postmaster)
                await asyncio.sleep(self._random.uniform(0.1, 0.5))
                await asyncio.to_thread(self._store.server.start)
            else:
                await self._kill()
            await self._operate(jobs)

    async def _operate(self, jobs: Operator) -> None:
        """Change a limit or the schedule; while the server is away nothing may have changed."""
        asked, done = wall(), None
        choice = self._random.choice(("active", "rate", "schedule"))
        value = self._random.choice((1, 2, 4)) if choice == "active" else RATE
        value = self._random.choice((RATE // 2, RATE, RATE * 2)) if choice == "rate" else value
        with suppress(trellis.TrellisError):
            if choice == "active":
                await jobs.set_limit("flow/post", active=value, reason="a test")
            elif choice == "rate":
                await jobs.set_limit(type="flow/rated", rate=f"{value}/1s", burst=BURST)
            else:
                await jobs.schedules.change("flow/tick", jitter=f"{self._random.randrange(99)}ms")
            done = wall()
        scope = {"active": "post", "rate": "rated"}.get(choice)
        if scope is not None:
            self._changes.append(Change(scope, choice, value, Span(asked, done)))

    async def _kill(self) -> None:
        which = self._random.randrange(self._size.workers + 1)
        if which == self._size.workers:
            # One that has not begun would only be started again.
            if self._producer is not None and self._client.exists():
                self._producer.end()
            return
        group, target = self._workers[which], self._random.choice(_TARGETS)
        members = group.members()
        at = boot_ns()
        if target == "child" and len(members) > 1:
            group.send(signal.SIGKILL, members[1])
            self._kills.append(Kill(at, members[1]))
            return
        if target == "guardian":
            group.send(signal.SIGKILL, group.leader)
            await until(lambda: group.is_gone, "the processes of a killed guardian to end", 20)
        else:
            group.send_all(signal.SIGKILL)
            await until(lambda: group.is_gone, "a killed worker to be gone", 20)
        self._kills += [Kill(at, pid) for pid in members]

    def _tend(self) -> None:
        """Start workers that are gone."""
        for number in range(self._size.workers):
            group = self._workers.get(number)
            if group is None or group.is_gone:
                arguments = ["-m", "trellis", "worker", f"{__package__}.jobs:app", *_OPTIONS]
                self._workers[number] = Group(arguments, self._place, f"worker-{number}.log")

    @property
    def _client(self) -> Path:
        """What the producer that runs writes down."""
        return self._folder / "clients" / f"producer-{self._names}.jsonl"

    def _feed(self, kind: str, delay: str = _DELAY) -> None:
        if self._producer is None or self._producer.exit_code is not None:
            if self._producer is not None:
                self._producer.hang_up()  # it ended by itself and left its pipe open
            self._names += 1
            name = self._client.stem
            arguments = ["-m", f"{__package__}.producer", name, self._seed]
            self._producer = Group(arguments, self._place, f"{name}.log", fed=True)
        self._producer.feed(f"{kind} {delay}\n")

    # -- rest ------------------------------------------------------------------------------------

    async def _stop_feeding(self, jobs: Operator) -> None:
        """Let a producer finish, with the rounds of which none was finished; pause the schedule."""
        told = _lines(self._folder / "clients")
        finished = {line["kind"] for line in told if line["event"] == "round"} - {"failing"}
        for kind in dict.fromkeys(_KINDS):
            if kind not in finished:
                self._feed(kind, _LAST_DELAY)
        producer = self._producer
        if producer is not None:
            producer.hang_up()
            await until(lambda: producer.exit_code is not None, "the producer to finish", 60)

        def is_decided() -> bool:
            self._tend()
            self._paused = Span(wall() // SECOND * SECOND, None)
            return self._store.latest_slot() >= self._paused.asked

        # A pause also counts for slots that are due and not decided yet, so none may be left.
        await until(is_decided, "a leader to decide all slots", self._size.rest)
        await jobs.schedules.pause("flow/tick", reason="The campaign ends.")
        self._paused = self._paused._replace(done=wall())

    async def _come_to_rest(self) -> None:
        def is_at_rest() -> bool:
            self._tend()
            return not self._store.unfinished()

        def is_reaped() -> bool:
            self._tend()
            workers, pids = self._workers.values(), self._store.sessions().values()
            is_alive = all(any(group.has(pid) for group in workers) for pid in pids)
            return is_alive and len(pids) == len(workers)

        await until(is_at_rest, "everything to come to rest", self._size.rest)
        await until(is_reaped, "the sessions of killed workers to end", _REAPING)
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
            changes=self._changes,
            declared=self._declared,
            paused=self._paused,
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
