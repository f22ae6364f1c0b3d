"""What a PostgreSQL engine says about itself: the server, the settings in force, what is wrong.

The server is asked, and what only trying can tell is tried (`probing.py`); nothing is assumed.
The words for what is wrong are in `findings.py`.
"""

from __future__ import annotations

from typing import Any, Final

from trellis.engines.postgres.connection import Link
from trellis.engines.postgres.findings import Horizon, findings
from trellis.engines.postgres.probing import Probe, probe
from trellis.engines.postgres.url import Address
from trellis.engines.values import Health

#: From when on a held horizon is worth a word: seconds, or transactions since.
_SECONDS: Final = 60.0
_TRANSACTIONS: Final = 50_000


async def describe(link: Link, address: Address, *, can_hear: bool | None) -> Health:
    """Ask the server, and try."""
    tried = await probe(address)
    if tried.can_hear is None and address.can_listen:
        tried = tried._replace(can_hear=can_hear)
    row: Any
    (row,) = await link.rows("health")
    holders = [
        Horizon(*each) for each in await link.rows("health_horizon", _SECONDS, _TRANSACTIONS)
    ]
    slots = [(name, size) for name, size in await link.rows("health_slots")]
    facts = _facts(row, address, tried)
    warnings = findings(row, address, tried, holders, slots)
    return Health("postgresql", _durability(facts), facts, tuple(warnings))


def _facts(row: Any, address: Address, tried: Probe) -> dict[str, Any]:  # noqa: ANN401 - a record
    return {
        "url": address.shown,
        "postgresql": row["version"],
        "database": row["database"],
        "schema": address.schema,
        "schema_version": int(row["schema_version"]),
        "synchronous_commit": row["synchronous_commit"],
        "fsync": row["fsync"],
        "full_page_writes": row["full_page_writes"],
        "autovacuum": row["autovacuum"],
        "pooler": tried.pooler if tried.error is None else "not tried",
        "wake_up": _wake_up(address, tried),
        "connections": row["connections"],
        "max_connections": row["max_connections"],
        "sees_other_users": row["sees_others"],
        "size_bytes": row["size_bytes"],
        "oldest_snapshot_seconds": row["oldest_snapshot_seconds"],
        "feed_lag_seconds": row["feed_lag_seconds"],
        "dead_queue_rows": row["dead_queue_rows"],
        "last_autovacuum": row["last_autovacuum"],
    }


def _wake_up(address: Address, tried: Probe) -> str:
    if not address.can_listen:
        return "poll"
    return {True: "listen", False: "poll (LISTEN is not heard)", None: "listen (not tried)"}[
        tried.can_hear
    ]


def _durability(facts: dict[str, Any]) -> str:
    if facts["fsync"] == "on" and facts["synchronous_commit"] != "off":
        return "K2: what was acknowledged survives a crash of the server and a power cut"
    if facts["fsync"] == "on":
        return "K1: the last moments before a crash of the server may be lost"
    return "K0: a crash of the machine may damage the database"
