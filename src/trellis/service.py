"""A service: declares job types, creates their jobs and runs workers for them.

Making a `Service` opens nothing: its engine is opened at first use (`client/engine_access.py`).
`work` runs one worker for several services; the command line calls it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import (
    Any,
    Final,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from trellis.client.batches import BatchOptions, BatchRef, OpenBatch, is_keyed, new_batch
from trellis.client.engine_access import EngineAccess
from trellis.client.job import InlineCalls, Job
from trellis.client.workflow import Workflow
from trellis.config import WorkerSettings, environment, worker_settings
from trellis.core.contracts import Contract
from trellis.core.durations import SECOND, Duration
from trellis.core.limits import NO_LIMIT, Limit
from trellis.core.names import check_queue, check_service
from trellis.core.policy import HookOn
from trellis.core.schedules import Declared, Schedule
from trellis.declaration import checks
from trellis.declaration.contract import ContractSource, contract_of, declared_types
from trellis.declaration.extensions import Extensible, check_arounds
from trellis.declaration.hooks import Outcome, declare_hook_type, hook_of
from trellis.declaration.imports import check_included, import_included
from trellis.declaration.job_type import JobType, check_defaults, declare_handler
from trellis.declaration.limits import declared_limits
from trellis.declaration.options import DeclareOptions, TypeOptions, check_limit, with_defaults
from trellis.declaration.schedules import DeclaredSchedules, ScheduleOptions
from trellis.declaration.signature import Handler
from trellis.declaration.worker_location import Lifespan, WorkerLocation, worker_url
from trellis.engines import check_url
from trellis.engines.port import Engine
from trellis.engines.redaction import shown
from trellis.errors import ConfigurationError, UnknownJobType
from trellis.insight.feed import ChangeFeed, ChangeFilters
from trellis.job_decorator import HandlerWithDefault, JobDecorator
from trellis.operations.contracts import deploy_all
from trellis.portal import async_block, iterated, synced
from trellis.schedules import declare_schedules
from trellis.worker.active_job import ActiveJob
from trellis.worker.handler_call import run_inline, run_inline_sync
from trellis.worker.locks import LockPart, read_names
from trellis.worker.service_lock import ServiceLock
from trellis.worker.shared_status import SharedStatus
from trellis.worker.supervisor import Supervisor

P = TypeVar("P")
R = TypeVar("R")
_INLINE: Final = InlineCalls(run_inline, run_inline_sync)


class Declaration(Job[P, R]):
    """A job type whose handler may be in another module: callers import only this."""

    @overload
    def handler(self, handler: Callable[[ActiveJob[P]], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def handler(self, handler: Callable[[P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def handler(self, handler: Callable[[ActiveJob[P]], R], /) -> Job[P, R]: ...
    @overload
    def handler(self, handler: Callable[[P], R], /) -> Job[P, R]: ...
    def handler(self, handler: Callable[..., Any], /) -> Job[P, R]:
        """Make this function the handler of the declared type."""
        self.job_type.attach(handler)
        return self


class Service(Extensible):
    """A named program that owns job types.

    `async with service:` (or `with service:`) connects and disconnects; without it the first use
    connects. `defaults` are options for all its types, `include` names modules with handlers.

    >>> app = Service("hello")
    >>> @app.job
    ... async def greet(name: str) -> str:
    ...     return f"Hello, {name}!"
    """

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        defaults: DeclareOptions | None = None,
        include: Sequence[str] = (),
    ) -> None:
        self.name = check_service(name)
        #: Options of every type of this service that does not set them.
        self.defaults = check_defaults({} if defaults is None else defaults)
        #: Modules with more handlers; see `load_included`.
        self.include = check_included(include)
        if url:
            check_url(url)
        self._connection = EngineAccess(worker_url(name) or url, self)
        self._types: dict[str, JobType] = {}
        self._schedules = DeclaredSchedules(self.name)
        self._queue_limits: dict[str, Limit] = {}
        self._lifespan: Lifespan | None = None
        super().__init__()
        self._held_locks: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"<service {self.name}>"

    @property
    def url(self) -> str:
        """Where its jobs are kept: as given, else `TRELLIS_URL`, else `sqlite:///trellis.db`."""
        return self._connection.url

    @property
    def connection(self) -> EngineAccess:
        """Access to the engine behind this service."""
        return self._connection

    @property
    def make_lifespan(self) -> Lifespan | None:
        """The function that sets up the state shared by handlers, if any."""
        return self._lifespan

    @property
    def job_types(self) -> tuple[JobType, ...]:
        """Every declared type."""
        return tuple(self._types.values())

    # -- job types -----------------------------------------------------------------------------

    @overload
    def job(self, handler: Callable[[ActiveJob[P]], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def job(self, handler: HandlerWithDefault[P, Awaitable[R]], /) -> Job[P | None, R]: ...
    @overload
    def job(self, handler: Callable[[P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def job(  # type: ignore[overload-overlap] # coroutines with a default come before
        self, handler: Callable[[], Awaitable[R]], /
    ) -> Job[None, R]: ...
    @overload
    def job(self, handler: Callable[[ActiveJob[P]], R], /) -> Job[P, R]: ...
    @overload
    def job(self, handler: HandlerWithDefault[P, R], /) -> Job[P | None, R]: ...
    @overload
    def job(self, handler: Callable[[P], R], /) -> Job[P, R]: ...
    @overload
    def job(self, handler: Callable[[], R], /) -> Job[None, R]: ...
    @overload
    def job(self, /, **options: Unpack[TypeOptions]) -> JobDecorator: ...
    def job(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a job type by its handler: `@app.job`, or `@app.job(timeout="10m", ...)`.

        The handler takes the payload, an `ActiveJob[...]` of it, or nothing. A plain function runs
        in a thread. The options and their defaults are in `docs/reference/options.md` and, as
        `TypeOptions`, in `trellis.declaration.options`.
        """

        def declare(function: Callable[..., Any]) -> Job[Any, Any]:
            merged = with_defaults(self.defaults, cast("TypeOptions", options))
            job_type = declare_handler(self.name, function, **merged)
            return Job(self._register(job_type), self._connection, _INLINE)

        return declare if handler is None else declare(handler)

    @overload
    def declare(
        self, name: str, *, payload: type[P], result: type[R], **options: Unpack[DeclareOptions]
    ) -> Declaration[P, R]: ...
    @overload
    def declare(
        self, name: str, *, payload: None = None, result: type[R], **options: Unpack[DeclareOptions]
    ) -> Declaration[None, R]: ...
    def declare(
        self,
        name: str,
        *,
        payload: object = None,
        result: object,
        **options: Unpack[DeclareOptions],
    ) -> Declaration[Any, Any]:
        """Declare a job type for callers that must not import its handler."""
        merged = with_defaults(self.defaults, TypeOptions(name=name, **options))
        job_type = self._register(JobType(self.name, payload, result, **merged))
        return Declaration(job_type, self._connection, _INLINE)

    def declare_all(self, contract: ContractSource) -> dict[str, Declaration[Any, Any]]:
        """Declare every job type of a contract: a file, or its document.

        For programs that create jobs and have neither handlers nor Python types of them. Payloads
        are plain data, checked against the schemas of the contract.
        """
        return {
            each.name: Declaration(self._register(each), self._connection, _INLINE)
            for each in declared_types(contract, self.name)
        }

    @property
    def contract(self) -> Contract:
        """The contract of all declared types."""
        return contract_of(self.name, self._types.values())

    def find(self, name: str) -> Job[Any, Any]:
        """Return the job type of this name; raise `UnknownJobType` if there is none."""
        job_type = self._types.get(name)
        if job_type is None:
            known = ", ".join(sorted(self._types)) or "none"
            raise UnknownJobType(f"Service {self.name!r} has no job type {name!r}, but: {known}.")
        return Job(job_type, self._connection, _INLINE)

    @overload
    def schedule(
        self, when: str | None = None, /, **options: Unpack[ScheduleOptions]
    ) -> Callable[[Job[P, R]], Job[P, R]]: ...
    @overload
    def schedule(self, job: Job[P, R], /, **options: Unpack[ScheduleOptions]) -> Job[P, R]: ...
    def schedule(self, target: Any = None, /, **options: Unpack[ScheduleOptions]) -> Any:
        """Create jobs of a type at certain times: above `@app.job`, or with the job.

        `@app.schedule("0 3 * * *", tz="Europe/Vienna")` stands above `@app.job`. A job may have
        several: `app.schedule(job, every="15m", payload=..., name="quarterly")`. The options are in
        `docs/reference/options.md`. Workers store what is declared when they start.
        """
        if isinstance(target, Job):
            self._schedules.add(target.job_type, None, options)
            return target

        def decorate(job: Job[P, R]) -> Job[P, R]:
            if not isinstance(job, Job):
                raise ConfigurationError(
                    "A schedule belongs to a job: write @service.schedule(...) above @service.job, "
                    "not below it."
                )
            self._schedules.add(job.job_type, target, options)
            return job

        return decorate

    @property
    def schedules(self) -> tuple[Declared, ...]:
        """Every declared schedule."""
        return self._schedules.declared()

    def workflow(self) -> Workflow:
        """Return an empty graph of jobs with names, which `create` stores together."""
        return Workflow(self._connection)

    def queue(self, name: str, *, limit: Limit) -> None:
        """Declare the limit of a queue over all workers: its jobs of all types share it.

        >>> Service("shop").queue("mails", limit=Limit(active=5, rate="100/1m"))
        """
        check_queue(checks.text("name", name, "mails"))
        if name in self._queue_limits:
            raise ConfigurationError(
                f"Service {self.name!r} has already declared a limit of its queue {name!r}. "
                "Declare one limit that has both parts: Limit(active=5, rate='100/1m')."
            )
        self._queue_limits[name] = check_limit(limit) or NO_LIMIT

    @property
    def queue_limits(self) -> dict[tuple[str, str], Limit]:
        """The declared limits of its queues, by service and queue."""
        return {(self.name, queue): limit for queue, limit in self._queue_limits.items()}

    def declare_hook(
        self, job_type: JobType, on: HookOn, function: Callable[..., Any], options: TypeOptions
    ) -> Job[Outcome, Any]:
        """Declare a job type that runs when a job of another type ends: `@job.on_failure`."""
        hook = declare_hook_type(job_type, on, function, options, self.defaults)
        job = Job[Outcome, Any](self._register(hook), self._connection, _INLINE)
        job_type.add_hook(hook_of(hook, on))
        return job

    # -- batches -------------------------------------------------------------------------------

    def batch(self, **options: Unpack[BatchOptions]) -> OpenBatch:
        """Group jobs: `async with app.batch(then=report) as batch:`, or with a plain `with`.

        Leaving the block seals the batch; an exception inside cancels it. When all members have
        finished, one job of `then` is created; its handler reads `job.batch.members()`. A block
        that may be run again, as in a handler, needs an `idempotency_key`.
        """
        new = new_batch(self.name, options)
        return OpenBatch(self._connection, new, is_repeatable=is_keyed(options))

    def batch_ref(self, batch_id: str) -> BatchRef:
        """Return the reference of a batch whose id was kept."""
        return BatchRef(checks.text("batch_id", batch_id, "01JC0000000000"), self._connection)

    def lifespan(self, make: Lifespan) -> Lifespan:
        """Set up state that handlers share, once per worker process, as `job.state`.

        Decorate a function that returns an asynchronous context manager.
        """
        self._lifespan = make
        return make

    def _handlers(self) -> list[Handler | None]:
        return [each.handler for each in self._types.values()]

    def load_included(self) -> None:
        """Import the modules this service includes, so that their handlers are known.

        Workers and the command line call this; a program that only creates jobs need not.
        """
        for module in self.include:
            import_included(self.name, module)

    # -- locks ---------------------------------------------------------------------------------

    @overload
    def lock(self, name: str, /, *parts: LockPart, wait: Duration | None = None) -> ServiceLock: ...
    @overload
    def lock(self, *names: tuple[LockPart, ...], wait: Duration | None = None) -> ServiceLock: ...
    def lock(self, *name: object, wait: Duration | None = None) -> ServiceLock:
        """Return the lock that handlers take as `job.lock`, for code outside of handlers.

        Hold it with `with` or `async with`; it waits without limit, or for `wait` and then raises
        `LockBusy`. If the engine cannot be reached for a whole lease, the lock is lost and the end
        of the block raises `LockLost`.
        """
        return ServiceLock(
            read_names(name),
            None if wait is None else checks.duration("wait", wait) / SECOND,
            borrow=self._connection.borrowed,
            lease=worker_settings(environment()).lease,
            held=self._held_locks,
        )

    # -- changes -------------------------------------------------------------------------------

    def changes(self, after: str | None = None, **filters: Unpack[ChangeFilters]) -> ChangeFeed:
        """Iterate over everything that happens to jobs of this service, without end.

        `after` is the cursor of a change: from there on, each change comes at least once. "now":
        what happens after the iteration began; None: all that is kept. Raises `CursorExpired` if
        changes after the cursor were removed by retention.
        """
        return ChangeFeed(self._connection.following, after, self.name, **filters)

    changes_sync = iterated(changes)

    # -- connecting and working ----------------------------------------------------------------

    async def open(self) -> Self:
        """Connect now, and stay connected until `close`; without it the first use connects."""
        await self._connection.hold()
        return self

    open_sync = synced(open)  # noqa: A003 - the method above is meant

    async def close(self) -> None:
        """Close the connection that `open` has opened."""
        await self._connection.release()

    close_sync = synced(close)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self.open_sync()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_sync()

    @async_block(
        "A worker needs asynchronous code: write async with app.worker(): ... To run it as a "
        "separate process, use: trellis worker your_module:app"
    )
    async def worker(
        self,
        *,
        concurrency: int | None = None,
        lease: Duration | None = None,
        grace: Duration | None = None,
        poll: Duration | None = None,
    ) -> AsyncIterator[Supervisor]:
        """Run the jobs of this service in this process until the block ends.

        Leaving the block stops gracefully: running handlers have `grace` (25 s) to finish, then
        they are interrupted and their jobs are given back.
        """
        settings = worker_settings(
            environment(), concurrency=concurrency, lease=lease, grace=grace, poll=poll
        )
        async with work([self], settings) as supervisor:
            yield supervisor

    def _register(self, job_type: JobType) -> JobType:
        if job_type.name in self._types:
            raise ConfigurationError(
                f"Service {self.name!r} already has a job type {job_type.name!r}. "
                "Give one of them another name=."
            )
        check_arounds([*self._extensions.arounds, *job_type.arounds], job_type.handler)
        job_type.extensions = self._extensions
        self._types[job_type.name] = job_type
        job_type.reach = self._connection.engine
        return job_type


@asynccontextmanager
async def work(
    services: Sequence[Service],
    settings: WorkerSettings,
    *,
    status: SharedStatus | None = None,
    apart: Mapping[str, float] | None = None,
) -> AsyncIterator[Supervisor]:
    """Run the jobs of these services in one worker; all must have the same URL.

    With a status, a guardian watches this process and settles its jobs if it dies. The types in
    `apart` crashed a worker process recently; they run in handler processes for this many seconds.
    """
    connection = services[0].connection
    for service in services:
        if service.url != connection.url:
            raise ConfigurationError(
                f"A worker has one engine, but {services[0].name} uses {shown(connection.url)} "
                f"and {service.name} uses {shown(service.url)}. Start two workers, or pass --url."
            )
    for service in services:
        service.load_included()
    handled = [each for service in services for each in service.job_types if each.handler]
    async with AsyncExitStack() as stack:
        engine, make = await stack.enter_async_context(connection.borrowed())
        contracts = await deploy_all(engine, services, settings)
        queues = {name: one for each in services for name, one in each.queue_limits.items()}
        await engine.declare_limits(declared_limits(handled, queues))
        states: dict[str, Any] = {}
        is_shared = engine.capabilities.processes
        locations = {
            one.name: WorkerLocation(one.url, is_shared, one.make_lifespan) for one in services
        }
        for service in services:
            if service.make_lifespan is not None:
                states[service.name] = await stack.enter_async_context(service.make_lifespan())
        supervisor = Supervisor(
            engine, make, handled, settings,
            states=states, locations=locations, status=status, guarded=status is not None,
            contracts=contracts,
        )  # fmt: skip
        for service in services:
            await _declare_schedules(engine, service, supervisor.type_names)
        supervisor.apart_types.replace(apart or {})
        yield await stack.enter_async_context(supervisor)


async def _declare_schedules(engine: Engine, service: Service, runs: Collection[str]) -> None:
    """Store the schedules of a service; retire those that its code no longer has.

    A worker speaks for the schedules of the types that it runs, and of types that are gone.
    """
    declared = {each.name for each in service.job_types}

    def owns(schedule: Schedule) -> bool:
        name = schedule.template.type
        return name not in declared or f"{service.name}/{name}" in runs

    await declare_schedules(engine, service.name, service.schedules, owns)
