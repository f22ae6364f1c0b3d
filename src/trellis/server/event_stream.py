"""Server-sent events as an answer: the format, the end of a client that is gone or reads nothing.

Text is written to the socket as the client reads it. While the buffer of the connection is full,
nothing more is made; a client that reads nothing for too long is disconnected and can resume.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPE: Final = "text/event-stream"
_logger = logging.getLogger(__name__)


def event(name: str, data: str, position: str | None = None) -> str:
    r"""Return one event; `data` is one line of JSON, `position` is where to resume after it.

    >>> event("log", "{}", "s0.7")
    'event: log\nid: s0.7\ndata: {}\n\n'
    """
    place = "" if position is None else f"id: {position}\n"
    return f"event: {name}\n{place}data: {data}\n\n"


def heartbeat(position: str) -> str:
    """Return a comment; the position moves on although there is no event."""
    return f": heartbeat\nid: {position}\n\n"


def ending(comment: str, retry_ms: int) -> str:
    """Return the last words: when the client may connect again."""
    return f": {comment}\nretry: {retry_ms}\n\n"


class EventStream(Response):
    """An answer that ends when its events do, or when the client is gone."""

    media_type = MEDIA_TYPE

    def __init__(
        self, blocks: AsyncGenerator[str, None], patience: float, on_end: Callable[[], None]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._blocks = blocks
        #: Seconds after which a client that reads nothing is disconnected.
        self._patience = patience
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the events; return when the client is gone."""
        tasks = {
            asyncio.create_task(self._send_all(send)),
            asyncio.create_task(_until_gone(receive)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._on_end()
        for task in done:
            task.result()

    async def _send_all(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        async with aclosing(self._blocks) as blocks:
            async for block in blocks:
                try:
                    async with asyncio.timeout(self._patience):
                        await send(_body(block, more=True))
                except TimeoutError:
                    _logger.warning(
                        "A stream ends: its client has read nothing for %g seconds", self._patience
                    )
                    return
        await send(_body("", more=False))


def _body(text: str, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
