"""One worker process: composes its loops and decides in which order they stop.

A stop claims no more, hands back attempts that have not begun, lets handlers finish within the
grace, interrupts and releases the others, stores all settlements and ends the session. In a guarded
process, handlers that cannot be stopped are left to the guardian. It ends the process before it
settles their attempts, so that no handler still runs when its attempt is released.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from trellis.config import WorkerSettings
from trellis.core.durations import SECOND
from trellis.core.states import State
from trellis.declaration.job_type import JobType
from trellis.declaration.worker_location import WorkerLocation
from trellis.engines.clock import uptime
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError, EngineError
from trellis.telemetry import Telemetry, current
from trellis.worker.active_job import JobEnvironment
from trellis.worker.archiving import Archiving
from trellis.worker.attempt import HeldAttempts, Stop
from trellis.worker.attempt_watch import AttemptWatch
from trellis.worker.executor import Executor
from trellis.worker.failure_reports import FailureReports
from trellis.worker.fetcher import Fetcher, HintListener, Planner
from trellis.worker.guardian.channel import ReplacementReason
from trellis.worker.isolation.apart import ApartTypes
from trellis.worker.isolation.runner import check_isolation
from trellis.worker.items import load_earlier
from trellis.worker.lease import LeaseKeeper
from trellis.worker.local_type import choose
from trellis.worker.locks import EngineLocks
from trellis.worker.log import log_capture
from trellis.worker.loop import Loop, TaskLoop, stop_all, within
from trellis.worker.maintenance import Maintenance
from trellis.worker.metrics import observe
from trellis.worker.notes import NoteWriter
from trellis.worker.outage import OutageLog
from trellis.worker.renewals import CancelWatch, Renewals
from trellis.worker.reporter import Reporter
from trellis.worker.session import EngineTime, RenewalHealth, SessionHolder, describe_worker
from trellis.worker.settler import Settler
from trellis.worker.shared_status import SharedStatus

# How long the steps of a stop may take, in seconds; the grace is a setting.
_LAST_CLAIM_LIMIT: Final = 1.0
_INTERRUPT_LIMIT: Final = 0.5
_SETTLE_LIMIT: Final = 1.0
_REPORT_LIMIT: Final = 1.0
_LEASE_LIMIT: Final = 0.5
_SLOTS_LIMIT: Final = 0.25
#: How often a worker that ends without jobs checks whether it has had one, in seconds.
_IDLE_CHECK: Final = 0.5


class Supervisor:
    """Runs jobs between `start` and `stop`."""

    def __init__(
        self,
        engine: Engine,
        make_engine: Callable[[], Engine],
        job_types: Sequence[JobType],
        settings: WorkerSettings,
        *,
        states: Mapping[str, Any] | None = None,
        locations: Mapping[str, WorkerLocation] | None = None,
        status: SharedStatus | None = None,
        guarded: bool = False,
        contracts: Mapping[str, str] | None = None,
        telemetry: Telemetry = current,
    ) -> None:
        job_types = choose(job_types, settings.types)
        if not job_types:
            raise ConfigurationError(
                "There is nothing to work on: no handler is declared. Add one with @service.job."
            )
        check_isolation(job_types, locations or {})
        self.settings = settings
        #: The names of the types that this worker runs, as `service/type`.
        self.type_names = tuple(f"{each.service}/{each.name}" for each in job_types)
        #: Set when this worker should finish its work and exit: an operator or the guardian asks.
        self.drain_requested = asyncio.Event()
        self._attempts = HeldAttempts()
        engine, watched = observe(engine, telemetry, self._attempts, settings.concurrency)
        self._engine, self._guarded, self._telemetry = engine, guarded, watched
        self._stop_reason = Stop.SHUTDOWN
        self._grace_is_over = asyncio.Event()
        self._status = status or SharedStatus(settings.concurrency)
        info = describe_worker(job_types, settings, contracts or {})
        self._session = SessionHolder(engine, info, settings.lease, self._status)
        self._health = RenewalHealth(settings.lease, settings.heartbeat)
        self._time = EngineTime(0)
        self._notes = NoteWriter(engine, self._renew_for_heartbeat)
        self._outage = OutageLog()
        self._reports = FailureReports(engine)
        self._locks = EngineLocks(engine)
        load_items = partial(load_earlier, engine)
        read_lease = partial(self._health.lease, self._time)
        self._environment = JobEnvironment(self._notes, states, self._locks, load_items, read_lease)
        found = ((each.service, each.reach) for each in job_types)
        self._environment.reach = {service: reach for service, reach in found if reach is not None}
        self._compose_work(job_types, locations)
        self._compose_watch(make_engine)
        self._loops: tuple[TaskLoop, ...] = (
            self._fetcher, self._listener, self._settler, self._notes, self._attempt_watch,
            self._cancels, self._maintenance, self._reports, self._archiving,
        )  # fmt: skip

    def _compose_work(
        self, job_types: Sequence[JobType], locations: Mapping[str, WorkerLocation] | None
    ) -> None:
        """Compose the parts that claim jobs and run their handlers."""
        settings, work_wanted = self.settings, asyncio.Event()
        parts = (self._attempts, self._notes, self._time, self._outage)
        self._settler = Settler(
            self._engine, *parts, reports=self._reports, request_work=work_wanted.set,
            telemetry=self._telemetry,
        )  # fmt: skip
        self._executor = Executor(
            settings.concurrency, attempts=self._attempts, environment=self._environment,
            engine_time=self._time, settle=self._settler.put, status=self._status,
            locations=locations, guarded=self._guarded, request_work=work_wanted.set,
            telemetry=self._telemetry,
            lease_may_have_expired=self._health.lease_may_have_expired,
        )  # fmt: skip
        self._planner = Planner(job_types, self._executor, settings.max_jobs, settings.queues)
        self.apart_types = ApartTypes(
            self._planner.types.values(), locations or {}, settings.concurrency
        )
        self._executor.report_crashes(self.apart_types.add_crash)
        self._fetcher = Fetcher(
            self._engine, session=self._session, executor=self._executor, planner=self._planner,
            attempts=self._attempts, engine_time=self._time, poll=settings.poll, wakeup=work_wanted,
            outage=self._outage, settler=self._settler,
        )  # fmt: skip
        archivers = {each.service: each.extensions.archiver for each in job_types}
        self._archiving = Archiving(self._engine, self._session, archivers, self._outage)

    def _compose_watch(self, make_engine: Callable[[], Engine]) -> None:
        """Compose the parts that renew the lease, watch running attempts and do maintenance."""
        engine, settings = self._engine, self.settings
        self._cancels = CancelWatch(engine, self._attempts, self._reports)
        self._listener = HintListener(
            engine, {"ready": self._fetcher.nudge, "asked": self._cancels.nudge}
        )
        self._renewals = Renewals(
            session=self._session, attempts=self._attempts, executor=self._executor,
            fetcher=self._fetcher, planner=self._planner, settler=self._settler,
            engine_time=self._time, cancels=self._cancels, on_drain=self.drain_requested.set,
        )  # fmt: skip
        reporter = Reporter(
            attempts=self._attempts, executor=self._executor, types=self._planner.types,
            locks=self._locks, engine_time=self._time, status=self._status,
        )  # fmt: skip
        self._keeper = LeaseKeeper(
            make_engine, session=self._session, attempts=self._attempts, health=self._health,
            settings=settings, on_renewal=self._renewals.apply, reporter=reporter,
            status=self._status, outage=self._outage,
        )  # fmt: skip
        self._maintenance = Maintenance(
            engine, self._session, self._health, self._fetcher.nudge,
            sweep=settings.sweep, poll=settings.poll, keep_audit=settings.keep_audit,
            outage=self._outage, telemetry=self._telemetry,
        )  # fmt: skip
        self._attempt_watch = AttemptWatch(
            attempts=self._attempts, executor=self._executor, notes=self._notes,
            keeper=self._keeper, health=self._health, status=self._status, reporter=reporter,
            lost_threads=self._executor.lost_threads, metrics=self._telemetry.metrics,
        )  # fmt: skip

    def _renew_for_heartbeat(self) -> None:
        self._keeper.renew_for_heartbeat()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def settled(self) -> int:
        """How many settlements this worker has stored."""
        return self._settler.settled

    @property
    def begun(self) -> int:
        """How many handlers this worker has called."""
        return self._executor.begun

    @property
    def last_state(self) -> State | None:
        """The state of the job that was settled last."""
        return self._settler.last_state

    async def until_replacement_wanted(self) -> ReplacementReason:
        """Wait until this process should be replaced while its last handlers run."""
        lost = asyncio.create_task(self._executor.lost_threads.replacement_wanted.wait())
        spent = asyncio.create_task(self._fetcher.slots_stand_still.wait())
        try:
            await asyncio.wait((lost, spent), return_when=asyncio.FIRST_COMPLETED)
            return "lost_threads" if lost.done() else "max_jobs"
        finally:
            lost.cancel()
            spent.cancel()

    async def start(self) -> None:
        """Open a session and start all loops."""
        sent = uptime()
        session = await self._session.open()
        self._time.learn(session.now, sent)
        await self._archiving.declare()
        log_capture.install()
        self._status.set_loop_moved(time.monotonic())
        loops: tuple[Loop, ...] = (self._executor, self._keeper, *self._loops)
        for loop in loops:
            loop.start()

    async def until_max_jobs(self) -> None:
        """Wait until as many jobs have run as this worker may run (`max_jobs`)."""
        await self._fetcher.reached_max_jobs.wait()
        await self._settler.flush()

    async def until_unused(self) -> None:
        """Wait until there was no job for as long as this worker waits for one (`idle`).

        Time in which the engine does not answer is not counted: there may be jobs.
        """
        if self.settings.idle is None:
            await asyncio.Event().wait()
            return
        limit = self.settings.idle / SECOND
        begun, unused_since = 0, time.monotonic()
        while time.monotonic() - unused_since < limit:
            await asyncio.sleep(min(limit / 10, _IDLE_CHECK))
            is_used = self._executor.load or self._executor.begun != begun
            if is_used or self._outage.is_present:
                begun, unused_since = self._executor.begun, time.monotonic()

    async def finish(self) -> None:
        """Claim no more, and wait without limit until every handler has ended."""
        self._executor.is_finishing = True
        await self._fetcher.finish()
        self._executor.release_waiting()
        await self._executor.until_idle()

    async def stop(self) -> None:
        """Stop gracefully; afterwards nothing of this worker runs and it holds no jobs.

        If this call is cancelled, jobs may still be held, but nothing runs or renews their lease.
        """
        try:
            try:
                await self._finish_work()
            finally:
                await self._keeper.stop(_LEASE_LIMIT)
            await self._end_session()
        finally:
            await self._stop_loops()

    def lose_guardian(self) -> None:
        """Hand back what cannot be stopped, as an embedded worker does: the guardian is gone."""
        self._guarded = False
        self._executor.lose_guardian()

    def be_replaced(self) -> None:
        """Hand jobs back at the stop, also those of types with `on_shutdown="fail"`."""
        self._stop_reason = Stop.REPLACED

    def stop_at_once(self) -> None:
        """End the grace of a stop under way: handlers are interrupted now."""
        self._grace_is_over.set()

    async def _finish_work(self) -> None:
        self._executor.notify_stopping()
        grace_ends = time.monotonic() + self.settings.grace / SECOND
        await self._fetcher.finish(_LAST_CLAIM_LIMIT)
        self._executor.release_waiting()
        await within(grace_ends - time.monotonic(), self._until_idle_or_grace_is_over())
        self._executor.interrupt_running(self._stop_reason)
        await within(_INTERRUPT_LIMIT, self._executor.until_idle())
        self._executor.release_running()
        await within(_SETTLE_LIMIT, self._settler.flush())
        await within(_REPORT_LIMIT, self._reports.flush())

    async def _until_idle_or_grace_is_over(self) -> None:
        idle = asyncio.create_task(self._executor.until_idle())
        over = asyncio.create_task(self._grace_is_over.wait())
        try:
            await asyncio.wait((idle, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            over.cancel()

    async def _end_session(self) -> None:
        with suppress(EngineError):
            await self._notes.flush()
        attempts = self._attempts
        if self._guarded and (attempts.held or attempts.running or attempts.lost):
            return  # the guardian settles these, frees their keys, and then ends the session
        await self._session.close()

    async def _stop_loops(self) -> None:
        log_capture.remove()
        self._renewals.close()
        await self._executor.stop(_SLOTS_LIMIT)
        await stop_all(self._loops)
        if self._telemetry.metrics is not None:
            self._telemetry.metrics.close()
