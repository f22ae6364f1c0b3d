"""A claim on PostgreSQL of lanes that are limited: in a transaction that holds their limits.

It locks the rows of the limits, reads how far they are used in a later statement, which sees all
that the claims before it stored, leaves out the lanes of which nothing may start, claims from the
others, and stores what was taken of rates. Tokens of keys are taken after the claim; if a key has
too few, the transaction is rolled back (`Overdrawn`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from trellis.core.durations import Instant, Micros
from trellis.core.job import SessionId
from trellis.engines.demand import Demand
from trellis.engines.limits import Budget, next_token, scopes_of
from trellis.engines.postgres.claim_planner import Plan
from trellis.engines.postgres.connection import Connection, ServerConnection
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import limits
from trellis.engines.sql.key_rates import charge
from trellis.engines.sql.rows import Row

#: Where a row of a claim has the number of the lane, and what few jobs have.
_LANE: Final = 4
_EXTRAS: Final = 10
#: Where what few jobs have has the hash of the key.
_KEY_HASH: Final = 4


class Overdrawn(Exception):
    """Jobs were claimed whose keys have no tokens; the claim is rolled back."""

    def __init__(self, keys: set[str], now: Instant) -> None:
        super().__init__(f"{len(keys)} keys")
        self.keys = keys
        self.now = now


class Asked(NamedTuple):
    """The answer to a claim statement."""

    rows: Sequence[Row]
    #: What was really read.
    plan: Plan
    next_at: Instant | None = None
    #: Whether limits may have kept back jobs that another round can take.
    is_cut: bool = False


class Ask(NamedTuple):
    """What a claim statement takes beside its plan."""

    session: SessionId
    left: Sequence[int]
    limit: int
    first: int
    done: int
    #: The span of aging that the caller knows.
    aging: Micros | None


async def ask(
    connection: Connection | ServerConnection, plan: Plan, known: int, by: Ask
) -> Sequence[Row]:
    """Run the statement of a claim that nothing limits."""
    session, left, limit, first, done, aging = by
    lanes = plan.lanes
    if not lanes:
        return await connection.rows("claim_none", session, known, done)
    if len(lanes) == 1:
        most = min(limit, left[plan.demands[0]])
        return await connection.rows(
            "claim_lane", session, lanes[0], plan.starts[0], most, first, known, done,
            plan.policies[0],
        )  # fmt: skip
    return await connection.rows(
        "claim", session, lanes, plan.starts, plan.takes, first, known, done, plan.priorities,
        plan.demands, list(left), limit, plan.policies, aging,
    )  # fmt: skip


async def ask_limited(
    link: ServerConnection,
    registry: Registry,
    demands: Sequence[Demand],
    plan: Plan,
    by: Ask,
) -> Asked:
    """Claim within the limits of the lanes."""
    wanted = {scope for lane in plan.lanes for scope in scopes_of(registry.lanes[lane])}
    used = [registry.limits[scope] for scope in sorted(wanted & registry.limits.keys())]
    demanded = plan.lanes
    async with link.transaction("claim") as connection:
        tx = Transaction(connection, registry)
        settings, uses = await limits.lock_uses(tx, used) if used else ({}, {})
        budget = Budget(settings, uses, demands, tx.now)
        rooms = {lane: budget.room(registry.lanes[lane]) for lane in plan.lanes}
        plan = _within(plan, rooms)
        limited = [room for lane in plan.lanes if (room := rooms[lane]) is not None]
        if limited and len(plan.lanes) > 1:
            columns = _columns(registry, plan, budget, by)
            rows = await _ask_several(connection, plan, registry.known, columns, by)
        else:
            most = min([by.limit, *limited])
            rows = await ask(connection, plan, registry.known, by._replace(limit=most))
        now, flags, job = rows[0][:3]
        budget.start(now)
        if job is not None:
            for row in rows:
                budget.take(registry.lanes[row[_LANE]])
            await _charge_keys(tx, rows, now)
        next_at = None
        if not flags:  # with flags the limits may have changed, and the claim starts over
            await limits.spend(tx, used, budget.spent())
            next_at = await _next_at(tx, demanded, budget)
    shared = Counter(scope for lane in plan.lanes for scope in budget.scopes(registry.lanes[lane]))
    return Asked(rows, plan, next_at, max(shared.values(), default=0) > 1)


async def _next_at(tx: Transaction, lanes: Sequence[int], budget: Budget) -> Instant | None:
    """Return when a rate lets the next waiting job start."""
    token_times = budget.token_times()
    names = tx.registry.lanes
    short = [lane for lane in lanes if not token_times.keys().isdisjoint(scopes_of(names[lane]))]
    if not short:
        return None
    waiting = await tx.rows("claim_waiting", short)
    return next_token(token_times, (names[lane] for (lane,) in waiting))


async def _charge_keys(tx: Transaction, rows: Sequence[Row], now: Instant) -> None:
    """Take the tokens of the keys of claimed jobs; raise `Overdrawn` if there are too few."""
    started = [
        (key_hash, rate)
        for row in rows
        if (rate := tx.registry.key_rate(row[_LANE])) is not None
        and row[_EXTRAS] is not None
        and (key_hash := json.loads(row[_EXTRAS])[_KEY_HASH]) is not None
    ]
    overdrawn = await charge(tx, started, now)
    if overdrawn:
        raise Overdrawn(overdrawn, now)


def _within(plan: Plan, rooms: Mapping[int, int | None]) -> Plan:
    """Return the plan without lanes of which nothing may be taken, and with less of the others."""
    kept = [position for position, lane in enumerate(plan.lanes) if rooms[lane] != 0]
    takes = [
        plan.takes[at] if (room := rooms[plan.lanes[at]]) is None else min(plan.takes[at], room)
        for at in kept
    ]
    return replace(
        plan,
        lanes=[plan.lanes[at] for at in kept],
        priorities=[plan.priorities[at] for at in kept],
        demands=[plan.demands[at] for at in kept],
        policies=[plan.policies[at] for at in kept],
        starts=[plan.starts[at] for at in kept],
        takes=takes,
        is_limited=True,
    )


def _columns(registry: Registry, plan: Plan, budget: Budget, by: Ask) -> tuple[object, ...]:
    """Return the last parameters of `claim_limited`: what the limits leave of each lane."""
    positions = {scope: at for at, scope in enumerate(budget.left, 1)}
    of_queues: list[int] = []
    of_types: list[int] = []
    most: list[int] = []
    for lane, demand in zip(plan.lanes, plan.demands, strict=True):
        names = registry.lanes[lane]
        queue, job_type = scopes_of(names)
        of_queues.append(positions.get(queue, 0))
        of_types.append(positions.get(job_type, 0))
        room = budget.room(names)
        most.append(min(by.limit, by.left[demand], by.limit if room is None else room))
    free = by.limit if budget.free is None else budget.free
    return most, of_queues, of_types, list(budget.left.values()), free


async def _ask_several(
    connection: Connection, plan: Plan, known: int, columns: tuple[object, ...], by: Ask
) -> Sequence[Row]:
    session, left, limit, first, done, aging = by
    return await connection.rows(
        "claim_limited", session, plan.lanes, plan.starts, plan.takes, first, known, done,
        plan.priorities, plan.demands, list(left), limit, plan.policies, aging, *columns,
    )  # fmt: skip
