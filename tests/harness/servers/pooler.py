"""A stand-in for pgbouncer in transaction mode, as it was before 1.21 and with its defaults.

Each transaction of a client gets whichever of a few server connections is next; so session state
does not survive, named prepared statements break, and LISTEN hears nothing. Start-up parameters
that pgbouncer would not take are refused in its words. Knows trust and plain passwords.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from contextlib import suppress
from typing import Final, Self

from tests.harness.servers.address import Address
from tests.harness.servers.backends import TRACKED, Backend, Pool
from tests.harness.servers.loops import LoopThread
from tests.harness.servers.wire import Message, Opening, Splitter, error, read_opening

_TAKEN: Final = TRACKED | {"database", "extra_float_digits", "user"}
_AUTHENTICATED: Final = Message(b"R", struct.pack("!i", 0)).raw
_ASK_PASSWORD: Final = Message(b"R", struct.pack("!i", 3)).raw
_READY: Final = Message(b"Z", b"I").raw


class Refused(Exception):
    """A client that is told no; carries the answer."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.answer = error(code, text)


class Guest:
    """One client: between its transactions it has no server connection."""

    def __init__(
        self, pool: Pool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.key = secrets.token_bytes(8)
        self.backend: Backend | None = None
        self._pool = pool
        self._reader = reader
        self._writer = writer
        self._settings: dict[str, str] = {}

    async def welcome(self, start: Opening, fresh: dict[str, str]) -> None:
        """Check who it is and answer its start-up."""
        asked = {name.casefold(): value for name, value in start.parameters.items()}
        self._check(asked)
        await self._check_password()
        settings = {**fresh, **asked}
        self._settings = {name: settings[name] for name in TRACKED}
        backend = await self._take()
        said = [Message(b"S", f"{n}\0{v}\0".encode()).raw for n, v in backend.settings.items()]
        self._pool.give_back(backend)
        key = Message(b"K", self.key).raw
        self._writer.write(b"".join([_AUTHENTICATED, *said, key, _READY]))

    async def serve(self) -> None:
        """Pass messages on until the client leaves."""
        splitter = Splitter()
        while data := await self._reader.read(1 << 16):
            for message in splitter.feed(data):
                if message.kind == b"X":
                    return
                await self._pass_on(message)
            if self.backend is not None:
                await self.backend.drain()

    async def leave(self) -> None:
        """Hang up; a transaction that is open takes its server connection along."""
        if self.backend is not None:
            backend, self.backend = self.backend, None
            await backend.close()
            self._pool.give_back(backend)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def refuse(self, refused: Refused) -> None:
        """Say no."""
        self._writer.write(refused.answer)

    def receive(self, message: Message) -> None:
        """Take a message of the server; a setting that changed is ours from now on."""
        if message.kind == b"S":
            name, value, *_ = message.words()
            if name.casefold() in TRACKED:
                self._settings[name.casefold()] = value
        self._writer.write(message.raw)

    def release(self) -> None:
        """Give the server connection to the next: the transaction is over."""
        if self.backend is not None:
            backend, self.backend = self.backend, None
            self._pool.give_back(backend)

    def lose_server(self) -> None:
        """Tell the client what pgbouncer tells it, and hang up."""
        self.refuse(Refused("08P01", "server conn crashed?"))
        self._writer.close()

    async def _pass_on(self, message: Message) -> None:
        if self.backend is None:
            backend = await self._take()
            backend.lend(self)
            self.backend = backend
        self.backend.send(message)

    async def _take(self) -> Backend:
        """Return a server connection with this client's settings."""
        try:
            backend = await self._pool.take()
        except OSError as failed:
            raise Refused("08006", "server login has been failing") from failed
        try:
            await backend.set(self._settings)
        except BaseException:
            self._pool.give_back(backend)
            raise
        # In the server's spelling, or it would be set again each time.
        self._settings = {name: backend.settings[name] for name in TRACKED}
        return backend

    def _check(self, asked: dict[str, str]) -> None:
        for name in asked:
            if name not in _TAKEN:
                raise Refused("08P01", f"unsupported startup parameter: {name}")
        database = asked.get("database", asked["user"])
        if database != self._pool.address.database:
            raise Refused("3D000", f"no such database: {database}")

    async def _check_password(self) -> None:
        self._writer.write(_ASK_PASSWORD)
        head = await self._reader.readexactly(5)
        given = await self._reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
        if given.rstrip(b"\0").decode() != self._pool.address.password:
            raise Refused("28P01", "password authentication failed")


class Pooler:
    """Stands before one database; use it as a context manager, or call `close`."""

    def __init__(self, url: str, size: int = 2) -> None:
        self._address = Address.of(url)
        self._thread = LoopThread("pooler")
        self._guests: set[Guest] = set()
        try:
            self._pool = self._thread.call(lambda: Pool(self._address, size))
            self._fresh = self._thread.run(self._pool.open())
            self._listener = self._thread.run(self._listen())
        except BaseException:
            self._thread.stop()
            raise

    @property
    def url(self) -> str:
        """The database as it is reached through the pooler."""
        host, port = self._listener.sockets[0].getsockname()
        return self._address.at(host, port).url

    def close(self) -> None:
        """Send everybody away and end."""
        self._thread.call(self._listener.close)
        self._thread.run(self._close())
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        for guest in list(self._guests):
            await guest.leave()
        await self._pool.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guest = Guest(self._pool, reader, writer)
        self._guests.add(guest)
        try:
            await self._entertain(guest, await read_opening(reader, writer))
        except Refused as refused:
            guest.refuse(refused)
        except (OSError, asyncio.IncompleteReadError):
            pass  # it left, or its server did
        finally:
            self._guests.discard(guest)
            await guest.leave()

    async def _entertain(self, guest: Guest, start: Opening | None) -> None:
        if start is None:
            return
        if start.is_cancel:
            await self._cancel(start.cancel_key)
            return
        await guest.welcome(start, self._fresh)
        await guest.serve()

    async def _cancel(self, key: bytes) -> None:
        for guest in self._guests:
            if guest.key == key and guest.backend is not None:
                await guest.backend.cancel(self._address)
                return
