"""One PostgreSQL 18 for the whole run, out of a wheel, with every promise of durability kept.

`fsync` and `synchronous_commit` are on, `shared_buffers` is 1 GB, all else that weighs is default.
Its data is in the folder for temporary files: TMPDIR chooses the disk that is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from bench.peers import processes
from tests.harness.servers.address import same_server
from tests.harness.servers.postgres import postgres

SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_connections": "200",
}


class Server(NamedTuple):
    """A server that runs."""

    #: Where its first database is; loopback, which every peer's driver understands alike.
    address: str
    #: The process that all others of the server descend from.
    pid: int
    #: Where its data is.
    folder: Path
    version: str

    def url(self, database: str) -> str:
        """Return where a database is."""
        return same_server(self.address, database)


@contextmanager
def running() -> Iterator[Server]:
    """Run a server for the length of the block; nothing of it is left."""
    with postgres(18, durable=True, tcp=True, settings=SETTINGS) as server:
        yield describe(server.tcp_url())


def describe(address: str) -> Server:
    """Return a server of this machine, with its version and settings."""
    with psycopg.connect(address) as connection:
        pid = processes.parent(connection.info.backend_pid)
        row = connection.execute(
            "select current_setting('data_directory'), current_setting('server_version')"
        ).fetchone()
    folder, version = row or ("", "unknown")
    return Server(address, pid, Path(folder), version)
