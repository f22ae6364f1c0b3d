"""Limits over the fleet on the SQL engines.

A claim that touches a limited scope first locks the rows of its limits, in one order everywhere,
then reads how far they are used, then claims, in one transaction: so two claims never count at the
same time. What runs is counted from rows, never from a counter, and settling a job writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from trellis.core.job import SessionId
from trellis.core.lifecycle import Transition
from trellis.core.limits import (
    Limit,
    LimitChange,
    LimitSetting,
    Scope,
    Spent,
    Use,
    decode_setting,
    encode_setting,
)
from trellis.engines.audit import By
from trellis.engines.limits import LimitStatus, change_of, status_of
from trellis.engines.sql import audit
from trellis.engines.sql.transaction import Transaction


class StoredLimit(NamedTuple):
    """The limit of a scope, and the number of its row."""

    number: int
    setting: LimitSetting


async def read_settings(tx: Transaction) -> tuple[list[StoredLimit], int]:
    """Return all limits, by kind and name, and the version of the latest change."""
    rows = await tx.rows("limit_settings")
    found = [
        StoredLimit(number, decode_setting(Scope(kind, service, name), declared, override))
        for number, kind, service, name, declared, override, _ in rows
    ]
    return found, max((row[-1] for row in rows), default=0)


async def declare_limits(tx: Transaction, declared: Sequence[tuple[Scope, Limit]]) -> None:
    """Store the limits that the code declares, where they differ from what is stored."""
    await tx.lock("limit_gate")
    await tx.read_clock()
    stored = {each.setting.scope: each.setting for each in (await read_settings(tx))[0]}
    for scope, limit in declared:
        before = stored.get(scope) or LimitSetting(scope)
        if before.declared != limit:
            await _put(tx, before._replace(declared=limit))


async def change_limit(tx: Transaction, scope: Scope, change: LimitChange, by: By) -> LimitSetting:
    """Set parts of a limit, or let the declared one count again."""
    await tx.lock("limit_gate")
    await tx.read_clock()
    stored = {each.setting.scope: each.setting for each in (await read_settings(tx))[0]}
    before = stored.get(scope) or LimitSetting(scope)
    after = before.changed(change)
    await _put(tx, after)
    if (entry := change_of(before, after)) is not None:
        await audit.record(tx, entry, by)
    return after


async def _put(tx: Transaction, setting: LimitSetting) -> None:
    scope = setting.scope
    await tx.run("limit_put", *scope, *encode_setting(setting))
    if scope.kind == "key":  # jobs that wait for a token by the old rate are looked at now
        await tx.run("key_wake_type", tx.now, scope.service, scope.name)
    tx.topics.add("ready")


async def declare_key_rate(tx: Transaction, scope: Scope, limit: Limit) -> None:
    """Store the rate of the keys of a type as its first job declares it, for claims to know.

    The transaction makes that job claimable, so a claim that sees the job sees the rate.
    """
    await tx.lock("limit_gate")
    await tx.run("limit_declare", *scope, *encode_setting(LimitSetting(scope, limit)))


async def list_limits(tx: Transaction) -> list[LimitStatus]:
    """Return all limits, and how far they are used."""
    await tx.read_clock()
    stored, _ = await read_settings(tx)
    numbers = [each.number for each in stored]
    counted = [each.number for each in stored if each.setting.scope.kind != "key"]
    uses = await read_uses(tx, numbers, counted)
    return [status_of(each.setting, uses[each.number], tx.now) for each in stored]


async def read_uses(
    tx: Transaction, numbers: Sequence[int], counted: Sequence[int]
) -> dict[int, Use]:
    """Return how far these limits are used; what runs is counted only for some of them."""
    rows = await tx.rows("limit_use", tx.array(numbers), tx.array(counted), *tx.lease_clock)
    if rows and not tx.now:  # PostgreSQL reads the clock with them: after the locks
        tx.now = rows[0][-1]
    return {number: Use(running, Spent(*spent)) for number, *spent, running, _ in rows}


async def lock_uses(
    tx: Transaction, limits: Collection[StoredLimit]
) -> tuple[dict[Scope, LimitSetting], dict[Scope, Use]]:
    """Keep other claims from using these limits; return them and how far they are used."""
    numbers = sorted(each.number for each in limits)
    counted = [each.number for each in limits if each.setting.in_force.active is not None]
    await tx.lock("limit_lock", numbers)
    uses = await read_uses(tx, numbers, counted)
    settings = {each.setting.scope: each.setting for each in limits}
    return settings, {each.setting.scope: uses.get(each.number, Use()) for each in limits}


async def spend(
    tx: Transaction, limits: Collection[StoredLimit], spent: Mapping[Scope, Spent]
) -> None:
    """Store the buckets of which tokens were taken."""
    numbers = {each.setting.scope: each.number for each in limits}
    await tx.run_many("limit_spend", sorted((numbers[scope], *of) for scope, of in spent.items()))


# -- ended attempts whose handlers may still run -----------------------------------------------


async def linger(tx: Transaction, transition: Transition) -> None:
    """Count an ended attempt while its handler may still run, unless its session is over."""
    fence = transition.before.fence
    lease = None if fence is None else await tx.one("session_lease", fence.session)
    if fence is not None and lease is not None:
        until = tx.lease_until(lease[0])
        await tx.run("lingering_add", transition.definition.row, *fence, *until)


async def end_stopped(tx: Transaction, session: SessionId, tokens: Sequence[int]) -> None:
    """Stop counting attempts whose handlers have stopped."""
    if await tx.changed("lingering_stopped", session, tx.array(tokens)):
        tx.topics.add("ready")


async def end_reaped(tx: Transaction, session: SessionId) -> None:
    """Stop counting the ended attempts of a session that is over."""
    if await tx.changed("lingering_reaped", session):
        tx.topics.add("ready")


async def end_overdue(tx: Transaction) -> None:
    """Stop counting attempts that have lingered long enough."""
    if await tx.changed("lingering_overdue", *tx.lease_clock):
        tx.topics.add("ready")
