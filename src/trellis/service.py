"""A service: declares job types, creates their jobs and runs workers for them.

Making a `Service` opens nothing: its engine is opened at first use (`client/engine_access.py`).
`work` runs one worker for several services; the command line calls it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from trellis.client.engine_access import EngineAccess
from trellis.client.job import Job
from trellis.config import WorkerSettings, environment, worker_settings
from trellis.core.durations import Duration
from trellis.core.names import check_service
from trellis.declaration.imports import check_included, import_included
from trellis.declaration.job_type import JobType, declare_handler
from trellis.declaration.options import DeclareOptions, TypeOptions, check_options, with_defaults
from trellis.declaration.worker_location import Lifespan, WorkerLocation, worker_url
from trellis.engines.redaction import shown
from trellis.errors import ConfigurationError, UnknownJobType
from trellis.portal import synced
from trellis.worker.active_job import ActiveJob
from trellis.worker.handler_call import run_inline
from trellis.worker.shared_status import SharedStatus
from trellis.worker.supervisor import Supervisor

BlockParams = ParamSpec("BlockParams")
P = TypeVar("P")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


class JobDecorator(Protocol):
    """The decorator that `@service.job(...)` returns: makes a `Job` of a handler."""

    @overload
    def __call__(self, handler: Callable[[ActiveJob[P]], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[], Awaitable[R]], /) -> Job[None, R]: ...
    @overload
    def __call__(self, handler: Callable[[ActiveJob[P]], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[P], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[], R], /) -> Job[None, R]: ...


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


class AsyncBlock(AbstractAsyncContextManager[T_co, bool | None], Generic[T_co]):
    """A context manager for `async with` only; a plain `with` raises an error with advice."""

    def __init__(self, inner: AbstractAsyncContextManager[T_co], advice: str) -> None:
        self._inner = inner
        self._advice = advice

    async def __aenter__(self) -> T_co:
        return await self._inner.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # type checkers already reject a plain `with`

        def __enter__(self) -> NoReturn:
            raise ConfigurationError(self._advice)

        def __exit__(self, *_: object) -> None:
            """Do nothing; Python looks for this method before it calls `__enter__`."""


def async_block(
    advice: str,
) -> Callable[
    [Callable[BlockParams, AsyncIterator[T_co]]], Callable[BlockParams, AsyncBlock[T_co]]
]:
    """Make an `AsyncBlock` of an async generator; `advice` is the error for a plain `with`."""

    def decorate(
        function: Callable[BlockParams, AsyncIterator[T_co]],
    ) -> Callable[BlockParams, AsyncBlock[T_co]]:
        make = asynccontextmanager(function)

        @wraps(function)
        def open_block(
            *arguments: BlockParams.args, **options: BlockParams.kwargs
        ) -> AsyncBlock[T_co]:
            return AsyncBlock(make(*arguments, **options), advice)

        return open_block

    return decorate


class Service:
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
        self.defaults: DeclareOptions = {} if defaults is None else defaults
        check_options(self.defaults, DeclareOptions, "The defaults of a service")
        #: Modules with more handlers; see `load_included`.
        self.include = check_included(include)
        self._connection = EngineAccess(worker_url(name) or url, self)
        self._types: dict[str, JobType] = {}
        self._lifespan: Lifespan | None = None

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
    def job(self, handler: Callable[[P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def job(self, handler: Callable[[], Awaitable[R]], /) -> Job[None, R]: ...
    @overload
    def job(self, handler: Callable[[ActiveJob[P]], R], /) -> Job[P, R]: ...
    @overload
    def job(self, handler: Callable[[P], R], /) -> Job[P, R]: ...
    @overload
    def job(self, handler: Callable[[], R], /) -> Job[None, R]: ...
    @overload
    def job(self, /, **options: Unpack[TypeOptions]) -> JobDecorator: ...
    def job(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a job type by its handler: `@app.job`, or `@app.job(timeout="10m", ...)`.

        The handler takes the payload, an `ActiveJob[...]` of it, or nothing. A plain function runs
        in a thread. See `TypeOptions` for the policies.
        """

        def declare(function: Callable[..., Any]) -> Job[Any, Any]:
            merged = with_defaults(self.defaults, cast("TypeOptions", options))
            job_type = declare_handler(self.name, function, **merged)
            return Job(self._register(job_type), self._connection, run_inline)

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
        return Declaration(job_type, self._connection, run_inline)

    def find(self, name: str) -> Job[Any, Any]:
        """Return the job type of this name; raise `UnknownJobType` if there is none."""
        job_type = self._types.get(name)
        if job_type is None:
            known = ", ".join(sorted(self._types)) or "none"
            raise UnknownJobType(f"Service {self.name!r} has no job type {name!r}, but: {known}.")
        return Job(job_type, self._connection, run_inline)

    def lifespan(self, make: Lifespan) -> Lifespan:
        """Set up state that handlers share, once per worker process, as `job.state`.

        Decorate a function that returns an asynchronous context manager.
        """
        self._lifespan = make
        return make

    def load_included(self) -> None:
        """Import the modules this service includes, so that their handlers are known.

        Workers and the command line call this; a program that only creates jobs need not.
        """
        for module in self.include:
            import_included(self.name, module)

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
        settings = worker_settings(environment()).with_options(
            concurrency=concurrency, lease=lease, grace=grace, poll=poll
        )
        async with work([self], settings) as supervisor:
            yield supervisor

    def _register(self, job_type: JobType) -> JobType:
        if job_type.name in self._types:
            raise ConfigurationError(
                f"Service {self.name!r} already has a job type {job_type.name!r}. "
                "Give one of them another name=."
            )
        self._types[job_type.name] = job_type
        return job_type


@asynccontextmanager
async def work(
    services: Sequence[Service], settings: WorkerSettings, *, status: SharedStatus | None = None
) -> AsyncIterator[Supervisor]:
    """Run the jobs of these services in one worker; all must have the same URL.

    With a status, a guardian watches this process and settles its jobs if it dies.
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
        )  # fmt: skip
        yield await stack.enter_async_context(supervisor)
