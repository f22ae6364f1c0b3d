"""`claim` on SQLite: pick by priority and creation order over the demanded lanes, then lease.

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

from trellis.core.durations import Instant
from trellis.core.job import JobRecord, SessionId, build_context, build_definition, claimed_record
from trellis.core.policy import Policy
from trellis.core.timers import look_at
from trellis.engines.sql import maintenance
from trellis.engines.sql.rows import Lane, Row, decode_failure, decode_tags, encode_ids
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.values import Claimed, Demand

#: Where the extras of a job have its deadline and the hash of its key.
_DEADLINE, _KEY_HASH = 2, 4
_NO_JOBS: Final = "[]"
_NO_EXTRAS: Final = (None,) * 10


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


def peek(tx: Transaction, session: SessionId, demands: Sequence[Demand]) -> RawClaim | None:
    """Answer a claim that would find nothing, without writing; None if it might find something."""
    for lane in _lanes(tx, demands):
        if tx.one("claim_peek", lane) or tx.one("due_peek", lane, tx.now):
            return None
    return RawClaim(tx.now, session)


def claim(tx: Transaction, session: SessionId, demands: Sequence[Demand], limit: int) -> RawClaim:
    """Lease up to `limit` due jobs to this session."""
    nothing = RawClaim(tx.now, session)
    if tx.one("session_lease", session) is None:
        return nothing
    lanes = _lanes(tx, demands)
    if any(tx.one("due_peek", lane, tx.now) for lane in lanes):
        run_through(maintenance.promote_due(tx.shared, lanes, limit))
    jobs = _pick(tx, demands, lanes, limit)
    if jobs == _NO_JOBS:
        return nothing
    raw = _read(tx, session, jobs)
    tx.run("claim_take", raw.first_token, session, tx.now, jobs)
    tx.run("claim_event", jobs)
    _write_extras(tx, raw)
    return raw


def _read(tx: Transaction, session: SessionId, jobs: str) -> RawClaim:
    facts, payloads, lanes, policies, extras = tx.rows("claim_rows", jobs)[0]
    return RawClaim(
        tx.now,
        session,
        # One random start per list and a number per job: no two claims ever share a token.
        secrets.randbits(62),
        facts,
        payloads,
        json.loads(extras),
        {number: tx.registry.lane(tx, number) for number in json.loads(lanes)},
        {number: tx.registry.policy(tx, number) for number in json.loads(policies)},
    )


def _lanes(tx: Transaction, demands: Sequence[Demand]) -> dict[int, int]:
    """Return the numbers of the demanded lanes, each with the index of its demand."""
    tx.registry.refresh_lanes(tx)
    wanted = {
        (demand.service, demand.queue, job_type): index
        for index, demand in enumerate(demands)
        for job_type in demand.types
    }
    paused = {(service, queue) for service, queue, paused, _ in tx.rows("queue_settings") if paused}
    return {
        number: wanted[lane.service, lane.queue, lane.type]
        for number, lane in tx.registry.lanes.items()
        if (lane.service, lane.queue, lane.type) in wanted
        and (lane.service, lane.queue) not in paused
    }


def _pick(tx: Transaction, demands: Sequence[Demand], lanes: dict[int, int], limit: int) -> str:
    """Return the numbers of the jobs to take, as the JSON array that the statements unpack."""
    left = [demand.limit for demand in demands]
    if len(lanes) == 1:
        ((lane, demand),) = lanes.items()
        ((picked,),) = tx.rows("claim_pick_few", lane, tx.now, min(limit, left[demand]))
        return str(picked)
    return encode_ids(_merge(tx, lanes, left, limit))


def _merge(tx: Transaction, lanes: dict[int, int], left: list[int], limit: int) -> list[int]:
    """Pick over several lanes; a lane whose demand is used up is not read any further."""
    waiting: list[tuple[int, int, int]] = []
    cursors = {lane: iter(tx.stream("claim_pick", lane, tx.now)) for lane in lanes}

    def advance(lane: int) -> None:
        for (job,) in cursors[lane]:
            heapq.heappush(waiting, (-tx.registry.lanes[lane].priority, job, lane))
            return

    for lane in lanes:
        advance(lane)
    picked: list[int] = []
    while waiting and len(picked) < limit:
        _, job, lane = heapq.heappop(waiting)
        if left[lanes[lane]] > 0:
            left[lanes[lane]] -= 1
            picked.append(job)
            advance(lane)
    return picked


def _write_extras(tx: Transaction, raw: RawClaim) -> None:
    """Write what only some jobs need: when to look at them, and which attempt holds their slot."""
    if not _has_timers_or_keys(raw):
        return
    for record in build(raw).jobs:
        definition, head = record
        if definition.deadline_at is not None or definition.policy.is_watched:
            tx.run("claim_watch", look_at(definition, head), definition.row)
        if definition.key_hash is not None and head.fence is not None:
            tx.run("claim_slot", *head.fence, definition.row)


def _has_timers_or_keys(raw: RawClaim) -> bool:
    return any(policy.is_watched for policy in raw.policies.values()) or any(
        extra[_DEADLINE] is not None or extra[_KEY_HASH] is not None
        for extra in raw.extras.values()
    )


def build(raw: RawClaim) -> Claimed:
    """Make the values of a claim."""
    now, session, first_token, facts, payloads, extras, lanes, policies = raw
    records: list[JobRecord] = []
    end = 0
    for (
        row, job_id, lane_number, policy, length, created_at, traceparent, schema_version,
        version, generation, attempt, claims, crashes, run_at, suspect,
    ) in json.loads(facts):  # fmt: skip
        (
            request_id, tracestate, deadline_at, key, key_hash, tags, config, expect, clone_of,
            error,
        ) = extras.get(str(row), _NO_EXTRAS) if extras else _NO_EXTRAS  # fmt: skip
        start, end = end, end + length
        lane = lanes[lane_number]
        definition = build_definition(
            row, job_id, lane.service, lane.type, lane.queue, payloads[start:end],
            policies[policy],
            build_context(job_id if request_id is None else request_id, traceparent, tracestate),
            lane.priority, created_at, deadline_at, key, key_hash,
            () if tags is None else decode_tags(tags), config, expect, schema_version, clone_of,
        )  # fmt: skip
        record = claimed_record(
            definition, session, first_token + row, now, version + 1, generation, attempt + 1,
            claims + 1, crashes, run_at, suspect == 1,
            None if error is None else decode_failure(error),
        )  # fmt: skip
        records.append(record)
    return Claimed(now, tuple(records))
