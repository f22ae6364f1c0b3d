"""The health port of a guardian: `/healthz`, `/readyz` and `/metrics` over plain HTTP.

The guardian answers, so a worker process that hangs cannot keep a probe waiting. It answers GET and
HEAD of these three paths and nothing else; answers contain names of types and queues and numbers,
never anything of a job.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Final, NamedTuple

from trellis.errors import ConfigurationError

#: The longest head of a request, and how many seconds a client may take for it.
_MOST: Final = 8192
_LIMIT: Final = 5.0


class Answer(NamedTuple):
    """An answer to a request."""

    status: HTTPStatus
    text: str
    content_type: str = "application/json"


def as_json(code: HTTPStatus, **fields: object) -> Answer:
    """Return an answer with these fields."""
    return Answer(code, json.dumps(fields) + "\n")


#: Returns the answer for a path.
Route = Callable[[], Awaitable[Answer]]


@asynccontextmanager
async def listening(host: str, port: int, routes: dict[str, Route]) -> AsyncIterator[str]:
    """Answer requests until the block ends; the value is the address in use, as a URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(_LIMIT):
                head = await reader.readuntil(b"\r\n\r\n")
            answer, has_body = await _answer(head, routes)
            writer.write(_written(answer, has_body=has_body))
            await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(serve, host, port, limit=_MOST)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"The health port cannot listen on {host}:{port}: {error}. Choose another with "
            "--health-port; 0 takes a free one."
        ) from error
    address, actual = server.sockets[0].getsockname()[:2]
    name = f"[{address}]" if ":" in address else address
    try:
        yield f"http://{name}:{actual}"
    finally:
        server.close()


async def _answer(head: bytes, routes: dict[str, Route]) -> tuple[Answer, bool]:
    """Return the answer to a request, and whether its body is sent."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    method, target = (words[0], words[1]) if len(words) > 1 else ("", "")
    if method not in {"GET", "HEAD"}:
        return as_json(HTTPStatus.METHOD_NOT_ALLOWED, error="Use GET."), True
    route = routes.get(target.partition("?")[0])
    if route is None:
        paths = ", ".join(routes)
        return as_json(HTTPStatus.NOT_FOUND, error=f"Known paths: {paths}."), method == "GET"
    return await route(), method == "GET"


def _written(answer: Answer, *, has_body: bool) -> bytes:
    body = answer.text.encode()
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if has_body else b"")
