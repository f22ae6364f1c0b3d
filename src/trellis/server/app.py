"""The application: one engine, the routes, and what surrounds every request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import cache, partial
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from trellis import __version__
from trellis.client.submission import Batcher
from trellis.engines.port import Engine
from trellis.errors import EngineError
from trellis.operations.operator import Operator, connect
from trellis.server import (
    access,
    bulk,
    engine_verbs,
    jobs,
    login,
    metrics,
    problems,
    profiles,
    store,
    stream,
    traces,
)
from trellis.server.document import describe
from trellis.server.known_types import KnownTypes
from trellis.server.limits import Limits, Requests, Streams
from trellis.server.live import Live
from trellis.server.maintenance import maintaining
from trellis.server.profiles.attempt_log import AttemptLogs
from trellis.server.token_reads import TokenReads
from trellis.telemetry.store import exporting


def create_app(
    url: str | None = None,
    *,
    engine: Engine | None = None,
    hosts: Iterable[str] = (),
    no_auth: bool = False,
    behind_proxy: bool = False,
    limits: Limits | None = None,
    maintenance: bool = False,
    beside: AbstractAsyncContextManager[object] | None = None,
) -> FastAPI:
    """Return the HTTP API of the jobs at a URL, else at `TRELLIS_URL`; mount it, or serve it.

    An engine that is given must be open and stays open. `hosts` are the names by which the server
    is called, beside those of the machine itself. With `no_auth` every caller may do everything.
    `behind_proxy`: callers reach it by https although it sees http. With `maintenance` this process
    can lead the maintenance, as a worker can. `beside` is entered before the first request.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(beside or nullcontext())
            if engine is not None:
                app.state.operator = Operator(engine)
            else:
                app.state.operator = await stack.enter_async_context(connect(url))
            served = app.state.operator.engine
            _prepare(app, served)
            stack.push_async_callback(app.state.batcher.close)
            stack.enter_context(exporting(served))
            await stack.enter_async_context(engine_verbs.serving(app, served))
            await stack.enter_async_context(maintaining(served, on=maintenance))
            stack.push_async_callback(app.state.live.close)
            yield
            stop_streams(app)

    app = FastAPI(
        title="Trellis",
        version=__version__,
        description="Durable jobs: create them, look at them, change them.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.is_open, app.state.url = no_auth, url
    app.state.is_encrypted = behind_proxy
    _furnish(app, tuple(hosts), limits or Limits())
    return app


def _prepare(app: FastAPI, engine: Engine) -> None:
    """Make what requests share."""
    app.state.live = Live(engine)
    app.state.known_types = KnownTypes(engine)
    app.state.token_reads = TokenReads(engine)
    app.state.batcher = Batcher(engine)
    app.state.attempt_logs = AttemptLogs(engine)


def _furnish(app: FastAPI, hosts: tuple[str, ...], limits: Limits) -> None:
    """Add the routes, and what surrounds every request."""
    #: Where a browser goes after a login; below the folder of /login.
    app.state.home = "api/v1/session"
    app.state.limits = limits
    app.state.requests = Requests(limits)
    app.state.streams = Streams(limits)
    app.state.open_streams = set()
    problems.install(app)
    app.add_middleware(traces.TraceRequests)
    app.add_middleware(access.Guard, hosts=hosts, limits=limits)
    for each in (bulk, engine_verbs, jobs, store, stream, login, profiles):
        app.include_router(each.router)
    metrics.install(app)
    app.add_api_route("/healthz", _healthz, tags=["health"])
    app.add_api_route("/readyz", _readyz, tags=["health"])
    app.openapi = cache(partial(describe, app))  # type: ignore[method-assign]


def stop_streams(app: FastAPI) -> None:
    """End all open streams; call it before a server waits for its connections to end."""
    for each in [*app.state.open_streams]:
        each.stop()


async def _healthz() -> dict[str, str]:
    """Answer as long as the process works."""
    return {"status": "ok"}


async def _readyz(request: Request) -> JSONResponse:
    """Answer 200 while the engine answers, else 503."""
    try:
        await request.app.state.operator.engine.now()
    except EngineError as error:
        status = HTTPStatus.SERVICE_UNAVAILABLE
        return problems.problem(status, error.code, "The engine does not answer.")
    return JSONResponse({"status": "ready"})
