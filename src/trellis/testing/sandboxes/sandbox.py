"""A sandbox: every service of the program on a memory engine of its own, with a clock to turn.

The program is not changed. Whatever it creates is admitted as always; `run_all` runs it in the
real worker runtime. Nothing runs by itself and no time passes by itself, so a test decides both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
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
    """What `sandbox()` gives a test."""

    def __init__(self, *, concurrency: int = 1, start: datetime | None = None) -> None:
        #: Where every service says its jobs are kept.
        self.url = "memory://"
        begin = datetime.now(UTC) if start is None else start
        #: The clock by which everything in the sandbox goes.
        self.clock = ManualClock(to_instant(begin))
        self._settings = WorkerSettings().with_options(
            concurrency=concurrency, grace="0s", poll="20ms"
        )
        self._engine = SandboxEngine(self.clock)
        self._engines = LoopEngines(lambda: self._engine)
        self._services = Services()
        self._handlers = Handlers()
        self._is_open = False
        self._is_running = False

    # -- its life ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._is_open:
            raise ConfigurationError("This sandbox is entered already. Make another: sandbox().")
        self._is_open = True
        enter_override(self)
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
        """Return the engines of the sandbox for this service."""
        self._services.note(owner)
        return self._engines

    @property
    def engine(self) -> Engine:
        """The engine that keeps the jobs."""
        return self._engine

    @property
    def operator(self) -> Operator:
        """What `trellis.connect` gives operators, for the jobs of this sandbox."""
        return Operator(self._engine, actor="test")

    # -- time ----------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What the clock shows."""
        return to_datetime(self.clock.now())

    def advance(self, span: Duration) -> None:
        """Let time pass. Nothing runs by that alone: `run_all` runs what has come due."""
        self.clock.advance_micros(checks.duration("span", span))

    # -- running -------------------------------------------------------------------------------

    async def run_all(
        self,
        *,
        advance: bool = False,
        raise_errors: bool = True,
        timeout: Duration = "30s",  # noqa: ASYNC109 - it is a span
    ) -> int:
        """Run every job that is due, and all that these create; return how many attempts it took.

        `advance` turns the clock on to whatever comes due next (retries, delays, deadlines) until
        nothing waits for its time. A failure that was not planned with `fail_next` raises
        `HandlerFailed` once everything has run, unless `raise_errors` is False. `timeout` is real
        time: jobs that do not come to an end raise `SandboxStuck`.
        """
        return await self._run(None, timeout, advance=advance, raise_errors=raise_errors)

    def run_all_sync(
        self, *, advance: bool = False, raise_errors: bool = True, timeout: Duration = "30s"
    ) -> int:
        """Do what `run_all` does, for plain tests; handlers that are plain run in this thread."""
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
        self._refuse_if_unready()
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
                raise  # a lifespan's own
            raise _stuck(limit, run.interrupted) from None
        finally:
            self._is_running = False
        if raise_errors:
            self._complain(run)
        return self._engine.claimed - claimed

    async def _run_until_done(self, run: Run, *, advance: bool) -> None:
        await run.everything_due()
        while advance and (moment := self._engine.next_moment()) is not None:
            self.clock.advance_to(moment)
            await run.everything_due()

    def _complain(self, run: Run) -> None:
        failure = unplanned(self._engine.failed, self._handlers)
        if failure is not None:
            raise failure
        missing = ", ".join("/".join(place) for place in run.unhandled())
        if missing:
            raise HandlerMissing(
                f"Jobs of {missing} are due, but no handler for them is known here. Import the "
                "module that defines it, or let them be with run_all(raise_errors=False)."
            )

    def _refuse_if_unready(self) -> None:
        if not self._is_open:
            raise ConfigurationError(
                "This sandbox is over, so its jobs can no longer run. Call run_all inside the "
                "with block."
            )
        if self._is_running:
            raise ConfigurationError(
                "This sandbox is running its jobs already. A handler needs no run_all: what it "
                "creates runs too."
            )

    # -- what a test plans and sees ------------------------------------------------------------

    def fail_next(self, job: Job[Any, Any], error: Error, *, times: int = 1) -> None:
        """Make the next attempts at jobs of this type raise `error` instead of calling the handler.

        Any exception will do, also `Fail`, `RetryIn`, `Snooze` and `Cancelled`.
        """
        self._handlers.plan(job.job_type, error, checks.whole_number("times", times, least=1))

    @overload
    def created(self, job: Job[P, R], /) -> list[CreatedJob[P, R]]: ...
    @overload
    def created(self, /) -> list[CreatedJob[Any, Any]]: ...
    def created(self, job: Job[Any, Any] | None = None, /) -> list[CreatedJob[Any, Any]]:
        """Return what was created, of this type or at all, in order, and where it stands now."""
        wanted = None if job is None else job.job_type
        return [
            created_job(record, outcome, wanted or self._type_of(record))
            for record, outcome in self._engine.jobs()
            if wanted is None or _is_of(record, wanted)
        ]

    def assert_empty(self) -> None:
        """Raise `JobsLeft` if a job waits or runs, now or later."""
        left = self._engine.live_jobs()
        if left:
            raise JobsLeft(_describe_left(left, self.clock.now()))

    def _type_of(self, record: JobRecord) -> JobType | None:
        definition = record.definition
        found = self._services.find((definition.service, definition.type), handled=False)
        return None if found is None else found[1]


def sandbox(*, concurrency: int = 1, start: datetime | None = None) -> Sandbox:
    """Keep the jobs of every service in memory, for the length of a `with` or `async with` block.

    The clock stands still, at `start` or at the present moment, until `advance` turns it on.
    `concurrency` is how many jobs run at the same time; one, unless told otherwise, so that their
    order is always the same.

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
    return Sandbox(concurrency=concurrency, start=start)


def _is_of(record: JobRecord, job_type: JobType) -> bool:
    definition = record.definition
    return (definition.service, definition.type) == (job_type.service, job_type.name)


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
    what = f"still in {names}" if names else "still creating work for each other"
    return SandboxStuck(
        f"The jobs did not come to an end within {in_words(checks.duration('timeout', timeout))}: "
        f"{what}. If a handler waits for another job, it needs sandbox(concurrency=2) or more; "
        "if it only takes long, give run_all a longer timeout."
    )


def _describe_left(left: Sequence[JobRecord], now: Instant) -> str:
    lines = [
        f"  {_name(record)} {record.definition.id}: {_standing(record, now)}" for record in left
    ]
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    count = "1 job is" if len(left) == 1 else f"{len(left)} jobs are"
    return "\n".join([f"{count} left over:", *lines[:_SHOWN], *more])


def _standing(record: JobRecord, now: Instant) -> str:
    head = record.head
    why = f" ({head.error.message})" if head.error is not None else ""
    when = f", due in {in_words(head.run_at - now)}" if head.run_at > now else ", due now"
    return f"{head.state}{when if head.state in WAITING else ''}{why}"


def _name(record: JobRecord) -> str:
    return f"{record.definition.service}/{record.definition.type}"
