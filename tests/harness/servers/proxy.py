"""A bad network between a client and a PostgreSQL server: it forwards until it is told otherwise.

The proxy listens on a loopback port that stays the same for its whole life. It runs on a thread of
its own; every method takes effect before it returns and may be called from any thread. It speaks
no TLS: clients that ask for it are told no.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Final, Self

from tests.harness.servers.address import Address
from tests.harness.servers.conversation import Conversation
from tests.harness.servers.loops import LoopThread
from tests.harness.servers.losses import Loss, Part
from tests.harness.servers.wire import Message, Splitter, read_opening

_CHUNK: Final = 1 << 16


class Weather:
    """The state of the network, shared by all connections; touched on the loop only."""

    def __init__(self) -> None:
        self.requests = asyncio.Event()
        self.replies = asyncio.Event()
        self.requests.set()
        self.replies.set()
        self.delay = 0.0
        self.losses: list[Loss] = []

    async def pass_through(self, gate: asyncio.Event) -> None:
        """Wait as long as bytes take in this weather; while frozen, for ever."""
        if self.delay:
            await asyncio.sleep(self.delay)
        await gate.wait()

    def take(self, matching: list[Loss]) -> Loss | None:
        """Take an order, if there is one: each is carried out once."""
        if not matching:
            return None
        self.losses.remove(matching[0])
        return matching[0]


class Link:
    """One client's connection and its twin at the server."""

    def __init__(
        self, weather: Weather, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._weather = weather
        self._reader = reader
        self._client = writer
        self._server: asyncio.StreamWriter | None = None
        self._heard = Conversation()
        self._loss: Loss | None = None
        self._lost_answer = 0

    async def run(self, upstream: Address) -> None:
        """Forward until one side closes."""
        try:
            await self._weather.pass_through(self._weather.requests)
            start = await read_opening(self._reader, self._client)
            if start is None:
                return
            replies, self._server = await upstream.connect()
            self._server.write(start.raw)
            if start.is_cancel:
                await replies.read()
                return
            await self._forward(replies, self._server)
        except OSError:
            pass  # a side that is gone; the other one is told by closing it
        finally:
            await self._close()

    def mute(self) -> None:
        """Carry nothing any more; neither side learns a thing."""
        self._weather = Weather()
        self._weather.requests.clear()
        self._weather.replies.clear()

    def drop(self) -> None:
        """Cut both sides at once; what was on its way is lost."""
        self._client.transport.abort()
        if self._server is not None:
            self._server.transport.abort()

    async def _forward(self, replies: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        ways = [
            asyncio.ensure_future(self._forward_requests(server)),
            asyncio.ensure_future(self._forward_replies(replies)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _forward_requests(self, server: asyncio.StreamWriter) -> None:
        splitter = Splitter()
        while data := await self._reader.read(_CHUNK):
            await self._weather.pass_through(self._weather.requests)
            for message in splitter.feed(data):
                if self._is_lost_request(message):
                    await server.drain()
                    return
                server.write(message.raw)
            await server.drain()
        await self._weather.requests.wait()  # a frozen network does not carry the end either

    def _is_lost_request(self, message: Message) -> bool:
        statement = self._heard.hear_request(message)
        if statement is None or self._loss is not None:
            return False
        losses = self._weather.losses
        loss = self._weather.take([loss for loss in losses if loss.matches(statement)])
        if loss is None:
            return False
        if loss.part is Part.REQUEST:
            loss.carried_out()
            return True
        self._loss, self._lost_answer = loss, self._heard.answer_to(message)
        return False

    async def _forward_replies(self, replies: asyncio.StreamReader) -> None:
        splitter = Splitter()
        while data := await replies.read(_CHUNK):
            await self._weather.pass_through(self._weather.replies)
            for message in splitter.feed(data):
                if not self._is_lost_reply(message):
                    self._client.write(message.raw)
                elif self._heard.answered == self._lost_answer:
                    return self._end_with_loss()
            await self._client.drain()
        await self._weather.replies.wait()
        return None

    def _is_lost_reply(self, message: Message) -> bool:
        """Tell whether a message belongs to the answer that gets lost."""
        if self._loss is None:
            self._take_by_tag(message)
        lost = self._loss is not None and self._heard.answered == self._lost_answer - 1
        self._heard.hear_reply(message)
        return lost

    def _take_by_tag(self, message: Message) -> None:
        losses = [loss for loss in self._weather.losses if loss.part is Part.REPLY]
        self._loss = self._weather.take([loss for loss in losses if loss.matches_tag(message)])
        self._lost_answer = self._heard.answered + 1

    def _end_with_loss(self) -> None:
        self.drop()
        if self._loss is not None:
            self._loss.carried_out()

    async def _close(self) -> None:
        for writer in (self._client, self._server):
            if writer is not None:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()


class Proxy:
    """Stands before one database; use it as a context manager, or call `close`."""

    def __init__(self, url: str) -> None:
        self._upstream = Address.of(url)
        self._thread = LoopThread("fault-proxy")
        self._weather = self._thread.call(Weather)
        self._links: set[Link] = set()
        self._changed = threading.Condition()  # the number of links
        self._port_holder = _held_port()
        self._listener: asyncio.Server | None = None
        self.accept()

    @property
    def url(self) -> str:
        """The database as it is reached through the proxy."""
        host, port = self._port_holder.getsockname()
        return self._upstream.at(host, port).url

    @property
    def connections(self) -> int:
        """How many connections are open."""
        with self._changed:
            return len(self._links)

    def wait_for_connections(self, count: int, patience: float = 60) -> None:
        """Wait until so many connections are open."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._links) == count, patience):
                raise TimeoutError(f"There are {len(self._links)} connections, not {count}.")

    def drop(self) -> None:
        """Cut every connection, both sides at once."""
        self._thread.call(self._drop_all)

    def mute(self) -> None:
        """Let every open connection carry nothing any more; new ones are not affected."""
        self._thread.call(self._mute_all)

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        self._thread.call(self._stop_listening)

    def accept(self) -> None:
        """Take new connections again."""
        self._thread.run(self._listen())

    def freeze(self, *, requests: bool = True, replies: bool = True) -> None:
        """Carry nothing, or nothing one way: connections stay, and neither side learns a thing."""
        self._thread.call(lambda: self._set_gates(requests=requests, replies=replies))

    def thaw(self, *, forget: bool = False) -> None:
        """Carry on: what was held is delivered late, as by TCP; or is forgotten and cut."""
        if forget:
            self.drop()
        self._thread.call(lambda: self._set_gates(requests=False, replies=False))

    def delay(self, seconds: float) -> None:
        """Hold everything back this long on each way; 0 ends it."""
        self._thread.call(lambda: setattr(self._weather, "delay", seconds))

    def lose_next_reply(self, to: str, *, whole: bool = False) -> Loss:
        """Let the next statement that contains `to` run, swallow its answer, cut the connection.

        Or the next that is `to` as a whole.

        A statement that only completes with `to` as its tag (END, say, with COMMIT) counts too.
        """
        return self._lose(Loss(Part.REPLY, to, whole=whole))

    def lose_next_request(self, to: str) -> Loss:
        """Cut the connection before the next statement that contains `to` reaches the server."""
        return self._lose(Loss(Part.REQUEST, to))

    def close(self) -> None:
        """Cut everything and end."""
        self.refuse()
        self.drop()
        self._thread.stop()
        self._port_holder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mute_all(self) -> None:
        for link in self._links:
            link.mute()

    def _drop_all(self) -> None:
        for link in self._links:
            link.drop()

    def _lose(self, loss: Loss) -> Loss:
        self._thread.call(lambda: self._weather.losses.append(loss))
        return loss

    def _set_gates(self, *, requests: bool, replies: bool) -> None:
        for gate, frozen in ((self._weather.requests, requests), (self._weather.replies, replies)):
            if frozen:
                gate.clear()
            else:
                gate.set()

    async def _listen(self) -> None:
        if self._listener is None:
            listening = _bound(self._port_holder.getsockname())
            self._listener = await asyncio.start_server(self._serve, sock=listening)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self._weather, reader, writer)
        with self._changed:
            self._links.add(link)
            self._changed.notify_all()
        try:
            with suppress(asyncio.CancelledError):  # the proxy ends; asyncio would call it an error
                await link.run(self._upstream)
        finally:
            with self._changed:
                self._links.discard(link)
                self._changed.notify_all()


def _held_port() -> socket.socket:
    """Return a socket that holds a port and never listens: nobody else gets the port."""
    return _bound(("127.0.0.1", 0))


def _bound(address: tuple[str, int]) -> socket.socket:
    # Named as TCP, or asyncio leaves Nagle on for what it accepts: 40 ms for each small answer.
    made = socket.socket(proto=socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(address)
    return made
