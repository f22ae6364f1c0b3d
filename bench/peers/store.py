"""The server from outside: fresh databases, backlogs, and the jobs left in a system's tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from bench.peers.server import Server
from bench.peers.systems import System


class Left(NamedTuple):
    """How many jobs were not settled, and when."""

    jobs: int
    #: When the store was asked: it answers for that moment, however long it takes.
    at: int


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    """Connect for the length of the block; each statement is a transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def make_database(server: Server, name: str, template: str = "template1") -> str:
    """Make a database, empty or as a copy; return where it is."""
    with connected(server.url("postgres")) as connection:
        _run(connection, f"drop database if exists {name} with (force)")
        _run(connection, f"create database {name} template {template}")
    return server.url(name)


def drop_database(server: Server, name: str) -> None:
    """Remove a database, also while programs are connected."""
    with connected(server.url("postgres")) as connection:
        _run(connection, f"drop database if exists {name} with (force)")


def settle(url: str) -> None:
    """Let the server do now what it would do at some time: every system begins alike."""
    with connected(url) as connection:
        _run(connection, "vacuum analyze")
        _run(connection, "checkpoint")


def multiply(url: str, system: System, jobs: int) -> None:
    """Make many jobs of the one that is there, by copying its row."""
    with connected(url) as connection:
        names = [name for name in _columns(connection, system) if system.fresh.get(name, "-")]
        values = [system.fresh.get(name, f"one.{name}") for name in names]
        _run(
            connection,
            f"insert into {system.table} ({', '.join(names)}) select {', '.join(values)} "  # noqa: S608
            f"from (select * from {system.table} limit 1) one, generate_series(2, {jobs}) n",
        )


def left(connection: psycopg.Connection, system: System) -> Left:
    """Ask how many jobs are not settled."""
    at = time.monotonic_ns()
    row = _run(connection, system.left).fetchone()
    return Left(int(row[0]) if row else 0, at)


def connections(connection: psycopg.Connection) -> int:
    """Return how many connections others have to this database."""
    query = (
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and backend_type = 'client backend' and pid <> pg_backend_pid()"
    )
    row = _run(connection, query).fetchone()
    return int(row[0]) if row else 0


def _columns(connection: psycopg.Connection, system: System) -> list[str]:
    rows = _run(
        connection,
        "select attname from pg_attribute "  # noqa: S608
        f"where attrelid = '{system.table}'::regclass and attnum > 0 "
        "and not attisdropped and attgenerated = '' order by attnum",
    ).fetchall()
    return [str(row[0]) for row in rows]


def _run(connection: psycopg.Connection, query: str) -> psycopg.Cursor:
    return connection.execute(query)
