"""Who blocks a statement that waits for a lock: found while it waits, named in its error.

The server ends the wait after `Address.lock_timeout`, and afterwards no session can be named. So a
second connection looks while a call is late: which sessions block it, and which sessions block
those. The look changes nothing. If it is impossible, the error names no session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from trellis.engines.redaction import without_values

if TYPE_CHECKING:
    from trellis.engines.postgres.connection import Connection
    from trellis.engines.postgres.registry import StatementRunner
    from trellis.engines.postgres.url import Address

#: A look is taken this often per `lock_timeout`, so that at least one falls into each wait.
_LOOKS: Final = 3


class Blocker(NamedTuple):
    """A session that holds a lock, or waits for one before us; 0: a prepared transaction."""

    pid: int
    application: str
    user: str
    #: What pg_stat_activity reports about it; None if this user may not know.
    state: str | None
    seconds: float | None
    query: str
    #: Whether it waits for a lock, too.
    waits: bool

    @property
    def described(self) -> str:
        """Who it is, and what it did last: without the values in its statement."""
        if not self.pid:
            return "a prepared transaction (see pg_prepared_xacts)"
        about = [self.application or "no application_name", f"user {self.user or '-'}"]
        if self.seconds is not None:
            about.append(f"{self.state or 'in a transaction'} for {in_units(self.seconds)}")
        if self.waits:
            about.append("which waits for a lock itself")
        if statement := without_values(self.query):
            about.append(f"last statement: {statement}")
        return f"process {self.pid} ({', '.join(about)})"


def advice(blockers: Sequence[Blocker]) -> str:
    """Return who blocks, and what to do about the first ones, as two sentences."""
    names = "; ".join(each.described for each in blockers)
    first = [each.pid for each in blockers if each.pid and not each.waits]
    ends = first or [each.pid for each in blockers[:1] if each.pid]
    do = "finish it: COMMIT PREPARED or ROLLBACK PREPARED"
    if ends:
        do = ", ".join(f"end it: select pg_terminate_backend({pid})" for pid in ends)
    return f"The lock is held by {names}. Wait until that transaction ends, or {do}."


async def look(server: StatementRunner, schema: str, pid: int | None) -> tuple[Blocker, ...]:
    """Return who blocks a server process; without one, who blocks any statement on our tables."""
    return tuple(Blocker(*row) for row in await server.rows("blockers", pid, f"{schema}."))


class Watch:
    """Looks for blockers while the call of one connection is late.

    A timer is set at most once per pause, not for each call: calls are many and rarely late.
    """

    def __init__(self, address: Address, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._address = address
        self._connect = connect
        self._pause = address.lock_timeout / _LOOKS
        self._watched: Connection | None = None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        #: Who blocked the present or last call when a look was last taken.
        self.found: tuple[Blocker, ...] = ()

    def start(self, connection: Connection) -> None:
        """A call begins."""
        loop = asyncio.get_running_loop()
        self.found = ()
        self._watched = connection
        self._since = loop.time()
        if self._timer is None and self._looking is None:
            self._timer = loop.call_later(self._pause, self._check)

    def stop(self) -> None:
        """The call has ended."""
        self._watched = None

    async def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])

    def _check(self) -> None:
        self._timer = None
        if self._watched is None:
            return
        loop = asyncio.get_running_loop()
        if self._is_late():
            self._looking = loop.create_task(self._look(), name="trellis-blockers")
        else:
            self._timer = loop.call_at(self._since + self._pause, self._check)

    def _is_late(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._watched is not None and now >= self._since + self._pause

    async def _look(self) -> None:
        """Look again and again until the call ends."""
        try:
            connection = await self._connect()
            try:
                while self._is_late() and (watched := self._watched) is not None:
                    self.found = await self._ask(connection, watched) or self.found
                    await asyncio.sleep(self._pause)
            finally:
                connection.driver.terminate()
        except Exception:  # noqa: BLE001 - the call itself reports what is wrong with the server
            await asyncio.sleep(self._pause)
        self._looking = None
        self._check()

    async def _ask(self, connection: Connection, watched: Connection) -> tuple[Blocker, ...]:
        if self._address.pooler == "none":
            pid = watched.driver.get_server_pid()
            return await look(connection, self._address.schema, pid)
        # A pooler reports another process than the one that runs the statement, and only a
        # transaction keeps the messages of one statement on one server connection.
        async with connection.driver.transaction():
            return await look(connection, self._address.schema, None)


def in_units(seconds: float) -> str:
    """Return a duration for people."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
