"""The health of a PostgreSQL engine: the server, the settings in force, what is wrong.

The server is asked for its settings. Whether settings arrive, whether a pooler is between the
engine and the server, and whether notifications arrive is tested on separate connections, which are
closed afterwards; nothing is changed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from trellis.engines.postgres.blockers import Blocker, advice, in_units, look
from trellis.engines.postgres.connection import PINNED, PLAIN, ServerConnection, connect
from trellis.engines.postgres.export import read_seal
from trellis.engines.postgres.url import Address
from trellis.engines.transfer import seal_warnings
from trellis.engines.values import Health
from trellis.errors import TrellisError

#: An old snapshot is reported from this age on: seconds, or transactions since.
_SECONDS: Final = 60.0
_TRANSACTIONS: Final = 50_000
#: How many seconds a transaction may block others before that is reported.
_BLOCKED: Final = 1.0
#: How long a notification may take.
_ECHO: Final = 2.0
_OLDEST_VERSION: Final = 140_000
#: The share of connections in use that is too high.
_CROWDED: Final = 0.85
#: The numbers of dead rows, and of dead rows per live row, that are too high.
_DEAD: Final = 50_000
_DEAD_PER_LIVE: Final = 2

Pooler = Literal["none", "session", "transaction"]


class Probe(NamedTuple):
    """The result of the tests on separate connections."""

    #: What is between the engine and the server.
    pooler: Pooler = "none"
    #: Settings of the connections that claim which differ from what the engine asked for.
    astray: Mapping[str, str] = {}
    #: Whether notifications arrive; None if the engine does not listen.
    is_notified: bool | None = None
    #: Why nothing could be tested.
    error: str | None = None


class Horizon(NamedTuple):
    """What keeps vacuum from removing dead rows."""

    kind: str
    name: str
    who: str
    seconds: float | None
    transactions: int | None


async def describe(
    server: ServerConnection, address: Address, *, is_notified: bool | None
) -> Health:
    """Ask the server, and test the connections to it."""
    tried = await probe(address)
    if tried.is_notified is None and address.can_listen:
        tried = tried._replace(is_notified=is_notified)
    blockers = await look(server, address.schema, None)
    row: Any
    (row,) = await server.rows("health")
    holders = [
        Horizon(*each) for each in await server.rows("health_horizon", _SECONDS, _TRANSACTIONS)
    ]
    slots = [(name, size) for name, size in await server.rows("health_slots")]
    facts = _facts(row, address, tried)
    seal = read_seal(await server.value("export_seal"))
    if seal is not None:
        facts["moved_to"] = seal.address
    warnings = [
        *seal_warnings(seal),
        *_blockers(blockers),
        *findings(row, address, tried, holders, slots),
    ]
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
        "pooler": tried.pooler if tried.error is None else "not tested",
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
    return {True: "listen", False: "poll (LISTEN receives nothing)", None: "listen (not tested)"}[
        tried.is_notified
    ]


def _durability(facts: dict[str, Any]) -> str:
    if facts["fsync"] == "on" and facts["synchronous_commit"] != "off":
        return "what was acknowledged survives a crash of the server and a power cut"
    if facts["fsync"] == "on":
        return "the last moments before a crash of the server may be lost"
    return "a crash of the machine may damage the database"


# -- tests on separate connections -------------------------------------------------------------


async def probe(address: Address) -> Probe:
    """Test what the server cannot report."""
    try:
        async with AsyncExitStack() as stack:
            one, other = [await stack.enter_async_context(_opened(address)) for _ in range(2)]
            pooler = await _pooler(one, other)
            is_notified = await _is_notified(address, one) if address.can_listen else None
            return Probe(pooler, await _astray(one), is_notified)
    except TrellisError as error:
        return Probe(error=str(error))


@asynccontextmanager
async def _opened(address: Address) -> AsyncIterator[ServerConnection]:
    server = ServerConnection(address, PINNED)
    try:
        yield server
    finally:
        await server.close()


async def _astray(server: ServerConnection) -> dict[str, str]:
    async with server.transaction() as connection:
        rows = await connection.rows("health_settings", list(PINNED))
    return {name: found for name, found in rows if found != PINNED[name]}


async def _pooler(one: ServerConnection, other: ServerConnection) -> Pooler:
    """Return which pooler there is: it reports another backend than the server, and may share."""
    seen: dict[ServerConnection, set[int]] = {one: set(), other: set()}
    # In this order, because a pooler may give out the connection used last, or the next of a few.
    for server in (one, one, other, one, other, other):
        named, found = await _backend(server)
        if named == found:
            return "none"
        seen[server].add(found)
    return "transaction" if len(seen[one]) > 1 or seen[one] & seen[other] else "session"


async def _backend(server: ServerConnection) -> tuple[int, int]:
    """Return the process number of the backend: as reported at connect, and as it is."""
    async with server.transaction() as connection:
        return connection.driver.get_server_pid(), await connection.value("backend_pid")


async def _is_notified(address: Address, sender: ServerConnection) -> bool:
    """Return whether a notification arrives at the connection that listens."""
    receiver = address
    if address.listen is not None:
        receiver = replace(address, dsn=address.listen, pooler="none", listen=None)
    connection = await connect(receiver, PLAIN)
    arrived, token = asyncio.Event(), secrets.token_hex(8)

    def receive(_connection: Any, _pid: int, _channel: str, payload: object) -> None:  # noqa: ANN401
        if payload == token:
            arrived.set()

    try:
        channel = f"{address.schema}_doctor"
        await connection.driver.add_listener(channel, receive)
        await sender.rows("notify", channel, token)
        async with asyncio.timeout(_ECHO):
            await arrived.wait()
    except TimeoutError:
        return False
    else:
        return True
    finally:
        connection.driver.terminate()


# -- findings ----------------------------------------------------------------------------------


def findings(
    row: Mapping[str, Any],
    address: Address,
    tried: Probe,
    holders: Sequence[Horizon],
    slots: Sequence[tuple[str, int]],
) -> Iterator[str]:
    """Yield a sentence for everything that is wrong, the worst first."""
    yield from _settings(row)
    yield from _connection(address, tried)
    yield from map(_horizon, holders)
    yield from _dead_rows(row, address)
    yield from _crowd(row)
    for name, size in slots:
        yield (
            f"The replication slot {name} is not in use, and the server keeps {_size(size)} of its "
            "log for it, until the disk is full. Start what replicates by it, or drop it: "
            f"select pg_drop_replication_slot('{name}')."
        )


def _blockers(blockers: Sequence[Blocker]) -> Iterator[str]:
    if long := [each for each in blockers if (each.seconds or _BLOCKED) >= _BLOCKED]:
        yield f"Statements on the tables of Trellis wait for a lock. {advice(long)}"


def _settings(row: Mapping[str, Any]) -> Iterator[str]:
    if row["version_number"] < _OLDEST_VERSION:
        yield (
            f"PostgreSQL {row['version']} is older than 14, the oldest that Trellis supports. "
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
            "autovacuum does not run (autovacuum or track_counts is off): dead rows are "
            "never removed, and the tables grow without end. Turn both on in postgresql.conf."
        )


def _connection(address: Address, tried: Probe) -> Iterator[str]:
    """Yield what is wrong between the engine and the server."""
    if tried.error is not None:
        yield f"The connection to the server could not be tested. {tried.error}"
        return
    match address.pooler, tried.pooler:
        case (("none" | "session"), "transaction"):
            yield (
                "A transaction pooler is in front of the server, but the URL does not name it: "
                "settings, prepared statements and LISTEN are lost between transactions. Add "
                "pooler=transaction to the URL."
            )
        case "transaction", "none":
            yield (
                "The URL has pooler=transaction, but leads directly to the server: every "
                "statement takes unnecessary round trips. Remove it from the URL."
            )
        case "transaction", "session":
            yield (
                "The URL has pooler=transaction, but the pooler keeps a connection for each "
                "client: every statement takes unnecessary round trips. Use pooler=session."
            )
        case _:
            pass  # as the URL says, or a pooler that does no harm
    if tried.astray:
        found = ", ".join(
            f"{name} is {value} instead of {PINNED[name]}" for name, value in tried.astray.items()
        )
        yield (
            f"The settings do not reach the connections that claim jobs: {found}. Claims may be "
            "planned badly and become slow. A pooler drops them: name it in the URL with "
            "pooler=session or pooler=transaction."
        )
    yield from _notifications(address, tried)


def _notifications(address: Address, tried: Probe) -> Iterator[str]:
    if address.wake == "listen" and not address.can_listen:
        if tried.pooler == "none":
            return  # another finding says what to do
        yield (
            "Behind a transaction pooler, workers cannot be woken: they poll for jobs once per "
            "interval. Add listen=postgresql://... (past the pooler) to the URL, or wake=poll to "
            "accept that."
        )
    elif tried.is_notified is False and address.listen is not None:
        yield (
            "Notifications sent at the URL do not arrive at its listen=...: workers poll instead. "
            "That address must lead to the same database, past the pooler."
        )
    elif tried.is_notified is False:
        yield (
            "LISTEN receives nothing: a transaction pooler is in front of the server, so workers "
            "poll. Add "
            "pooler=transaction and listen=postgresql://... (past the pooler) to the URL."
        )


def _horizon(holder: Horizon) -> str:
    since = "" if holder.seconds is None else f" for {in_units(holder.seconds)}"
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
        f"{what} Until it ends, dead rows cannot be removed: tables grow, and some claims become "
        f"slower. {do}"
    )


def _dead_rows(row: Mapping[str, Any], address: Address) -> Iterator[str]:
    dead, live = row["dead_queue_rows"] or 0, row["live_queue_rows"] or 0
    if dead < _DEAD or dead < _DEAD_PER_LIVE * live:
        return
    table, last = f"{address.schema}.queue", row["last_autovacuum"]
    ran = "autovacuum has never run on it" if last is None else f"autovacuum ran at {last} UTC"
    yield (
        f"{table} has {dead:,} dead rows beside {live:,} live ones; {ran}. If a transaction holds "
        "an old snapshot, end it first; otherwise check what blocks autovacuum, and run "
        f"VACUUM {table} once."
    )


def _crowd(row: Mapping[str, Any]) -> Iterator[str]:
    used, most = row["connections"], row["max_connections"]
    if used >= _CROWDED * most:
        yield (
            f"{used} of {most} connections are in use: a worker needs up to 3 and may not get "
            "them. Raise max_connections, or put a pooler "
            "in front of the server (pooler=transaction)."
        )


def _size(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} kB"
