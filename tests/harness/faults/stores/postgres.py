"""A database on a durable PostgreSQL server of our own, to which everything may be done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from tests.harness.faults.checker.histories import ServerFault
from tests.harness.faults.export import write_truth
from tests.harness.faults.plan import SERVER_ROUND
from tests.harness.faults.stores.looking import Looking, Rows, named
from tests.harness.servers.postgres import Server, postgres
from tests.harness.servers.proxy import Proxy

#: For a server that crashes often: its recovery flushes the file system once, not every file.
SETTINGS: Final = {"recovery_init_sync_method": "syncfs"}
_PREFIX: Final = "trellis."
#: Ours call themselves so; the harness has another name, and is not cut off.
_CUT: Final = """
    select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
    where application_name = 'trellis' and datname = current_database()
"""


class PostgresStore(Looking):
    """A database that was migrated before anybody uses it."""

    deeds = SERVER_ROUND

    def __init__(self, server: Server, url: str) -> None:
        super().__init__()
        self.server = server
        self.url = url
        self._connection: psycopg.Connection | None = None

    def close(self) -> None:
        """Look no more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True, application_name="the harness")

    def _ask(self, query: str, *numbers: int) -> Rows | None:
        try:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.execute(named(query, _PREFIX, *numbers).encode()).fetchall()
        except psycopg.OperationalError:  # the server is away; the next look tries again
            self.close()
            return None

    def writer(self) -> int | None:
        """Return nobody: rows are locked here, never the whole database."""
        return None

    def way(self) -> Proxy:
        """Return a way that can be cut without cutting others."""
        return Proxy(self.url)

    def take_away(self, kind: ServerFault) -> None:
        """Kill the server, stop it at once, or cut the connections of workers and producers."""
        match kind:
            case "server_kill":
                self.server.kill_postmaster()
            case "server_stop":
                self.server.stop("immediate")
            case "cut":
                self._ask(_CUT)
            case _:
                raise ValueError(f"A PostgreSQL server has no {kind}.")

    def bring_back(self) -> None:
        """Start the server."""
        self.server.start()

    def export(self, target: Path) -> None:
        """Write the system truth; a server that was left away is started first."""
        self.server.start()
        with self._connect() as connection:
            cursor = connection.cursor(row_factory=dict_row)

            def ask(query: str) -> list[Any]:
                return cursor.execute(named(query, _PREFIX).encode()).fetchall()

            write_truth(ask, target)


@contextmanager
def own_store(version: int, migrate: Callable[[str], None]) -> Iterator[PostgresStore]:
    """Have a server and a database of one's own."""
    with postgres(version, durable=True, settings=SETTINGS) as server:
        yield make_store(server, migrate)


def make_store(server: Server, migrate: Callable[[str], None]) -> PostgresStore:
    """Make a database on a server and our tables in it."""
    url = server.new_database()
    migrate(url)
    return PostgresStore(server, url)
