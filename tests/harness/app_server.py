"""A real uvicorn server in a thread; an engine is served for as long as a test needs it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Final

import uvicorn

from tests.harness.servers.loops import LoopThread
from trellis.engines.port import Engine
from trellis.operations.operator import Operator
from trellis.server import create_app, engine_verbs
from trellis.server.token_reads import TokenReads

_PATIENCE: Final = 60


class AppServer:
    """Listens on a loopback port for its whole life; has one application, for one engine at a time.

    To make an application takes longer than most tests.
    """

    def __init__(self, *, no_auth: bool) -> None:
        self._app = create_app(no_auth=no_auth)
        self._thread = LoopThread("app-server")
        # Named as TCP, or asyncio leaves Nagle on for what it accepts: 40 ms for each answer.
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        config = uvicorn.Config(self._app, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._running = self._thread.start(self._server.serve(sockets=[self._socket]))
        deadline = time.monotonic() + _PATIENCE
        while not self._server.started:
            if self._running.done() or time.monotonic() > deadline:
                raise RuntimeError("The server did not start.")

    @property
    def url(self) -> str:
        """Where the HTTP engine finds it."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @contextmanager
    def serving(self, make: Callable[[], Engine]) -> Iterator[str]:
        """Serve an engine, which is made and opened on the server's loop; yield the URL."""
        stack = AsyncExitStack()
        self._thread.run(self._open(stack, make))
        try:
            yield self.url
        finally:
            self._thread.run(stack.aclose())

    def close(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._running.result(_PATIENCE)
        self._thread.stop()
        self._socket.close()

    async def _open(self, stack: AsyncExitStack, make: Callable[[], Engine]) -> None:
        engine = make()
        await engine.open()
        stack.push_async_callback(engine.close)
        self._app.state.operator = Operator(engine)
        self._app.state.token_reads = TokenReads(engine)
        await stack.enter_async_context(engine_verbs.serving(self._app, engine))
