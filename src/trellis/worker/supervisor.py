"""One worker process: composes the loops and says in which order they stop. No logic of its own.

Stopping: fetch no more, hand back what has not begun, let handlers finish within the grace, release
the rest, store everything, end the session. In a guarded process what cannot be stopped is left to
the guardian, which ends the process first: only then is it true that the handler does not run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from trellis.config import WorkerSettings
from trellis.core.durations import SECOND
from trellis.core.states import State
from trellis.declaration.job_type import JobType
from trellis.declaration.worker_location import Home
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError, EngineError
from trellis.worker.active_job import JobEnvironment
from trellis.worker.attempt import HeldAttempts, Stop
from trellis.worker.clock import EngineTime, uptime
from trellis.worker.demand import Planner
from trellis.worker.executor import Executor
from trellis.worker.fetcher import Fetcher
from trellis.worker.isolation.runner import check_isolation
from trellis.worker.lease import LeaseKeeper
from trellis.worker.local_type import choose
from trellis.worker.locks import EngineLocks
from trellis.worker.log import log_capture
from trellis.worker.maintenance import Maintenance
from trellis.worker.notes import NoteWriter
from trellis.worker.renewals import CancelWatch, Renewals
from trellis.worker.session import RenewalHealth, SessionHolder, describe_worker
from trellis.worker.settler import Settler
from trellis.worker.shared_status import SharedStatus
from trellis.worker.sweeper import Sweeper

#: How long stopped handlers and the last settlements may take after the grace.
_LAST_MOMENT: Final = 2.0
_RESTART: Final = 1.0
_logger = logging.getLogger(__name__)


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
        homes: Mapping[str, Home] | None = None,
        status: SharedStatus | None = None,
        guarded: bool = False,
    ) -> None:
        job_types = choose(job_types, settings.types, settings.queues)
        if not job_types:
            raise ConfigurationError(
                "There is nothing to work on: no handler is declared. Add one with @service.job."
            )
        check_isolation(job_types, homes or {})
        self.settings = settings
        self._guarded = guarded
        info = describe_worker(job_types, settings)
        #: What this worker runs: `service/type` of each.
        self.type_names = tuple(f"{each.service}/{each.name}" for each in job_types)
        self._engine = engine
        #: An operator wants this process to finish what it has and go.
        self.drain_asked = asyncio.Event()
        self._status = status or SharedStatus(settings.concurrency)
        self._session = SessionHolder(engine, info, settings.lease, self._status)
        self._attempts = HeldAttempts()
        self._notes = NoteWriter(engine)
        self._time = EngineTime(0)
        self._settler = Settler(engine, self._attempts, self._notes, self._time)
        self._environment = JobEnvironment(self._notes, states, EngineLocks(engine))
        self._executor = Executor(
            settings.concurrency, attempts=self._attempts, environment=self._environment,
            engine_time=self._time, settle=self._settler.put, status=self._status, homes=homes,
        )  # fmt: skip
        self._executor.guarded = guarded
        self._planner = Planner(job_types, self._executor, settings.max_jobs)
        self._fetcher = Fetcher(
            engine, session=self._session, executor=self._executor, planner=self._planner,
            attempts=self._attempts, engine_time=self._time, poll=settings.poll,
        )  # fmt: skip
        self._fetching: asyncio.Task[None] | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._grace_is_over = asyncio.Event()
        self._compose_watch(make_engine)

    def _compose_watch(self, make_engine: Callable[[], Engine]) -> None:
        """Compose what keeps the lease, looks after running attempts and keeps everything up."""
        engine, settings = self._engine, self.settings
        self._cancels = CancelWatch(engine, self._attempts)
        self._renewals = Renewals(
            session=self._session, attempts=self._attempts, executor=self._executor,
            fetcher=self._fetcher, planner=self._planner, settler=self._settler,
            engine_time=self._time, cancels=self._cancels, on_drain=self.drain_asked.set,
        )  # fmt: skip
        self._health = health = RenewalHealth(settings.lease, settings.heartbeat)
        self._executor.lease_may_have_expired = lambda: health.lease_may_have_expired
        self._keeper = LeaseKeeper(
            make_engine, session=self._session, attempts=self._attempts, health=self._health,
            heartbeat=settings.heartbeat, stall_limit=settings.stall_limit, sweep=settings.sweep,
            hear=self._renewals.hear, status=self._status,
        )  # fmt: skip
        self._maintenance = Maintenance(
            engine, self._session, self._health, self._fetcher.nudge,
            sweep=settings.sweep, poll=settings.poll,
        )  # fmt: skip
        self._sweeper = Sweeper(
            attempts=self._attempts, executor=self._executor, notes=self._notes,
            keeper=self._keeper, health=self._health, status=self._status,
        )  # fmt: skip

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
    def last_state(self) -> State | None:
        """The state in which the last settled job is now."""
        return self._settler.last_state

    async def until_spent(self) -> None:
        """Wait until as many jobs have run as this worker is to run (`max_jobs`)."""
        await self._fetcher.spent.wait()
        await self._settler.flush()

    async def finish(self) -> None:
        """Claim no more, and wait until every handler has ended in its own time."""
        self._fetcher.stop()
        if self._fetching is not None:
            await _finished(self._fetching)
        self._executor.hand_back()
        await self._executor.until_quiet()

    async def start(self) -> None:
        """Open a session and begin to work."""
        sent = uptime()
        session = await self._session.open()
        self._time.learn(session.now, sent)
        log_capture.install()
        self._status.set_loop_moved(time.monotonic())
        self._executor.start()
        self._keeper.start()
        self._fetching = asyncio.create_task(self._fetcher.run(), name="trellis-fetch")
        for work in (
            self._fetcher.listen, self._settler.run, self._notes.run, self._sweeper.run,
            self._cancels.run, self._maintenance.run,
        ):  # fmt: skip
            self._loops.append(asyncio.create_task(_keep_going(work), name=work.__qualname__))

    async def stop(self) -> None:
        """Stop in order; afterwards nothing of this worker runs and nothing is held.

        Whoever cuts this short leaves jobs behind, but nothing that runs or renews.
        """
        try:
            try:
                await self._finish_work()
            finally:
                await self._keeper.stop()
            await self._end_session()
        finally:
            await self._close_loops()

    def stop_at_once(self) -> None:
        """Cut the grace of a stop under way: handlers are interrupted now."""
        self._grace_is_over.set()

    async def _finish_work(self) -> None:
        self._environment.stopping = True
        self._executor.tell_stopping()
        grace_ends = time.monotonic() + self.settings.grace / SECOND
        self._fetcher.stop()
        if self._fetching is not None:
            await self._within(_LAST_MOMENT / 2, _finished(self._fetching))
        self._executor.hand_back()
        await self._within(grace_ends - time.monotonic(), self._quiet_or_over())
        await self._release_the_rest()
        await self._within(_LAST_MOMENT / 2, self._settler.flush())

    async def _end_session(self) -> None:
        with suppress(EngineError):
            await self._notes.flush()
        if self._guarded and (self._attempts.held or self._attempts.running):
            return  # the guardian settles these, frees their keys, and then ends the session
        with suppress(EngineError):
            await self._engine.close_session(self._session.id)

    async def _quiet_or_over(self) -> None:
        quiet = asyncio.create_task(self._executor.until_quiet())
        over = asyncio.create_task(self._grace_is_over.wait())
        try:
            await asyncio.wait((quiet, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            quiet.cancel()
            over.cancel()

    async def _release_the_rest(self) -> None:
        for attempt in list(self._attempts.running.values()):
            attempt.stop(Stop.SHUTDOWN)
        await self._within(_LAST_MOMENT / 4, self._executor.until_quiet())
        if not self._guarded:
            self._executor.disown()

    async def _close_loops(self) -> None:
        log_capture.remove()
        self._renewals.close()
        await self._executor.close()
        tasks = [*self._loops, *([self._fetching] if self._fetching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await work


async def _keep_going(work: Callable[[], Awaitable[None]]) -> None:
    """Run a loop again when it ends: a worker without it would look alive and do nothing."""
    while True:
        try:
            await work()
        except Exception:
            _logger.exception("A part of the worker failed and is started again")
        await asyncio.sleep(_RESTART)


async def _finished(task: asyncio.Task[None]) -> None:
    await asyncio.wait((task,))
