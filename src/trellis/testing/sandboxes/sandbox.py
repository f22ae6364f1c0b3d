"""The sandbox: every service of the program on one memory engine, with a manual clock.

The program does not change: its jobs are created as always, and `run_all` runs them in the real
worker runtime. Jobs run only in `run_all`, and time passes only by `advance`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from trellis import portal
from trellis.client.engine_access import (
    LoopEngines,
    enter_override,
    leave_override,
    using_override,
)
from trellis.client.job import Job
from trellis.config import WorkerSettings
from trellis.core.durations import SECOND, Duration, Instant, in_words, to_datetime, to_instant
from trellis.core.job import JobRecord
from trellis.core.states import WAITING
from trellis.declaration import checks
from trellis.declaration.job_type import JobType
from trellis.engines.port import Engine
from trellis.errors import CalledFromLoop, ConfigurationError
from trellis.operations.operator import Operator
from trellis.service import Service
from trellis.testing.clock import ManualClock
from trellis.testing.sandboxes.engine import SandboxEngine
from trellis.testing.sandboxes.errors import HandlerMissing, JobsLeft, SandboxStuck
from trellis.testing.sandboxes.handlers import CallersThread, Error, Handlers, unplanned
from trellis.testing.sandboxes.jobs import CreatedJob, created_job
from trellis.testing.sandboxes.run import Run
from trellis.testing.sandboxes.services import Services

P = TypeVar("P")
R = TypeVar("R")
_SHOWN: Final = 10


class Sandbox:
    """The object that `sandbox()` returns."""

    def __init__(
        self,
        *,
        concurrency: int = 1,
        start: datetime | None = None,
        schedules: Sequence[Service] = (),
    ) -> None:
        #: The URL of every service in the sandbox.
        self.url = "memory://"
        begin = datetime.now(UTC) if start is None else start
        #: The clock of everything in the sandbox.
        self.clock = ManualClock(to_instant(begin))
        self._settings = WorkerSettings().with_options(
            concurrency=concurrency, grace="0s", poll="20ms"
        )
        self._engine = SandboxEngine(self.clock)
        self._engines = LoopEngines(lambda _: self._engine)
        self._services = Services()
        self._handlers = Handlers()
        self._scheduled = tuple(schedules)
        self._is_open = False
        self._is_running = False

    # -- opening and closing -------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._is_open:
            raise ConfigurationError(
                "This sandbox is already open. Make another one with sandbox()."
            )
        self._is_open = True
        enter_override(self)
        for service in self._scheduled:
            service.load_included()
            self._engine.declare(service.schedules)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        leave_override(self)
        self._engines.end_waits()
        self._engine.end()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._engines.close()
        self.__exit__(kind, error, trace)

    def engines_for(self, owner: object) -> LoopEngines:
        """Return the engines of the sandbox for a service, and record that the service is used."""
        self._services.note(owner)
        return self._engines

    @property
    def engine(self) -> Engine:
        """The engine that stores the jobs."""
        return self._engine

    @property
    def operator(self) -> Operator:
        """The operator of this sandbox, as `trellis.connect` returns it."""
        return Operator(self._engine, actor="test")

    # -- time ----------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of the clock."""
        return to_datetime(self.clock.now())

    def advance(self, duration: Duration) -> None:
        """Let time pass. Jobs that become due run at the next `run_all`."""
        self.clock.advance_micros(checks.duration("duration", duration))

    # -- running -------------------------------------------------------------------------------

    async def run_all(
        self,
        *,
        advance: bool = False,
        raise_errors: bool = True,
        timeout: Duration = "30s",  # noqa: ASYNC109 - it is a duration
    ) -> int:
        """Run every due job, and the jobs these create; return how many attempts were made.

        `advance` moves the clock to the next retry, delay or deadline until no job waits for its
        time. A failure that was not planned with `fail_next` raises `HandlerFailed` after all jobs
        have run, unless `raise_errors` is False. `timeout` is real time: if jobs have not ended by
        then, `SandboxStuck` is raised.
        """
        return await self._run(None, timeout, advance=advance, raise_errors=raise_errors)

    def run_all_sync(
        self, *, advance: bool = False, raise_errors: bool = True, timeout: Duration = "30s"
    ) -> int:
        """Do what `run_all` does, for plain tests; plain handlers run in this thread."""
        _refuse_loop()
        thread = CallersThread()
        return thread.wait_for(
            lambda: portal.call(
                self._run, thread, timeout, advance=advance, raise_errors=raise_errors
            )
        )

    async def _run(
        self, thread: CallersThread | None, limit: Duration, *, advance: bool, raise_errors: bool
    ) -> int:
        self._check_ready()
        run = Run(self._engine, self._services, self._handlers, self._settings, thread)
        claimed = self._engine.claimed
        self._engine.failed.clear()
        real_time = asyncio.timeout(checks.duration("timeout", limit) / SECOND)
        self._is_running = True
        try:
            with using_override(self):
                async with real_time:
                    await self._run_until_done(run, advance=advance)
        except TimeoutError:
            if not real_time.expired():
                raise  # raised by a lifespan
            raise _stuck(limit, run.interrupted) from None
        finally:
            self._is_running = False
        if raise_errors:
            self._raise_errors(run)
        return self._engine.claimed - claimed

    async def _run_until_done(self, run: Run, *, advance: bool) -> None:
        await run.everything_due()
        while advance and (instant := self._engine.next_instant()) is not None:
            self.clock.advance_to(instant)
            await run.everything_due()

    def _raise_errors(self, run: Run) -> None:
        failure = unplanned(self._engine.failed, self._handlers)
        if failure is not None:
            raise failure
        missing = ", ".join("/".join(name) for name in run.unhandled())
        if missing:
            raise HandlerMissing(
                f"Jobs of {missing} are due, but this program has no handler for them. Import the "
                "module that defines it, or ignore them with run_all(raise_errors=False)."
            )

    def _check_ready(self) -> None:
        if not self._is_open:
            raise ConfigurationError(
                "This sandbox is closed, so its jobs cannot run. Call run_all inside the with "
                "block."
            )
        if self._is_running:
            raise ConfigurationError(
                "This sandbox is already running its jobs. A handler needs no run_all: the jobs it "
                "creates run as well."
            )

    # -- planned failures and created jobs -----------------------------------------------------

    def fail_next(self, job: Job[Any, Any], error: Error, *, times: int = 1) -> None:
        """Make the next attempts at jobs of this type raise `error` instead of calling the handler.

        `error` may be any exception, including `Fail`, `RetryIn`, `Snooze` and `Cancelled`.
        """
        if not isinstance(job, Job):
            raise ConfigurationError(
                f"{job!r} is not a job. Pass the job itself: fail_next(confirm, error)."
            )
        self._handlers.plan(job.job_type, error, checks.whole_number("times", times, least=1))

    @overload
    def created(self, job: Job[P, R], /) -> list[CreatedJob[P, R]]: ...
    @overload
    def created(self, job: str = "", /) -> list[CreatedJob[Any, Any]]: ...
    def created(self, job: Job[Any, Any] | str = "", /) -> list[CreatedJob[Any, Any]]:
        """Return the created jobs, of this type or all, in order, in their present state.

        The type may be named: `"confirm"` or `"shop/confirm"`. Jobs of a transaction that is still
        open are not among them.
        """
        names = self._names(job) if job else None
        job_type = job.job_type if isinstance(job, Job) else None
        return [
            created_job(record, outcome, job_type or self._type_of(record))
            for record, outcome in self._engine.jobs()
            if names is None or _name(record) in names
        ]

    def _names(self, job: Job[Any, Any] | str) -> frozenset[str]:
        """Return which types, as `service/type`, a job or a name means."""
        if isinstance(job, Job):
            return frozenset({f"{job.job_type.service}/{job.job_type.name}"})
        if not isinstance(job, str):
            raise ConfigurationError(
                f"{job!r} is not a job. Pass the job itself, created(confirm), or its name."
            )
        known = {_name(record) for record, _ in self._engine.jobs()} | self._services.names()
        found = frozenset(each for each in known if job in {each, each.partition("/")[2]})
        if not found:
            near = get_close_matches(job, {each.partition("/")[2] for each in known}, 1)
            hint = (
                f"Did you mean {near[0]!r}?" if near else "Pass the job itself: created(confirm)."
            )
            raise ConfigurationError(f"There is no job type {job!r} in this program. {hint}")
        return found

    def assert_empty(self) -> None:
        """Raise `JobsLeft` if any job waits or runs."""
        left = self._engine.live_jobs()
        if left:
            raise JobsLeft(_describe_left(left, self.clock.now()))

    def _type_of(self, record: JobRecord) -> JobType | None:
        definition = record.definition
        found = self._services.find((definition.service, definition.type), handled=False)
        return None if found is None else found[1]


def sandbox(
    *, concurrency: int = 1, start: datetime | None = None, schedules: Sequence[Service] = ()
) -> Sandbox:
    """Keep the jobs of every service in memory during a `with` or `async with` block.

    The clock starts at `start` (by default now) and moves only by `advance`. `concurrency` is how
    many jobs run at the same time; by default one, so that their order is always the same. The
    schedules of the services in `schedules` are due when the clock says so, at the next `run_all`.

    >>> from trellis import Service
    >>> app = Service("hello")
    >>> @app.job
    ... def greet(name: str) -> str:
    ...     return f"Hello, {name}!"
    >>> import asyncio
    >>> with sandbox() as box:
    ...     _ = asyncio.run(greet.create("world"))
    ...     _ = box.run_all_sync()
    ...     box.created(greet)[0].result
    'Hello, world!'
    """
    return Sandbox(concurrency=concurrency, start=start, schedules=schedules)


def _refuse_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise CalledFromLoop(
        "run_all_sync was called in a running event loop and would block everything on it. "
        "Write: await box.run_all(...)"
    )


def _stuck(timeout: Duration, running: Sequence[JobRecord]) -> SandboxStuck:
    names = ", ".join(dict.fromkeys(_name(record) for record in running))
    what = f"{names} still runs" if names else "they still create new jobs"
    return SandboxStuck(
        f"The jobs did not end within {in_words(checks.duration('timeout', timeout))}: "
        f"{what}. If a handler waits for another job, use sandbox(concurrency=2) or more; if it "
        "only takes long, pass a longer timeout to run_all."
    )


def _describe_left(left: Sequence[JobRecord], now: Instant) -> str:
    lines = [
        f"  {_name(record)} {record.definition.id}: {_describe_state(record, now)}"
        for record in left
    ]
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    count = "1 job is" if len(left) == 1 else f"{len(left)} jobs are"
    return "\n".join([f"{count} left over:", *lines[:_SHOWN], *more])


def _describe_state(record: JobRecord, now: Instant) -> str:
    head = record.head
    why = f" ({head.error.message})" if head.error is not None else ""
    when = f", due in {in_words(head.run_at - now)}" if head.run_at > now else ", due now"
    return f"{head.state}{when if head.state in WAITING else ''}{why}"


def _name(record: JobRecord) -> str:
    return f"{record.definition.service}/{record.definition.type}"
