"""Where a database is reached: the parts of a PostgreSQL URL, on a Unix socket or on TCP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit


@dataclass(frozen=True, slots=True)
class Address:
    """One database of one server; a host that begins with a slash is a socket's folder."""

    user: str
    password: str
    host: str
    port: int
    database: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL apart."""
        parts = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        return cls(
            user=unquote(parts.username or "postgres"),
            password=unquote(parts.password or ""),
            host=options.get("host") or parts.hostname or "127.0.0.1",
            port=int(options.get("port") or parts.port or 5432),
            database=unquote(parts.path.removeprefix("/")) or "postgres",
        )

    @property
    def url(self) -> str:
        """The same as a URL that libpq and asyncpg both understand."""
        who = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        name = quote(self.database, safe="")
        if self.host.startswith("/"):
            where = urlencode({"host": self.host, "port": self.port}, safe="/")
            return f"postgresql://{who}@/{name}?{where}"
        return f"postgresql://{who}@{self.host}:{self.port}/{name}?sslmode=disable"

    def at(self, host: str, port: int) -> Self:
        """Return the same database reached another way."""
        return replace(self, host=host, port=port)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a bare connection; nothing is said on it yet."""
        if self.host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self.host}/.s.PGSQL.{self.port}")
        return await asyncio.open_connection(self.host, self.port)


def same_server(url: str, database: str) -> str:
    """Return the URL of another database, everything else (TLS, options) as it was given."""
    return urlsplit(url)._replace(path=f"/{quote(database, safe='')}").geturl()
