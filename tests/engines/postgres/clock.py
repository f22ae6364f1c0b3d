"""A manual clock inside the server: the engine's own SQL reads it, and nothing else differs."""

from __future__ import annotations

import asyncio

import psycopg

from trellis.core.durations import Duration, Instant
from trellis.engines.postgres import PostgresEngine
from trellis.testing import ManualClock

_INSTALL = """
create table trellis.manual_clock (now bigint not null);
insert into trellis.manual_clock values ({now});
create or replace function trellis.clock() returns bigint
language sql volatile parallel safe as $$ select now from trellis.manual_clock $$;
"""


def install_clock(url: str) -> None:
    """Make our tables and put a clock that a test sets in the place of the server's."""
    asyncio.run(PostgresEngine(url).migrate())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_INSTALL.format(now=ManualClock().now()))


class ServerClock(ManualClock):
    """A `ManualClock` whose time a database tells."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._connection = psycopg.connect(url, autocommit=True)

    def advance_micros(self, length: int) -> None:
        """Let this many microseconds pass."""
        super().advance_micros(length)
        self._set(self.now())

    def step_wall(self, duration: Duration, *, back: bool = False) -> None:
        """Set the clock forward or back."""
        super().step_wall(duration, back=back)
        self._set(self.now())

    def _set(self, now: Instant) -> None:
        self._connection.execute("update trellis.manual_clock set now = %s", [now])

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()
