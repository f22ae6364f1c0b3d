"""The servers' own tests run on them."""

from __future__ import annotations

from tests.servers.fixtures import (
    own_postgres,
    own_server,
    postgres_run,
    postgres_server,
    postgres_url,
)

__all__ = ["own_postgres", "own_server", "postgres_run", "postgres_server", "postgres_url"]
