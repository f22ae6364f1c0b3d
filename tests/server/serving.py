"""A real server in a thread, and a client of its streams that can be cut off anywhere."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import FastAPI

from trellis.server import create_app
from trellis.server.limits import Limits
from trellis.server.running import Protocol, Server, configure, listen

ENOUGH = 60.0


@dataclass
class Running:
    """A server that runs."""

    app: FastAPI
    port: int
    server: Server
    thread: threading.Thread

    def stop(self) -> None:
        """Stop as on a signal, and wait until it has ended."""
        self.server.should_exit = True
        self.thread.join(ENOUGH)
        assert not self.thread.is_alive()


@contextmanager
def serving(url: str, limits: Limits | None = None, **options: Any) -> Iterator[Running]:  # noqa: ANN401
    """Run a server of the store at a URL until the end of the block."""
    app = create_app(url, limits=limits, **options.pop("app", {}))
    config = configure(app, "127.0.0.1", 0, **options)
    with listen(config) as listening:
        server = Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        running = Running(app, listening.getsockname()[1], server, thread)
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def header_seconds(seconds: float) -> Iterator[None]:
    """Let servers wait so long for the header of a request."""
    before, Protocol.header_seconds = Protocol.header_seconds, seconds
    try:
        yield
    finally:
        Protocol.header_seconds = before


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    id: str | None
    data: Any


class Answer(NamedTuple):
    """The head of an answer; the body is read from the connection."""

    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@asynccontextmanager
async def request(port: int, path: str, **headers: str) -> AsyncIterator[Answer]:
    """Send a GET request whose answer ends with the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        lines = [f"GET {path} HTTP/1.0", "Host: 127.0.0.1"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(": ") for line in head[1:] if line)
        found = {name.lower(): value for name, _, value in pairs}
        yield Answer(int(head[0].split()[1]), found, reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


class Listener:
    """A client of a stream that keeps what an `EventSource` would keep."""

    def __init__(self, token: str, query: str = "") -> None:
        self.path = f"/api/v1/stream?{query}"
        self.token = token
        self.last_id: str | None = None
        self.events: list[Event] = []
        #: Other lines: comments and `retry`.
        self.said: list[str] = []
        self.connections = 0

    async def listen(
        self, port: int, until: Callable[[], bool] = lambda: False, cut_after: int | None = None
    ) -> None:
        """Listen until something holds, the server ends the stream, or so many bytes came."""
        headers = {"Authorization": f"Bearer {self.token}"}
        if self.last_id is not None:
            headers["Last_Event_ID"] = self.last_id
        self.connections += 1
        async with asyncio.timeout(ENOUGH), request(port, self.path, **headers) as answer:
            assert answer.status == 200, (answer.status, await answer.reader.read())
            kept, came = b"", 0
            while not until():
                wanted = 65536 if cut_after is None else min(65536, cut_after - came)
                piece = await answer.reader.read(wanted)
                if not piece:
                    return
                came += len(piece)
                kept = self._take(kept + piece)
                if came == cut_after:
                    return  # what is in `kept` is lost, as an EventSource would lose it

    async def listen_for(self, port: int, name: str, number: int) -> None:
        """Listen until so many events of this name came."""
        await self.listen(port, lambda: len(self.of(name)) >= number)

    def _take(self, text: bytes) -> bytes:
        *blocks, rest = text.split(b"\n\n")
        for block in blocks:
            name, data, place = "message", None, None
            for line in block.decode().split("\n"):
                field, _, value = line.partition(": ")
                match field:
                    case "event":
                        name = value
                    case "data":
                        data = json.loads(value)
                    case "id":
                        place = self.last_id = value
                    case _:
                        self.said.append(line)
            if data is not None:
                self.events.append(Event(name, place, data))
        return rest

    def of(self, name: str) -> list[Any]:
        """Return the data of all events of this name."""
        return [each.data for each in self.events if each.name == name]
