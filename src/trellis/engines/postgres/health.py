"""What a PostgreSQL engine says about itself: the server, the settings in force, what is wrong."""

from __future__ import annotations

from typing import Any

from trellis.engines.postgres.address import Address
from trellis.engines.postgres.link import Link
from trellis.engines.values import Health


async def describe(link: Link, address: Address, *, can_hear: bool | None) -> Health:
    """Ask the server; never assume."""
    row: Any
    (row,) = await link.rows("health")
    facts: dict[str, Any] = {
        "url": address.shown,
        "postgresql": row["version"],
        "database": row["database"],
        "schema": address.schema,
        "schema_version": int(row["schema_version"]),
        "synchronous_commit": row["synchronous_commit"],
        "fsync": row["fsync"],
        "full_page_writes": row["full_page_writes"],
        "wake_up": _wake_up(address, can_hear=can_hear),
        "size_bytes": row["size_bytes"],
        "oldest_snapshot_seconds": row["oldest_snapshot_seconds"],
        "feed_lag_seconds": row["feed_lag_seconds"],
        "dead_queue_rows": row["dead_queue_rows"],
    }
    return Health(
        "postgresql", _durability(facts), facts, tuple(_warnings(facts, can_hear=can_hear))
    )


def _wake_up(address: Address, *, can_hear: bool | None) -> str:
    if not address.can_listen:
        return "poll"
    return {True: "listen", False: "poll (LISTEN is not heard)", None: "listen (not tried)"}[
        can_hear
    ]


def _durability(facts: dict[str, Any]) -> str:
    if facts["fsync"] == "on" and facts["synchronous_commit"] != "off":
        return "K2: what was acknowledged survives a crash of the server and a power cut"
    if facts["fsync"] == "on":
        return "K1: the last moments before a crash of the server may be lost"
    return "K0: a crash of the machine may damage the database"


def _warnings(facts: dict[str, Any], *, can_hear: bool | None) -> list[str]:
    warnings = []
    if facts["fsync"] != "on" or facts["full_page_writes"] != "on":
        warnings.append(
            "fsync or full_page_writes is off: a crash of the machine may damage the database. "
            "Turn both on in postgresql.conf."
        )
    if facts["synchronous_commit"] == "off":
        warnings.append(
            "synchronous_commit is off: what was acknowledged may be lost when the server "
            "crashes. Turn it on for this role: ALTER ROLE ... SET synchronous_commit = on."
        )
    if can_hear is False:
        warnings.append(
            "LISTEN is not heard: there is a transaction pooler on the way. Workers poll instead. "
            "Add pooler=transaction and listen=postgresql://... (past the pooler) to the URL."
        )
    return warnings
