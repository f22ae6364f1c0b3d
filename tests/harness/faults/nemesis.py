"""Doing the deeds: each waits for its moment, is written down, done, and waited out.

The moment of a kill is when a handler is in flight, that of a stop when one is in a thread, where
nothing interrupts it, that of a SIGTERM when one is stuck. A stop lasts until others have taken
everything the stopped process held; so what it says afterwards must be refused.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.harness.faults.diary import Diary
from tests.harness.faults.plan import Deed
from tests.harness.faults.processes import Group, Place, Queueing, is_still
from tests.harness.faults.recorder import boot_ns
from tests.harness.faults.sight import Effects
from tests.harness.faults.stores.store import Store
from tests.harness.faults.waiting import Impatience, until

#: Seconds for anything to come true, also the end of a killed process: on a machine whose disks are
#: busy, a process that waits for one neither stops nor dies for many seconds.
_PATIENCE: Final = 120


class Scene(NamedTuple):
    """What all workers of a campaign share."""

    folder: Path
    store: Store
    effects: Effects
    diary: Diary
    #: How workers are started.
    options: dict[str, str]
    #: How many may suffer at once: one of them at least must be there to take over.
    permits: asyncio.Semaphore


class Worker:
    """One of the workers: started again whenever it is gone."""

    def __init__(self, number: int, scene: Scene) -> None:
        self.number = number
        self._folder, self._store, self._effects = scene.folder, scene.store, scene.effects
        self._diary, self._options, self._permits = scene.diary, scene.options, scene.permits
        self._group: Group | None = None
        #: A way to the store of its own, which can be cut.
        self.way = self._store.way() if number == 0 else None
        self._grace = float(self._options["grace"].removesuffix("s"))

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, if nothing of it is there."""
        if self._group is not None:
            if not self._group.is_gone:
                return
            self._group.end()
        options = [f"--{name}={value}" for name, value in self._options.items()]
        url = self._store.url if self.way is None else self.way.url
        place = Place(self._folder, url)
        arguments = ["-m", "trellis", "worker", f"{__package__}.jobs:app", *options]
        self._group = Group(arguments, place, f"worker-{self.number}.log")

    def end(self) -> None:
        """End it the hard way; for cleaning up only."""
        if self._group is not None:
            self._group.end()
        if self.way is not None:
            self.way.close()

    @property
    def group(self) -> Group:
        """Its processes."""
        if self._group is None:
            raise RuntimeError("The worker was never started.")
        return self._group

    def sessions(self) -> dict[int, int]:
        """Return its living sessions, each with the process that works."""
        known = self._store.sessions()
        return {session: pid for session, pid in known.items() if self.group.has(pid)}

    def _is_working(self) -> bool:
        self.start()
        return bool(self.sessions())

    async def ready(self) -> dict[int, int]:
        """Start it if need be, and wait until it works; return its sessions."""
        await until(self._is_working, f"worker {self.number} to work", _PATIENCE)
        return self.sessions()

    def is_busy(self) -> bool:
        """Tell whether a handler is in flight."""
        return self._group is not None and self._has()

    def _has(self, *kinds: str) -> bool:
        """Tell whether a handler (of one of these kinds) is in flight; start it if it died."""
        if not self._is_working():
            return False
        running = [
            kind for pid in self.sessions().values() for kind in self._effects.in_flight(pid)
        ]
        return any(kind in kinds for kind in running) if kinds else bool(running)

    # -- deeds -----------------------------------------------------------------------------------

    async def suffer(self, deed: Deed) -> None:
        """Have a deed done to it, once it has worked for a while."""
        await self.ready()
        await asyncio.sleep(deed.pause)
        async with self._permits:
            await self._suffer(deed)

    async def _suffer(self, deed: Deed) -> None:
        match deed.kind:
            case "kill":
                await self._be_killed(deed)
            case "stop":
                await self._be_stopped(deed)
            case "term":
                await self._be_told(stuck=True)
            case "cut_off":
                await self._be_cut_off(deed)
            case _:
                raise ValueError(f"A {deed.kind} is not planned, it happens.")

    async def _be_killed(self, deed: Deed) -> None:
        await until(self._has, f"work in flight in worker {self.number}", _PATIENCE)
        sessions = self.sessions()
        group, workers = self.group, list(sessions.values())
        number = self._diary.begin("kill", deed.target, workers)
        match deed.target:
            case "child":
                for pid in workers:
                    group.send(signal.SIGKILL, pid)
            case "guardian":
                group.send(signal.SIGKILL, group.leader)
            case "group":
                group.send_all(signal.SIGKILL)
        if deed.target == "child" and group.leader not in workers:
            await until(lambda: not any(map(group.has, workers)), "a child to die", _PATIENCE)
        else:
            await until(lambda: group.is_gone, "a killed worker to go", _PATIENCE)
        self._diary.over(number)

    async def _be_stopped(self, deed: Deed) -> None:
        sessions, number = await self._freeze(deed)
        group = self.group
        try:
            await until(
                lambda: all(map(self._store.is_over, sessions)),
                f"others to take what stopped worker {self.number} ({deed.target}) held", _PATIENCE,
            )  # fmt: skip
        finally:
            self._diary.over(number)
            group.send_all(signal.SIGCONT)
        await self._be_refused(sessions)

    async def _freeze(self, deed: Deed) -> tuple[dict[int, int], int]:
        """Stop it while a thread is busy; return its sessions, and the number in the diary.

        One that stands still in the middle of writing keeps everybody from writing, so nobody
        could take over: it was paused for a moment only.
        """
        while True:
            await until(
                lambda: self._has("thread", "keyed_thread"),
                f"a thread busy in worker {self.number}", _PATIENCE,
            )  # fmt: skip
            sessions = self.sessions()
            group, workers = self.group, list(sessions.values())
            began = boot_ns()
            if deed.target == "group":
                group.send_all(signal.SIGSTOP)
            for pid in workers:
                group.send(signal.SIGSTOP, pid)
            await until(lambda: all(map(is_still, workers)), "a worker to stand still", _PATIENCE)  # noqa: B023 - awaited at once
            if self._store.writer() not in group.members():
                return sessions, self._diary.begin("stop", deed.target, workers, at=began)
            self._diary.over(self._diary.begin("pause", deed.target, workers, at=began))
            group.send_all(signal.SIGCONT)

    async def _be_cut_off(self, deed: Deed) -> None:
        """Lose the way to the store until others have taken everything; then find it again."""
        if self.way is None:
            return
        await until(
            lambda: self._has("thread", "keyed_thread"), "a thread busy in worker 0", _PATIENCE
        )
        sessions = self.sessions()
        number = self._diary.begin("cut_off", deed.target, list(sessions.values()))
        self.way.freeze()
        try:
            await until(
                lambda: all(map(self._store.is_over, sessions)),
                f"others to take what worker {self.number} held, which is cut off", _PATIENCE,
            )  # fmt: skip
        finally:
            self._diary.over(number)
            self.way.thaw(forget=True)
        await self._be_refused(sessions)

    async def _be_refused(self, sessions: dict[int, int]) -> None:
        """Wait for the late results; there are none if the stop came a moment too late."""
        with suppress(Impatience):
            await until(
                lambda: any(map(self._store.refusals, sessions)) or self.group.is_gone,
                "a late result", 3,
            )  # fmt: skip

    def _is_stuck(self) -> bool:
        """Hand out tickets, also to a child that was started meanwhile; see if one was used."""
        for pid in self.sessions().values():
            (self._folder / "stuck" / str(pid)).touch()
        return self._has("stuck")

    async def _be_told(self, *, stuck: bool) -> None:
        if stuck:
            await until(self._is_stuck, "a handler to get stuck", _PATIENCE)
        group = self.group
        workers = list(self.sessions().values())
        target = "with a stuck handler" if stuck else "at the end"
        number = self._diary.begin("term", target, workers, grace=self._grace)
        queueing = Queueing([group.leader, *workers])
        group.send(signal.SIGTERM, group.leader)

        def is_gone() -> bool:
            queueing.look()
            return group.is_gone

        await until(is_gone, f"worker {self.number} to stop", self._grace + 30)
        self._diary.over(number, queueing.look())

    async def stop(self) -> None:
        """Stop it in order."""
        await self.ready()
        await self._be_told(stuck=False)
