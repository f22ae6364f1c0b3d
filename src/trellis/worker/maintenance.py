"""Doing what the clock calls for: due jobs, lapsed workers, deadlines, retention.

One worker does it for all, the one that holds the leader's lock, which lasts as long as its
session. That saves work and decides nothing: every write is guarded by the job's version, so two
that think they lead do a thing once.

A process judges others, be it a session or a silent attempt, only after its own renewals have
succeeded for one full lease without a gap, so that an outage of the engine costs nobody a job.

The lock that the worker holds which does the upkeep for all.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from trellis import control
from trellis.core.commands import Command, Fail, LoseLease
from trellis.core.durations import SECOND, Instant, Micros
from trellis.core.job import Fence, JobRecord
from trellis.core.timers import overdue
from trellis.engines.port import Engine
from trellis.engines.values import DueJob, DueKind
from trellis.errors import EngineUnavailable
from trellis.worker.session import RenewalHealth, SessionHolder

LEADER: Final = "trellis/leader"


_LIMIT: Final = 500
_PRUNE_EVERY: Final = 60.0
#: No hint says that the time of a job has come, nor that the leader is gone: these are looked for
#: at least so often (in seconds), however seldom the worker polls for work.
_PROMOTE_EVERY: Final = 1.0
_STAND_EVERY: Final = 2.0
_MOST_PAGES: Final = 20
_random = random.Random()  # noqa: S311 - jitter needs no cryptography
_logger = logging.getLogger(__name__)

Judge: TypeAlias = Callable[[DueJob, Instant], Command | None]
#: An attempt and its last sign of life.
Silence: TypeAlias = tuple[Fence, Instant | None]


class Maintenance:
    """The upkeep loops of one worker process."""

    def __init__(
        self,
        engine: Engine,
        session: SessionHolder,
        health: RenewalHealth,
        on_promoted: Callable[[], None],
        *,
        sweep: Micros,
        poll: Micros,
    ) -> None:
        self._engine = engine
        self._session = session
        self._health = health
        self._on_promoted = on_promoted
        self._sweep = sweep / SECOND
        self._promote_every = min(poll / SECOND / 2, _PROMOTE_EVERY)
        self._stand_every = min(2 * poll / SECOND, _STAND_EVERY)
        #: What the last sweep found silent.
        self._silent: set[Silence] = set()
        self._leads = asyncio.Event()

    async def run(self) -> None:
        """Keep everything up until cancelled."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._forever(self._stand_every, self.stand_for_leader))
            loops.create_task(
                self._forever(self._promote_every, self._promote_in_time, self._leads)
            )
            loops.create_task(self._forever(self._sweep, self.sweep, self._leads))
            loops.create_task(self._forever(_PRUNE_EVERY, self._prune, self._leads))

    async def _forever(
        self,
        every: float,
        work: Callable[[], Awaitable[None]],
        when: asyncio.Event | None = None,
    ) -> None:
        while True:
            if when is not None and not when.is_set():
                await when.wait()  # and then at once: whoever led before may be long gone
            else:
                await asyncio.sleep(every * _random.uniform(0.8, 1.0))
            try:
                await work()
            except EngineUnavailable as error:
                _logger.info("Upkeep waits for the engine: %s", error)
            except Exception:
                _logger.exception("Upkeep failed and will be tried again")

    async def stand_for_leader(self) -> None:
        """Take the lock if it is free; see whether it is still ours."""
        try:
            holder = await self._engine.take_lock(LEADER, self._session.id)
        except EngineUnavailable:
            self._leads.clear()
            raise
        if holder is None:
            self._leads.set()
        else:
            self._leads.clear()

    async def promote(self) -> None:
        """Make jobs claimable whose time has come."""
        if await self._engine.promote(_LIMIT):
            self._on_promoted()

    async def _promote_in_time(self) -> None:
        """Promote now, and once more at the moment the next job is due, if that comes first."""
        await self.promote()
        due = await self._engine.next_due()
        if due is not None:
            wait = (due - await self._engine.now()) / SECOND
            if 0 < wait < self._promote_every:
                await asyncio.sleep(wait)
                await self.promote()

    async def sweep(self) -> None:
        """Look for workers that have gone, what they left, and what is overdue."""
        if self._health.is_stable:
            due = await self._engine.due("sessions", _LIMIT)
            for session in due.sessions:
                if self._health.is_stable:
                    await self._engine.reap(session)
        await self._settle_due("lost", _lost)
        known, self._silent = self._silent, set()
        await self._settle_due("jobs", partial(self._overdue, known))

    def _overdue(self, known: set[Silence], job: DueJob, now: Instant) -> Command | None:
        (definition, head), seen_at = job
        command = overdue(definition, head, seen_at, now, _random.random())
        if isinstance(command, Fail) and not self._health.is_stable:
            # It may have ended in time, and an outage may hold up its settlement.
            return None
        if not isinstance(command, LoseLease):
            return command
        # A sign of life that an outage held up may be on its way: silence counts when the next
        # sweep finds it again.
        silence = command.fence, seen_at
        self._silent.add(silence)
        return command if silence in known and self._health.is_stable else None

    async def _settle_due(self, kind: DueKind, judge: Judge) -> None:
        """Apply what is called for, page after page while they come back full."""
        for _ in range(_MOST_PAGES):
            due = await self._engine.due(kind, _LIMIT)
            asked: list[tuple[JobRecord, Command]] = []
            for job in due.jobs:
                command = judge(job, due.now)
                if command is not None:
                    asked.append((job.record, command))
            if asked:
                await control.apply_all(self._engine, asked, due.now)
                self._on_promoted()
            if not asked or len(due.jobs) < _LIMIT:
                return

    async def _prune(self) -> None:
        while self._leads.is_set():
            began = time.monotonic()
            if await self._engine.prune(_LIMIT) < _LIMIT:
                return
            await asyncio.sleep(time.monotonic() - began)  # half of the time is for the others


def _lost(job: DueJob, _: Instant) -> Command | None:
    fence = job.record.head.fence
    return None if fence is None else LoseLease(fence, roll=_random.random())
