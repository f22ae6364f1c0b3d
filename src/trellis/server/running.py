"""The server process: uvicorn with an end to slow clients, and to streams when it stops.

uvicorn waits without end for the header of a request; here a connection whose header does not
arrive in time is closed. A client that takes nothing from its connection is cut off by the kernel.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any, Final, cast

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from trellis.server.app import stop_streams

#: Seconds for open requests when the server stops.
GRACE: Final = 10
#: Seconds within which the header of a request must have arrived.
HEADER_SECONDS: Final = 10.0
#: Seconds after which an idle connection is closed.
_KEEP_ALIVE: Final = 15
#: Connections at the same time beside those of streams; others get 503. A worker has up to five.
_CONNECTIONS: Final = 4000
#: Descriptors for all else: the database, logs, sockets that listen.
_OTHER_FILES: Final = 200
_HEADER_BYTES: Final = 64 * 1024
#: Milliseconds after which the kernel ends a connection whose client takes nothing.
_UNTAKEN: Final = 60_000


def configure(app: FastAPI, host: str, port: int, **options: Any) -> uvicorn.Config:  # noqa: ANN401 - uvicorn's
    """Return how the server runs."""
    return uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, server_header=False,
        http=Protocol, ws="none", timeout_graceful_shutdown=GRACE, timeout_keep_alive=_KEEP_ALIVE,
        limit_concurrency=_most_connections(_CONNECTIONS + app.state.limits.streams),
        h11_max_incomplete_event_size=_HEADER_BYTES, **options,
    )  # fmt: skip


def _most_connections(wanted: int) -> int:
    """Return how many connections are served; take as many descriptors as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(allowed - _OTHER_FILES, _OTHER_FILES)


def listen(config: uvicorn.Config) -> socket.socket:
    """Return the socket; from here on callers wait until the server has started."""
    bound = config.bind_socket()
    # Only on a socket that is named as TCP does asyncio send each answer at once (TCP_NODELAY).
    listening = socket.socket(bound.family, bound.type, socket.IPPROTO_TCP, fileno=bound.detach())
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN)
    listening.listen(config.backlog)
    return listening


class Server(uvicorn.Server):
    """A server that ends its streams before it waits for its connections."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: accept nothing new, end streams, wait for open requests within the grace."""
        app = cast("FastAPI", self.config.app)
        stop_streams(app)
        app.state.remote.hints.end()  # or it would wait for the long polls of workers
        await super().shutdown(sockets)


class Protocol(H11Protocol):
    """A connection that is closed if the header of a request does not arrive in time."""

    header_seconds = HEADER_SECONDS
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch_header()

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        super().data_received(data)
        self._watch_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        if self._header_timer is not None:
            self._header_timer.cancel()
        super().connection_lost(exc)

    def _watch_header(self) -> None:
        """Start the timer when a header begins; end it when the header is complete."""
        is_waiting = self.conn.their_state is h11.IDLE
        if is_waiting and self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_seconds, self.transport.abort)
        elif not is_waiting and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
