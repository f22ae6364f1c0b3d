"""Databases of one server: each test gets one with a random name, which is dropped afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import psycopg
from psycopg.sql import SQL, Identifier

from tests.harness.servers.address import same_server


class Databases:
    """The databases we make on a server; `prefix` marks ours, and templates are found by it."""

    def __init__(self, url: str, prefix: str = "trellis_test") -> None:
        self._url = url
        self._prefix = prefix
        self._done: list[str] = []
        self._templates: set[str] = set()

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return same_server(self._url, database)

    @property
    def version(self) -> int:
        """The server's major version."""
        with self._connect() as connection:
            return connection.info.server_version // 10_000

    def new_database(self, template: str | None = None) -> str:
        """Make a database, empty or as a copy of a template; return its URL."""
        name = f"{self._prefix}_{secrets.token_hex(6)}"
        with self._connect() as connection:
            self._drop_done(connection)
            _create(connection, name, template or "template0")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Drop a database, soon.

        The server waits a tenth of a second when a backend is still on its way out, so databases
        are dropped when the next one is made, or at the end.
        """
        self._done.append(url)

    def template(self, name: str, prepare: Callable[[str], None]) -> str:
        """Return a template; the first time, `prepare` fills it, given a URL.

        Made once even if several processes want it at once. `prepare` must close its connections.
        """
        full = f"{self._prefix}_of_{name}"
        if full not in self._templates:
            with self._connect() as connection:
                connection.execute("select pg_advisory_lock(hashtext(%s))", [full])
                if not _exists(connection, full):
                    self._prepare(connection, full, prepare)
            self._templates.add(full)
        return full

    def close(self) -> None:
        """Drop what is to be dropped."""
        with self._connect() as connection:
            self._drop_done(connection)

    def close_all(self) -> None:
        """Drop the templates as well."""
        self._done.extend(self.url(name) for name in self._templates)
        self._templates.clear()
        self.close()

    def _prepare(
        self, connection: psycopg.Connection, full: str, prepare: Callable[[str], None]
    ) -> None:
        draft = self.url(f"{full}_{secrets.token_hex(6)}")
        _create(connection, _name(draft), "template0")
        try:
            prepare(draft)
            # Under its own name only when it is whole: a template that exists is finished.
            connection.execute(
                SQL("alter database {} rename to {}").format(
                    Identifier(_name(draft)), Identifier(full)
                )
            )
        except BaseException:
            _drop(connection, _name(draft))
            raise

    def _drop_done(self, connection: psycopg.Connection) -> None:
        while self._done:
            _drop(connection, _name(self._done[-1]))
            self._done.pop()

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._url, autocommit=True)


def _name(url: str) -> str:
    return url.rpartition("?")[0].rpartition("/")[2] if "?" in url else url.rpartition("/")[2]


def _create(connection: psycopg.Connection, name: str, template: str) -> None:
    # Copying files is quicker than logging every page; before 15 it is the only way.
    strategy = SQL("strategy file_copy") if connection.info.server_version >= 150_000 else SQL("")
    connection.execute(
        SQL("create database {} template {} {}").format(
            Identifier(name), Identifier(template), strategy
        )
    )


def _drop(connection: psycopg.Connection, name: str) -> None:
    connection.execute(SQL("drop database if exists {} with (force)").format(Identifier(name)))


def _exists(connection: psycopg.Connection, name: str) -> bool:
    found = connection.execute("select from pg_database where datname = %s", [name])
    return found.fetchone() is not None
