"""The server connections of a pooler: each serves one transaction of one client at a time.

They are handed out in turn, so that a client's next transaction lands on another connection:
whatever one left in its session is not there for the next.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import Final, Protocol

from tests.harness.servers.address import Address
from tests.harness.servers.wire import Message, Splitter, cancel, opening

#: Settings that a pooler carries along with a client, as pgbouncer does.
TRACKED: Final = frozenset(
    {"application_name", "client_encoding", "datestyle", "standard_conforming_strings", "timezone"}
)
_ASK: Final = {b"Q", b"S", b"F"}
_EXTENDED: Final = {b"P", b"B", b"D", b"E", b"C", b"H"}
_OK, _PASSWORD = 0, 3


class LoginFailed(OSError):
    """The server did not let the pooler in."""


class Client(Protocol):
    """Whoever a server connection is lent to."""

    def receive(self, message: Message) -> None:
        """Take a message of the server."""

    def release(self) -> None:
        """Learn that the transaction is over and the connection gone."""

    def lose_server(self) -> None:
        """Learn that the connection broke."""


class Backend:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.settings: dict[str, str] = {}
        self.key = b""
        self.is_alive = True
        self._reader = reader
        self._writer = writer
        self._client: Client | None = None
        self._waiting = 0  # answers that are still to come
        self._is_open = False  # something was sent that no Sync has followed yet
        self._ready: asyncio.Future[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: Address) -> Backend:
        """Connect and log in."""
        backend = cls(*await address.connect())
        who = {"user": address.user, "database": address.database}
        backend._writer.write(opening(who))
        backend._ready = asyncio.get_running_loop().create_future()
        backend._listening = asyncio.create_task(backend._listen(address.password))
        await backend._ready
        return backend

    def lend(self, client: Client) -> None:
        """Serve a client until its transaction ends."""
        self._client = client

    def send(self, message: Message) -> None:
        """Pass on a message of the client."""
        if message.kind in _ASK:
            self._waiting += 1
            self._is_open = False
        elif message.kind in _EXTENDED:
            self._is_open = True
        self._writer.write(message.raw)

    async def drain(self) -> None:
        """Wait until the server keeps up."""
        with suppress(OSError):
            await self._writer.drain()

    async def set(self, wanted: dict[str, str]) -> None:
        """Set what differs; nobody sees the answer. What the server does not take stays."""
        changes = [
            f"set {name} to '{value.replace(chr(39), chr(39) * 2)}';"
            for name, value in wanted.items()
            if self.settings.get(name) != value
        ]
        if changes:
            self._ready = asyncio.get_running_loop().create_future()
            self._writer.write(Message(b"Q", "".join(changes).encode() + b"\0").raw)
            await self._ready

    async def close(self) -> None:
        """Hang up."""
        self.is_alive = False
        self._client = None
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        if self._listening is not None:
            await asyncio.wait([self._listening])

    async def _listen(self, password: str) -> None:
        splitter = Splitter()
        with suppress(OSError):
            while data := await self._reader.read(1 << 16):
                for message in splitter.feed(data):
                    self._hear(message, password)
        self._end()

    def _end(self) -> None:
        self.is_alive = False
        self._writer.close()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(LoginFailed("The server hung up."))
        if self._client is not None:
            self._client.lose_server()

    def _hear(self, message: Message, password: str) -> None:
        if message.kind == b"S":
            name, value, *_ = message.words()
            self.settings[name.casefold()] = value
        if message.kind == b"A":
            return  # whom would it be for? who listened may have another connection by now
        if self._ready is not None:
            self._hear_in_private(message, password)
        elif self._client is not None:
            self._pass_on(message, self._client)

    def _hear_in_private(self, message: Message, password: str) -> None:
        """Follow the log-in, or the answer to settings of our own."""
        match message.kind:
            case b"R":
                self._authenticate(struct.unpack_from("!i", message.body)[0], password)
            case b"K":
                self.key = message.body
            case b"Z" if self._ready is not None:
                ready, self._ready = self._ready, None
                ready.set_result(None)
            case _:
                pass

    def _authenticate(self, way: int, password: str) -> None:
        if way == _PASSWORD:
            self._writer.write(Message(b"p", password.encode() + b"\0").raw)
        elif way != _OK:
            raise LoginFailed(f"This pooler cannot log in by way {way}: use trust or password.")

    def _pass_on(self, message: Message, client: Client) -> None:
        client.receive(message)
        if message.kind != b"Z":
            return
        self._waiting -= 1
        if message.body == b"I" and self._waiting == 0 and not self._is_open:
            self._client = None
            client.release()

    async def cancel(self, address: Address) -> None:
        """Ask the server to cancel what runs here."""
        reader, writer = await address.connect()
        writer.write(cancel(self.key))
        with suppress(OSError):
            await reader.read()
            writer.close()
            await writer.wait_closed()


class Pool:
    """A fixed number of server connections, handed out in turn; broken ones are replaced."""

    def __init__(self, address: Address, size: int) -> None:
        self.address = address
        self._size = size
        self._all: list[Backend] = []
        self._free: asyncio.Queue[Backend] = asyncio.Queue()

    async def open(self) -> dict[str, str]:
        """Open all connections; return what a fresh session has set."""
        for _ in range(self._size):
            self.give_back(await self._connect())
        return dict(self._all[0].settings)

    async def take(self) -> Backend:
        """Return the connection that has been free for longest; wait if none is."""
        backend = await self._free.get()
        if backend.is_alive:
            return backend
        self._all.remove(backend)
        try:
            return await self._connect()
        except BaseException:
            self._all.append(backend)
            self.give_back(backend)  # its place stays, for the next try
            raise

    def give_back(self, backend: Backend) -> None:
        """Put a connection, or the place of a broken one, at the end of the line."""
        self._free.put_nowait(backend)

    async def close(self) -> None:
        """Close all connections."""
        for backend in self._all:
            await backend.close()

    async def _connect(self) -> Backend:
        backend = await Backend.open(self.address)
        self._all.append(backend)
        return backend
