"""What can be wrong with a PostgreSQL server, in words: what it is, what it does, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from trellis.engines.postgres.connection import PINNED
from trellis.engines.postgres.probing import Probe
from trellis.engines.postgres.url import Address

_OLDEST: Final = 140_000
#: So many of the connections in use are too many.
_CROWDED: Final = 0.85
#: So many dead rows, and so many for each live one, are too many.
_DEAD: Final = 50_000
_DEAD_PER_LIVE: Final = 2


class Horizon(NamedTuple):
    """Somebody who keeps rows that are gone from being cleared away."""

    kind: str
    name: str
    who: str
    seconds: float | None
    transactions: int | None


def findings(
    row: Mapping[str, Any],
    address: Address,
    tried: Probe,
    holders: Sequence[Horizon],
    slots: Sequence[tuple[str, int]],
) -> Iterator[str]:
    """Yield a finding for everything that is wrong, the worst first."""
    yield from _settings(row)
    yield from _way(address, tried)
    yield from map(_horizon, holders)
    yield from _dead_rows(row, address)
    yield from _crowd(row)
    for name, size in slots:
        yield (
            f"The replication slot {name} is not in use, and the server keeps {_size(size)} of its "
            "log for it, until the disk is full. Start what replicates by it, or drop it: "
            f"select pg_drop_replication_slot('{name}')."
        )


def _settings(row: Mapping[str, Any]) -> Iterator[str]:
    if row["version_number"] < _OLDEST:
        yield (
            f"PostgreSQL {row['version']} is older than 14, the oldest that Trellis is made for. "
            "Upgrade the server."
        )
    if row["is_standby"]:
        yield (
            "This server is a standby: nothing can be created or claimed here. Point the URL at "
            "the primary, or name all hosts and add target_session_attrs=read-write."
        )
    if row["fsync"] != "on" or row["full_page_writes"] != "on":
        yield (
            "fsync or full_page_writes is off: a crash of the machine may damage the database. "
            "Turn both on in postgresql.conf."
        )
    if row["synchronous_commit"] == "off":
        yield (
            "synchronous_commit is off: what was acknowledged may be lost when the server "
            "crashes. Turn it on for this role: ALTER ROLE ... SET synchronous_commit = on."
        )
    if row["autovacuum"] != "on" or row["track_counts"] != "on":
        yield (
            "autovacuum does not run (autovacuum or track_counts is off): rows that are gone are "
            "never cleared away, and the tables grow without end. Turn both on in postgresql.conf."
        )


def _way(address: Address, tried: Probe) -> Iterator[str]:
    """Yield what is wrong between us and the server."""
    if tried.error is not None:
        yield f"The way to the server could not be tried on a connection of its own. {tried.error}"
        return
    match address.pooler, tried.pooler:
        case (("none" | "session"), "transaction"):
            yield (
                "There is a transaction pooler on the way, and the URL does not say so: settings, "
                "prepared statements and LISTEN are lost between transactions. Add "
                "pooler=transaction to the URL."
            )
        case "transaction", "none":
            yield (
                "The URL says pooler=transaction, but leads straight to the server: every "
                "statement takes needless round trips. Take it out of the URL."
            )
        case "transaction", "session":
            yield (
                "The URL says pooler=transaction, but the pooler keeps a connection for each "
                "client: every statement takes needless round trips. Say pooler=session."
            )
        case _:
            pass  # it is as the URL says, or a pooler that does no harm
    if tried.astray:
        found = ", ".join(
            f"{name} is {value} instead of {PINNED[name]}" for name, value in tried.astray.items()
        )
        yield (
            f"Settings do not reach the connections that claim: {found}. Claims may be planned "
            "badly and become slow. A pooler drops them: name it in the URL with pooler=session "
            "or pooler=transaction."
        )
    yield from _hearing(address, tried)


def _hearing(address: Address, tried: Probe) -> Iterator[str]:
    if address.wake == "listen" and not address.can_listen:
        if tried.pooler == "none":
            return  # the advice is another
        yield (
            "Behind a transaction pooler nobody can be woken: workers look for jobs once per poll "
            "interval. Add listen=postgresql://... (past the pooler) to the URL, or wake=poll if "
            "that is as you want it."
        )
    elif tried.can_hear is False and address.listen is not None:
        yield (
            "What is told at the URL is not heard at its listen=...: workers poll instead. That "
            "address must lead to the same database, past the pooler."
        )
    elif tried.can_hear is False:
        yield (
            "LISTEN is not heard: a transaction pooler is on the way, so workers poll instead. Add "
            "pooler=transaction and listen=postgresql://... (past the pooler) to the URL."
        )


def _horizon(holder: Horizon) -> str:
    since = "" if holder.seconds is None else f" for {_span(holder.seconds)}"
    age = f"{since} ({holder.transactions or 0:,} transactions ago)"
    match holder.kind:
        case "session":
            what = f"Process {holder.name} ({holder.who}) holds an old snapshot{age}."
            do = f"End its transaction: select pg_terminate_backend({holder.name})."
        case "prepared":
            what = f"The prepared transaction '{holder.name}' ({holder.who}) is open{age}."
            do = f"Finish it: COMMIT PREPARED '{holder.name}' or ROLLBACK PREPARED '{holder.name}'."
        case _:
            what = f"The replication slot {holder.name} ({holder.who}) holds an old snapshot{age}."
            do = (
                "End the long query on its standby, turn off hot_standby_feedback there, or drop "
                f"it: select pg_drop_replication_slot('{holder.name}')."
            )
    return (
        f"{what} Rows that are gone cannot be cleared away meanwhile: tables grow, and some claims "
        f"become slower. {do}"
    )


def _dead_rows(row: Mapping[str, Any], address: Address) -> Iterator[str]:
    dead, live = row["dead_queue_rows"] or 0, row["live_queue_rows"] or 0
    if dead < _DEAD or dead < _DEAD_PER_LIVE * live:
        return
    table, last = f"{address.schema}.queue", row["last_autovacuum"]
    came = "autovacuum has never been there" if last is None else f"autovacuum came at {last} UTC"
    yield (
        f"{table} has {dead:,} dead rows beside {live:,} live ones; {came}. If somebody holds an "
        "old snapshot, end that first; else see whether autovacuum is kept from its work, and run "
        f"VACUUM {table} once."
    )


def _crowd(row: Mapping[str, Any]) -> Iterator[str]:
    used, most = row["connections"], row["max_connections"]
    if used >= _CROWDED * most:
        yield (
            f"{used} of {most} connections are in use: a worker needs up to 3 and may not get "
            "them. Raise max_connections, or put a pooler before the server (pooler=transaction)."
        )


def _span(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _size(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} kB"
