"""`claim` on SQLite: pick in the order of claims over the demanded lanes, then lease.

Lanes are merged lazily from index cursors, so jobs of types the worker does not know are never
read, however many wait. The writer thread only runs statements; the caller's thread builds the
values (`build`) while the writer is at the next transaction. What is stored is what the rule for
`Claim` says; the conformance suite compares the two.
"""

from __future__ import annotations

import heapq
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from trellis.core.durations import Instant, Micros
from trellis.core.fairness import claim_order
from trellis.core.job import (
    Definition,
    JobRecord,
    SessionId,
    build_context,
    build_definition,
    claimed_record,
)
from trellis.core.limits import Rate, Scope
from trellis.core.policy import DEFAULT_POLICY, Policy, in_force
from trellis.core.timers import look_at
from trellis.engines.demand import Demand, demanded
from trellis.engines.limits import Budget, key_scope, next_token, scopes_of
from trellis.engines.sql import limits, maintenance, slots
from trellis.engines.sql.key_rates import MOST_WITHDRAWALS, charge
from trellis.engines.sql.limits import StoredLimit
from trellis.engines.sql.rows import (
    Lane,
    Row,
    decode_failure,
    decode_relations,
    decode_tags,
    dedupe_from,
    encode_ids,
)
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.values import Claimed

#: Where the extras of a job have its deadline, the hash of its key, the attempts and the timeout it
#: asks for, and its latest error.
_DEADLINE, _KEY_HASH, _ATTEMPTS, _TIMEOUT, _ERROR = 2, 4, 9, 10, 11
_NO_JOBS: Final = "[]"
_NO_LANE: Final = Lane("", "", "", 0)


class RawClaim(NamedTuple):
    """What a claim took, as `claim_rows` returns it; `build` makes the values."""

    now: Instant
    session: SessionId
    #: With the number of a job added, the token of its claim.
    first_token: int = 0
    facts: str = "[]"
    payloads: str = ""
    extras: Mapping[str, Row] = {}
    lanes: Mapping[int, Lane] = {}
    policies: Mapping[int, Policy] = {}
    #: By lane, the number of the policy that the worker declares.
    declared: Mapping[int, int] = {}
    #: When a rate lets the next job start.
    next_at: Instant | None = None


class Limited(NamedTuple):
    """The limits of the lanes of a claim, and the rates of their keys."""

    limits: Sequence[StoredLimit]
    budget: Budget
    #: The lanes, also those of which no job may start now.
    lanes: Mapping[int, Lane]
    key_rates: Mapping[Scope, Rate]


def peek(tx: Transaction, session: SessionId, demands: Sequence[Demand]) -> RawClaim | None:
    """Answer a claim that would find nothing, without writing; None if it might find something."""
    lanes, limited = _lanes(tx, demands)
    if any(_has_waiting(tx, lane) for lane in lanes):
        return None
    if limited is None or tx.one("session_lease", session) is None:
        return RawClaim(tx.now, session)
    if limited.budget.spent():
        return None
    return RawClaim(tx.now, session, next_at=_next_at(tx, limited))


def claim(tx: Transaction, session: SessionId, demands: Sequence[Demand], limit: int) -> RawClaim:
    """Lease up to `limit` due jobs to this session."""
    if tx.one("session_lease", session) is None:
        return RawClaim(tx.now, session)
    for _ in range(MOST_WITHDRAWALS):
        lanes, limited = _lanes(tx, demands)
        if any(tx.one("due_peek", lane, tx.now) for lane in lanes):
            run_through(maintenance.promote_due(tx.shared, lanes, limit))
            lanes, limited = _lanes(tx, demands)  # a key's first job stores the rate of its type
        declared = _declared(tx, demands, lanes)
        budget = None if limited is None else limited.budget
        picked, by_policy = _pick(tx, demands, lanes, declared, limit=limit, budget=budget)
        if picked == _NO_JOBS:
            return _spend(tx, RawClaim(tx.now, session), limited)
        raw = _read(tx, session, picked, declared)
        overdrawn = _charge_keys(tx, raw, limited)
        if not overdrawn:
            return _take(tx, raw, picked, by_policy, limited)
        run_through(slots.withdraw(tx.shared, overdrawn))
    return RawClaim(tx.now, session, next_at=tx.now)


def _charge_keys(tx: Transaction, raw: RawClaim, limited: Limited | None) -> set[str]:
    """Take the tokens of the keys of these jobs; return the keys that have too few."""
    if limited is None or not limited.key_rates:
        return set()
    started = [
        (key_hash, rate)
        for job, _, lane, *_ in json.loads(raw.facts)
        if (rate := limited.key_rates.get(key_scope(raw.lanes[lane]))) is not None
        and (extra := raw.extras.get(str(job))) is not None
        and (key_hash := extra[_KEY_HASH]) is not None
    ]
    return run_through(charge(tx.shared, started, tx.now))


def _take(
    tx: Transaction,
    raw: RawClaim,
    picked: str,
    by_policy: Mapping[int | None, str],
    limited: Limited | None,
) -> RawClaim:
    """Lease the jobs that were picked."""
    session = raw.session
    for policy, jobs in by_policy.items():
        tx.run("claim_take", raw.first_token, session, tx.now, policy, jobs)
    tx.run("claim_event", picked)
    _write_extras(tx, raw)
    return _spend(tx, raw, limited)


def _spend(tx: Transaction, raw: RawClaim, limited: Limited | None) -> RawClaim:
    """Store what was taken of rates; add when the next token comes."""
    if limited is None:
        return raw
    run_through(limits.spend(tx.shared, limited.limits, limited.budget.spent()))
    return raw._replace(next_at=_next_at(tx, limited))


def _next_at(tx: Transaction, limited: Limited) -> Instant | None:
    token_times = limited.budget.token_times()
    if not token_times:
        return None
    waiting = (names for lane, names in limited.lanes.items() if _has_waiting(tx, lane))
    return next_token(token_times, waiting)


def _has_waiting(tx: Transaction, lane: int) -> bool:
    """Return whether a lane has a claimable job, or one whose run time has come."""
    return bool(tx.one("claim_peek", lane) or tx.one("due_peek", lane, tx.now))


def _read(tx: Transaction, session: SessionId, jobs: str, declared: Mapping[int, int]) -> RawClaim:
    facts, payloads, lanes, policies, before, extras = tx.rows("claim_rows", jobs)[0]
    numbers = {*json.loads(policies), *json.loads(before), *declared.values()}
    return RawClaim(
        tx.now,
        session,
        # One random start per list and a number per job: no two claims ever share a token.
        secrets.randbits(62),
        facts,
        payloads,
        json.loads(extras),
        {number: tx.registry.lane(tx, number) for number in json.loads(lanes)},
        {number: tx.registry.policy(tx, number) for number in numbers},
        declared,
    )


def _lanes(tx: Transaction, demands: Sequence[Demand]) -> tuple[dict[int, int], Limited | None]:
    """Return the demanded lanes that may be read, each with the index of its demand.

    Lanes of which no job may start now are left out, however many wait in them.
    """
    tx.registry.refresh_lanes(tx)
    lanes = tx.registry.lanes
    wanted = demanded(demands, {lane[:3] for lane in lanes.values()})
    settings = tx.rows("claim_settings")
    paused = {(service, queue) for kind, service, queue in settings if kind == "paused"}
    found = {
        number: wanted[lane[:3]]
        for number, lane in lanes.items()
        if lane[:3] in wanted and lane[:2] not in paused
    }
    if not any(kind == "limit" for kind, _, _ in settings):
        return found, None
    limited = _limited(tx, demands, {number: lanes[number] for number in found})
    if limited is None:
        return found, None
    room = limited.budget.room
    return {each: at for each, at in found.items() if room(lanes[each]) != 0}, limited


def _limited(
    tx: Transaction, demands: Sequence[Demand], lanes: Mapping[int, Lane]
) -> Limited | None:
    """Return the limits of these lanes, and what may be taken of them."""
    stored, _ = run_through(limits.read_settings(tx.shared))
    holding = [each for each in stored if each.setting.in_force]
    wanted = {scope for lane in lanes.values() for scope in scopes_of(lane)}
    used = [each for each in holding if each.setting.scope in wanted]
    of_keys = {key_scope(lane) for lane in lanes.values()}
    rates = {
        each.setting.scope: rate
        for each in holding
        if each.setting.scope in of_keys and (rate := each.setting.in_force.bucket) is not None
    }
    if not used and not rates:
        return None
    settings, uses = run_through(limits.lock_uses(tx.shared, used)) if used else ({}, {})
    return Limited(used, Budget(settings, uses, demands, tx.now), lanes, rates)


def _declared(
    tx: Transaction, demands: Sequence[Demand], lanes: Mapping[int, int]
) -> dict[int, int]:
    """Return the numbers of the policies that the worker declares, by lane."""
    declared: dict[int, int] = {}
    for number, demand in lanes.items():
        policy = demands[demand].policy_of(tx.registry.lanes[number].type)
        if policy is not None:
            declared[number] = tx.registry.policy_number(tx, policy)
    return declared


def _pick(
    tx: Transaction,
    demands: Sequence[Demand],
    lanes: dict[int, int],
    declared: Mapping[int, int],
    *,
    limit: int,
    budget: Budget | None,
) -> tuple[str, dict[int | None, str]]:
    """Return the jobs to take, all and by declared policy, as JSON arrays of their numbers."""
    left = [demand.limit for demand in demands]
    if len(lanes) == 1:
        ((lane, demand),) = lanes.items()
        most = min(limit, left[demand])
        room = None if budget is None else budget.room(tx.registry.lanes[lane])
        ((picked,),) = tx.rows(
            "claim_pick_few", lane, tx.now, most if room is None else min(most, room)
        )
        if budget is not None:
            budget.take(tx.registry.lanes[lane], len(json.loads(picked)))
        return picked, {declared.get(lane): picked}
    jobs = _merge(tx, lanes, left, limit, budget)
    by_policy: dict[int | None, list[int]] = {}
    for job, lane in jobs:
        by_policy.setdefault(declared.get(lane), []).append(job)
    return (
        encode_ids([job for job, _ in jobs]),
        {policy: encode_ids(some) for policy, some in by_policy.items()},
    )


def _merge(
    tx: Transaction, lanes: dict[int, int], left: list[int], limit: int, budget: Budget | None
) -> list[tuple[int, int]]:
    """Pick jobs over several lanes, each with its lane, until all demands are met."""
    names = tx.registry.lanes
    waiting: list[tuple[int, int, int, int]] = []
    setting = tx.one("aging")
    aging = None if setting is None else setting[0]
    cursors = {lane: iter(tx.stream("claim_pick", lane, tx.now)) for lane in lanes}

    def advance(lane: int) -> None:
        for rank, job in cursors[lane]:
            order = claim_order(names[lane].priority, rank, aging)
            heapq.heappush(waiting, (*order, job, lane))
            return

    for lane in lanes:
        advance(lane)
    picked: list[tuple[int, int]] = []
    while waiting and len(picked) < limit:
        *_, job, lane = heapq.heappop(waiting)
        if left[lanes[lane]] > 0 and (budget is None or budget.room(names[lane]) != 0):
            if budget is not None:
                budget.take(names[lane])
            left[lanes[lane]] -= 1
            picked.append((job, lane))
            advance(lane)
    return picked


def _write_extras(tx: Transaction, raw: RawClaim) -> None:
    """Write what only some jobs need: when to look at them, and which attempt holds their slot."""
    if not _has_timers_or_keys(raw):
        return
    for record in build(raw).jobs:
        definition, head = record
        if definition.deadline_at is not None or definition.policy.has_timers:
            tx.run("claim_watch", look_at(definition, head), definition.row)
        if definition.key_hash is not None and head.fence is not None:
            tx.run("claim_slot", *head.fence, definition.row)


def _has_timers_or_keys(raw: RawClaim) -> bool:
    return any(policy.has_timers for policy in raw.policies.values()) or any(
        any(extra[place] is not None for place in (_DEADLINE, _KEY_HASH, _TIMEOUT))
        for extra in raw.extras.values()
    )


def build(raw: RawClaim) -> Claimed:
    """Make the values of a claim."""
    now, session, first_token, facts, payloads, extras, lanes, policies, declared, next_at = raw
    records: list[JobRecord] = []
    # Most jobs of a claim are of one lane and under one policy, and use none of the extras.
    source: tuple[int, int, int | None] | None = None
    lane, usual, in_use = _NO_LANE, DEFAULT_POLICY, None
    service, queue, job_type, priority = lane
    end = 0
    for (
        row, job_id, lane_number, policy, length, created_at, traceparent, schema_version,
        version, generation, attempt, claims, crashes, run_at, suspect, latest,
    ) in json.loads(facts):  # fmt: skip
        start, end = end, end + length
        if source != (found := (lane_number, policy, latest)):
            source, in_use = found, declared.get(lane_number, latest)
            service, queue, job_type, priority = lane = lanes[lane_number]
            usual = _in_force(policies, policy, in_use)
        extra = extras.get(str(row)) if extras else None
        error = None
        if extra is None:
            definition = build_definition(
                row, job_id, service, job_type, queue, payloads[start:end], usual,
                build_context(job_id, traceparent, None), priority, created_at,
                None, None, None, (), None, None, schema_version,
            )  # fmt: skip
        else:
            error = extra[_ERROR]
            in_force = _in_force(policies, policy, in_use, extra[_ATTEMPTS], extra[_TIMEOUT])
            same = row, job_id, payloads[start:end], created_at, traceparent, schema_version
            definition = _unusual(lane, in_force, same, extra)
        record = claimed_record(
            definition, session, first_token + row, now, version + 1, generation, attempt + 1,
            claims + 1, crashes, run_at, suspect == 1,
            None if error is None else decode_failure(error),
        )  # fmt: skip
        records.append(record)
    return Claimed(now, tuple(records), next_at)


def _unusual(lane: Lane, policy: Policy, same: Row, extra: Row) -> Definition:
    """Return the definition of a job that uses optional columns."""
    row, job_id, payload, created_at, traceparent, schema_version = same
    (
        request_id, tracestate, deadline_at, key, key_hash, tags, config, expect, clone_of,
        attempts, timeout, _, dedupe, dedupe_while, dedupe_until, relations,
    ) = extra  # fmt: skip
    return build_definition(
        row, job_id, lane.service, lane.type, lane.queue, payload, policy,
        build_context(job_id if request_id is None else request_id, traceparent, tracestate),
        lane.priority, created_at, deadline_at, key, key_hash,
        () if tags is None else decode_tags(tags), config, expect, schema_version, clone_of,
        None if dedupe is None else dedupe_from(dedupe, dedupe_while, dedupe_until, created_at),
        attempts, timeout, None if relations is None else decode_relations(relations),
    )  # fmt: skip


def _in_force(
    policies: Mapping[int, Policy],
    created: int,
    declared: int | None,
    attempts: int | None = None,
    timeout: Micros | None = None,
) -> Policy:
    latest = None if declared is None else policies[declared]
    return in_force(policies[created], latest, attempts, timeout)
