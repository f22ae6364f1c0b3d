"""Maintenance of the engine: due jobs, schedules, expired leases, deadlines, retention.

One worker does it for all: the one that holds the leader lock, which lasts as long as its session.
The lock only saves work. Every write is guarded by the job's version, so two workers that both
consider themselves the leader change each job once.

A process declares a session or a silent attempt dead only after its own renewals have succeeded for
one full lease without a gap, so that no worker loses a job because of an outage of the engine.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from trellis import control
from trellis.control import Applied
from trellis.core.commands import Command, Fail, LoseLease
from trellis.core.durations import SECOND, Instant, Micros
from trellis.core.job import Fence, JobRecord
from trellis.core.timers import overdue
from trellis.engines.port import Engine
from trellis.engines.values import DueJob, DueKind
from trellis.errors import EngineError, EngineUnavailable, ProjectionUnavailable
from trellis.schedules import fire_due
from trellis.telemetry.store import exporting
from trellis.worker.log import log_settlement
from trellis.worker.loop import TaskLoop
from trellis.worker.metrics import NO_TELEMETRY, WorkerTelemetry
from trellis.worker.outage import OutageLog
from trellis.worker.session import RenewalHealth, SessionHolder

#: The lock that the worker holds which does the maintenance.
LEADER: Final = "trellis/leader"
_PAGE: Final = 500
_PRUNE_EVERY: Final = 60.0
#: The engine sends no hint when a job becomes due or the leader is gone. Both are checked at least
#: this often (in seconds), even if the worker polls for work less often.
_PROMOTE_EVERY: Final = 1.0
_ELECT_EVERY: Final = 2.0
_PAGES_LIMIT: Final = 20
_random = random.Random()  # noqa: S311 - jitter needs no cryptography
_logger = logging.getLogger(__name__)

Decide: TypeAlias = Callable[[DueJob, Instant], Command | None]
#: Removes up to this many; returns how many.
Prune: TypeAlias = Callable[[int], Awaitable[int]]
#: An attempt and its last heartbeat.
Silence: TypeAlias = tuple[Fence, Instant | None]


async def apply_by_service(
    engine: Engine, changes: Sequence[tuple[JobRecord, Command]], now: Instant
) -> AsyncIterator[tuple[JobRecord, Command, control.Result]]:
    """Apply commands to jobs of several services; yield each with its result.

    What cannot be stored of one service does not hold up the others: its error is raised after
    them, unless the store cannot be used at all.
    """
    services: dict[str, list[tuple[JobRecord, Command]]] = {}
    for change in changes:
        services.setdefault(change[0].definition.service, []).append(change)
    failed: Exception | None = None
    for own in services.values():
        try:
            results = await control.apply_all(engine, own, now)
        except EngineUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - raised below
            failed = failed or error
        else:
            for (record, command), result in zip(own, results, strict=True):
                yield record, command, result
    if failed is not None:
        raise failed


class Maintenance(TaskLoop):
    """The maintenance of one worker process."""

    def __init__(
        self,
        engine: Engine,
        session: SessionHolder,
        health: RenewalHealth,
        on_promoted: Callable[[], None],
        *,
        sweep: Micros,
        poll: Micros,
        keep_audit: Micros,
        outage: OutageLog,
        telemetry: WorkerTelemetry = NO_TELEMETRY,
    ) -> None:
        self._engine = engine
        self._session = session
        self._health = health
        self._on_promoted = on_promoted
        self._outage = outage
        self._metrics, self._tracing = telemetry
        self._sweep = sweep / SECOND
        self._keep_audit = keep_audit
        self._promote_every = min(poll / SECOND / 2, _PROMOTE_EVERY)
        self._elect_every = min(2 * poll / SECOND, _ELECT_EVERY)
        # The silent attempts that the last sweep found.
        self._silent: set[Silence] = set()
        self._leads = asyncio.Event()
        self._is_projected = True

    async def run(self) -> None:
        """Do the maintenance until cancelled."""
        with exporting(self._engine, self._leads.is_set):
            await self._run()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._repeat(self._elect_every, self.take_lead))
            loops.create_task(self._repeat(self._promote_every, self._promote_in_time, self._leads))
            loops.create_task(self._repeat(self._promote_every, self._fire_in_time, self._leads))
            loops.create_task(self._repeat(self._sweep, self.sweep, self._leads))
            loops.create_task(self._repeat(_PRUNE_EVERY, self.prune, self._leads))

    async def _repeat(
        self,
        every: float,
        work: Callable[[], Awaitable[None]],
        when: asyncio.Event | None = None,
    ) -> None:
        while True:
            if when is not None and not when.is_set():
                await when.wait()  # then work at once: the last leader may be long gone
            else:
                await asyncio.sleep(every * _random.uniform(0.8, 1.0))
            began = time.monotonic()
            try:
                await work()
            except EngineError as error:
                self._outage.failed("maintenance", error, began)
            except Exception:
                _logger.exception("Maintenance failed; will try again")
            else:
                self._outage.answered("maintenance")

    async def take_lead(self) -> None:
        """Take the leader lock if it is free; check that it is still held."""
        try:
            holder = await self._engine.take_lock(LEADER, self._session.id)
        except EngineError:  # the answer may have been lost, too
            self._leads.clear()
            raise
        if holder is None:
            self._leads.set()
        else:
            self._leads.clear()

    async def promote(self) -> None:
        """Make due jobs claimable."""
        if await self._engine.promote(_PAGE):
            self._on_promoted()

    async def _promote_in_time(self) -> None:
        """Promote now, and again when the next job is due, if that is before the next round."""
        await self.promote()
        due = await self._engine.next_due()
        if due is not None:
            wait = (due - await self._engine.now()) / SECOND
            if 0 < wait < self._promote_every:
                await asyncio.sleep(wait)
                await self.promote()

    async def _fire_in_time(self) -> None:
        """Create the jobs of due schedules now, and again at the next slot within this round."""
        following = await fire_due(self._engine)
        if following is not None:
            wait = (following - await self._engine.now()) / SECOND
            if wait < self._promote_every:
                await asyncio.sleep(max(wait, 0))
                await fire_due(self._engine)

    async def sweep(self) -> None:
        """Find expired sessions, the jobs they left, and overdue jobs, and settle them."""
        if self._health.is_stable:
            due = await self._engine.due("sessions", _PAGE)
            for session in due.sessions:
                if self._health.is_stable:
                    await self._engine.reap(session)
        await self._settle_due("lost", _lost)
        known, self._silent = self._silent, set()
        overdue_jobs = partial(self._settle_due, "jobs", partial(self._overdue, known))
        await self._if_projected(overdue_jobs)
        if await control.cancel_stopped_members(self._engine, _PAGES_LIMIT):
            self._on_promoted()

    def _overdue(self, known: set[Silence], job: DueJob, now: Instant) -> Command | None:
        (definition, head), seen_at = job
        command = overdue(definition, head, seen_at, now, _random.random())
        if isinstance(command, Fail) and not self._health.is_stable:
            # It may have ended in time, and an outage may delay its settlement.
            return None
        if not isinstance(command, LoseLease):
            return command
        # A heartbeat that an outage delayed may still arrive, so silence counts only when the next
        # sweep finds it again.
        silence = command.fence, seen_at
        self._silent.add(silence)
        return command if silence in known and self._health.is_stable else None

    async def _settle_due(self, kind: DueKind, decide: Decide) -> None:
        """Apply the commands that due jobs need, page after page while pages are full."""
        for _ in range(_PAGES_LIMIT):
            due = await self._engine.due(kind, _PAGE)
            commands: list[tuple[JobRecord, Command]] = []
            for job in due.jobs:
                command = decide(job, due.now)
                if command is not None:
                    commands.append((job.record, command))
            if commands:
                async for change in apply_by_service(self._engine, commands, due.now):
                    self._report_end(*change)
                self._on_promoted()
            if not commands or len(due.jobs) < _PAGE:
                return

    def _report_end(self, before: JobRecord, command: Command, result: control.Result) -> None:
        """Log, count and trace that an attempt was ended here: its worker may be gone."""
        fence = before.head.fence
        if fence is None or not isinstance(result, Applied):
            return
        after = result.record.head
        if after.fence == fence and not after.blocked:
            return
        log_settlement(before, fence, result)
        if self._metrics is not None and isinstance(command, LoseLease):
            self._metrics.lose_lease(before)
        if self._tracing is not None:
            self._tracing.settle(before.definition, after, None)

    async def prune(self) -> None:
        """Remove what is kept no longer, page after page."""
        await self._prune_pages(self._engine.finish_batches)
        if self._is_projected:  # as the last sweep has found
            await self._if_projected(partial(self._prune_pages, self._engine.prune))
        await self._prune_pages(partial(self._engine.prune_audit, self._keep_audit))

    async def _if_projected(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do what may need a projection; that there is none is logged once."""
        try:
            await work()
        except ProjectionUnavailable as error:
            if self._is_projected:
                _logger.warning("%s Deadlines, timeouts and retention wait until then.", error)
            self._is_projected = False
        else:
            self._is_projected = True

    async def _prune_pages(self, prune: Prune) -> None:
        await prune_pages(prune, self._leads.is_set)


async def prune_pages(prune: Prune, goes_on: Callable[[], bool] = lambda: True) -> int:
    """Remove what is kept no longer, page after page while pages are full; return how much."""
    removed = 0
    while goes_on():
        began = time.monotonic()
        page = await prune(_PAGE)
        removed += page
        if page < _PAGE:
            break
        await asyncio.sleep(time.monotonic() - began)  # leave half of the time to other work
    return removed


def _lost(job: DueJob, _: Instant) -> Command | None:
    fence = job.record.head.fence
    return None if fence is None else LoseLease(fence, roll=_random.random())
