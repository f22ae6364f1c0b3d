"""A campaign: real workers and producers on one database, a nemesis, and then the verdict.

While jobs flow, each worker suffers its plan (`plan.py`, `nemesis.py`) and producers are killed
(`feeding.py`), and so are the servers if there are any (`outages.py`). Then the faults end,
everything must come to rest, the workers are stopped in order, and the checker judges what all of
them wrote down. A run proves something only if it saw enough: when the plan ends too early for
that, it is carried on, within limits of time and number.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from tests.harness.faults.checker import check
from tests.harness.faults.checker.histories import Histories
from tests.harness.faults.checker.reading import read_folder
from tests.harness.faults.checker.report import describe
from tests.harness.faults.checker.sometimes import LEAST, count_sometimes, too_few
from tests.harness.faults.checker.violations import Violation
from tests.harness.faults.diary import Diary
from tests.harness.faults.feeding import Feeding
from tests.harness.faults.nemesis import Scene, Worker
from tests.harness.faults.outages import Siege
from tests.harness.faults.plan import (
    Deed,
    ServerDeed,
    carry_on,
    carry_on_for_server,
    make_plan,
    plan_for_server,
)
from tests.harness.faults.processes import left_behind
from tests.harness.faults.recorder import boot_ns
from tests.harness.faults.sight import Effects
from tests.harness.faults.stores.store import Store
from tests.harness.faults.waiting import Impatience, until

Say: TypeAlias = Callable[[str], None]
_MOST_EXTENSIONS: Final = 4


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how hard."""

    jobs: int = 5000
    workers: int = 3
    #: How many of them may suffer at once: one at least must be there to take over.
    at_once: int = 2
    #: By how much longer the pauses between deeds to servers are than planned. After an outage no
    #: worker takes over before it has renewed its own lease for a whole one.
    calm: float = 1.0
    rounds: int = 1
    #: No worker's plan is longer than this.
    deeds: int | None = None
    #: No fault begins later than this, whatever was seen.
    seconds: float = 150
    #: How long everything may take to come to rest afterwards.
    rest: float = 90
    lease: str = "1.2s"
    grace: str = "0.5s"
    least: dict[str, int] = field(default_factory=lambda: dict(LEAST))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a campaign has shown."""

    histories: Histories
    violations: list[Violation]
    #: What did not happen often enough for the run to count, and what was waited for in vain.
    shortcomings: list[str]


class Campaign:
    """One run in a folder of its own."""

    def __init__(self, seed: str, size: Size, folder: Path, store: Store, say: Say) -> None:
        self._seed = seed
        self._size = size
        self._folder = folder
        self._say = say
        for name in ("effects", "clients", "stuck"):
            (folder / name).mkdir()
        self._store = store
        options = {
            "lease": size.lease, "grace": size.grace, "poll": "300ms", "concurrency": "5",
        }  # fmt: skip
        diary = Diary(folder / "nemesis.jsonl")
        scene = Scene(
            folder, store, Effects(folder / "effects"), diary, options,
            asyncio.Semaphore(size.at_once),
        )  # fmt: skip
        self._workers = [Worker(number, scene) for number in range(size.workers)]
        self._feeding = Feeding(seed, folder, store, size.jobs)
        lease = float(size.lease.removesuffix("s"))
        self._siege = Siege(
            store, diary, self._is_busy, lease, self._workers[0].way, calm=size.calm
        )
        self._latest = boot_ns() + int(size.seconds * 1e9)

    async def run(self) -> Verdict:
        """Do it all; whatever happens, leave no process behind."""
        shortcomings: list[str] = []
        try:
            await self._rage()
            await self._come_to_rest()
        except* Impatience as group:
            shortcomings += map(str, _leaves(group))
        finally:
            self._end_all()
        histories = self._read()
        self._say(describe(histories))
        missing = too_few(count_sometimes(histories), self._size.least)
        missing |= too_few({"jobs": len(histories.rows)}, {"jobs": self._size.jobs})
        if missing:
            shortcomings.append(f"proves nothing: {_in_words(missing)}")
        return Verdict(histories, check(histories), shortcomings)

    async def _rage(self) -> None:
        """Let jobs flow and faults happen, until enough of both was seen."""
        is_calm = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feeding.feed(is_calm))
            group.create_task(self._tend(is_calm))
            rounds = self._size.rounds
            await self._torment(
                lambda worker: make_plan(
                    self._seed, worker, rounds, has_way=self._workers[worker].way is not None
                )[: self._size.deeds],
                plan_for_server(self._seed, rounds, self._store.deeds),
            )
            for extension in range(_MOST_EXTENSIONS):
                missing = too_few(count_sometimes(self._read()), self._size.least)
                if not missing or self._is_late:
                    break
                await self._carry_on(f"{self._seed}/{extension}", missing)
            is_calm.set()

    async def _tend(self, is_calm: asyncio.Event) -> None:
        """Start workers again that are gone, also those whose plan is over."""
        while not is_calm.is_set():
            self._store.tend()
            for worker in self._workers:
                worker.start()
            await asyncio.sleep(0.1)

    @property
    def _is_late(self) -> bool:
        return boot_ns() > self._latest

    async def _carry_on(self, seed: str, missing: dict[str, int]) -> None:
        self._say(f"carried on: {_in_words(missing)}")
        workers = len(self._workers)
        await self._torment(
            lambda worker: carry_on(seed, worker, missing, workers),
            carry_on_for_server(seed, missing),
        )

    async def _torment(
        self, plan_of: Callable[[int], list[Deed]], of_server: list[ServerDeed]
    ) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._besiege(of_server))
            for worker in self._workers:
                group.create_task(self._torment_one(worker, plan_of(worker.number)))

    async def _besiege(self, plan: list[ServerDeed]) -> None:
        for deed in plan if self._store.deeds else ():
            if self._is_late:
                return
            await self._siege.lay(deed)

    def _is_busy(self) -> bool:
        return any(worker.is_busy() for worker in self._workers)

    async def _torment_one(self, worker: Worker, plan: list[Deed]) -> None:
        for deed in plan:
            if self._is_late:
                return
            await worker.suffer(deed)
        await worker.ready()

    async def _come_to_rest(self) -> None:
        """Heal: with every worker up again, everything must end; then stop them in order."""
        for worker in self._workers:
            await worker.ready()

        def is_at_rest() -> bool:
            self._store.tend()
            for worker in self._workers:  # a handler may still take its process down
                worker.start()
            return not self._store.unfinished()

        await until(is_at_rest, "everything to come to rest", self._size.rest)
        async with asyncio.TaskGroup() as group:
            for worker in self._workers:
                group.create_task(worker.stop())
        await asyncio.to_thread(self._store.finish)
        await until(lambda: not left_behind(self._folder), "every process to be gone", 5)

    def _read(self) -> Histories:
        self._store.export(self._folder / "system.jsonl")
        return read_folder(self._folder)

    def _end_all(self) -> None:
        self._feeding.end()
        for worker in self._workers:
            worker.end()
        for pid in left_behind(self._folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._store.close()


def _in_words(missing: dict[str, int]) -> str:
    return ", ".join(f"{number} too few {what}" for what, number in missing.items())


def _leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in a group of groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
