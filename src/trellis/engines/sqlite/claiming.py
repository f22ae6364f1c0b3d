"""`claim` on SQLite: pick by priority and creation order over the demanded lanes, then lease.

Lanes are merged lazily from index cursors, so jobs of types the worker does not know are never
read, however many wait. The writer thread only runs statements; the caller's thread builds the
values (`build`) while the writer is at the next transaction. What is stored is what the rule for
`Claim` says; the conformance suite compares the two.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from trellis.core.agenda import look_at
from trellis.core.context import Context
from trellis.core.job import Definition, Fence, Head, JobRecord, SessionId
from trellis.core.policy import Policy
from trellis.core.spans import Instant
from trellis.core.states import State
from trellis.engines.sqlite.books import Lane
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.sqlite.upkeep import promote_due
from trellis.engines.sqlkit.rows import Row, decode_failure, decode_tags, encode_ids
from trellis.engines.values import Claimed, Demand

# Where `claim_rows` has the columns that decide what else a claim must write.
_LANE, _POLICY, _DEADLINE, _KEY_HASH = 2, 3, 9, 11


#: Makes a named tuple from its fields in order, at half the cost of calling its class.
_make: Final = tuple.__new__


class RawClaim(NamedTuple):
    """What a claim took, as rows; `build` makes the values."""

    now: Instant
    session: SessionId
    first_token: int = 0
    rows: Sequence[Row] = ()
    lanes: Mapping[int, Lane] = {}
    policies: Mapping[int, Policy] = {}


def peek(tx: Transaction, session: SessionId, demands: Sequence[Demand]) -> RawClaim | None:
    """Answer a claim that would find nothing, without writing; None if it might find something."""
    for lane in _lanes(tx, demands):
        if tx.one("claim_peek", lane) or tx.one("due_later", lane, tx.now, 1):
            return None
    return RawClaim(tx.now, session)


def claim(tx: Transaction, session: SessionId, demands: Sequence[Demand], limit: int) -> RawClaim:
    """Lease up to `limit` due jobs to this session."""
    nothing = RawClaim(tx.now, session)
    if tx.one("session_lease", session) is None:
        return nothing
    lanes = _lanes(tx, demands)
    promote_due(tx, lanes, limit)
    jobs = _pick(tx, demands, lanes, limit)
    if not jobs:
        return nothing
    rows = tx.rows("claim_rows", encode_ids(jobs))
    # One random start per batch and a step per job: no two claims ever share a token.
    first = secrets.randbits(62) + 1
    raw = RawClaim(
        tx.now,
        session,
        first,
        rows,
        {number: tx.books.lane(tx, number) for number in {row[_LANE] for row in rows}},
        {number: tx.books.policy(tx, number) for number in {row[_POLICY] for row in rows}},
    )
    tx.run_many("claim_take", [(row[0], first + i) for i, row in enumerate(rows)], session, tx.now)
    tx.run_many("claim_event", [(row[0],) for row in rows])
    _write_extras(tx, raw)
    return raw


def _lanes(tx: Transaction, demands: Sequence[Demand]) -> dict[int, int]:
    """Return the numbers of the demanded lanes, each with the index of its demand."""
    tx.books.refresh_lanes(tx)
    wanted = {
        (demand.service, demand.queue, job_type): index
        for index, demand in enumerate(demands)
        for job_type in demand.types
    }
    paused = {(service, queue) for service, queue, paused, _ in tx.rows("queue_settings") if paused}
    return {
        number: wanted[lane.service, lane.queue, lane.type]
        for number, lane in tx.books.lanes.items()
        if (lane.service, lane.queue, lane.type) in wanted
        and (lane.service, lane.queue) not in paused
    }


def _pick(
    tx: Transaction, demands: Sequence[Demand], lanes: dict[int, int], limit: int
) -> list[int]:
    left = [demand.limit for demand in demands]
    if len(lanes) == 1:
        ((lane, demand),) = lanes.items()
        found = tx.rows("claim_pick_few", lane, tx.now, min(limit, left[demand]))
        return [job for (job,) in found]
    return _merge(tx, lanes, left, limit)


def _merge(tx: Transaction, lanes: dict[int, int], left: list[int], limit: int) -> list[int]:
    """Pick over several lanes; a lane whose demand is used up is not read any further."""
    waiting: list[tuple[int, int, int]] = []
    cursors = {lane: iter(tx.stream("claim_pick", lane, tx.now)) for lane in lanes}

    def advance(lane: int) -> None:
        for (job,) in cursors[lane]:
            heapq.heappush(waiting, (-tx.books.lanes[lane].priority, job, lane))
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
    """Write what only some jobs need: when to look at them, and who holds their slot."""
    for i, row in enumerate(raw.rows):
        policy = raw.policies[row[_POLICY]]
        if row[_DEADLINE] is not None or policy.is_watched:
            record = _record(raw, i, row)
            tx.run("claim_watch", look_at(*record), row[0])
        if row[_KEY_HASH] is not None:
            tx.run("claim_slot", raw.session, raw.first_token + i, row[0])


def build(raw: RawClaim) -> Claimed:
    """Make the values of a claim."""
    records = tuple(_record(raw, i, row) for i, row in enumerate(raw.rows))
    return Claimed(raw.now, records)


def _record(raw: RawClaim, index: int, row: Row) -> JobRecord:
    (
        seq, job_id, lane_number, policy, payload, created_at, request_id, traceparent, tracestate,
        deadline_at, key, key_hash, tags, config, expect, schema_version, clone_of,
        version, generation, attempt, claims, crashes, run_at, suspect, error,
    ) = row  # fmt: skip
    lane = raw.lanes[lane_number]
    context = _make(Context, (request_id, traceparent, tracestate))
    definition = (
        seq, job_id, lane.service, lane.type, lane.queue, payload, raw.policies[policy], context,
        lane.priority, created_at, deadline_at, key, key_hash,
        () if tags is None else decode_tags(tags), config, expect, schema_version, clone_of,
    )  # fmt: skip
    fence = _make(Fence, (raw.session, raw.first_token + index))
    head = (
        State.ACTIVE, version + 1, generation, attempt + 1, claims + 1, crashes, run_at, fence,
        raw.now, None, False, suspect == 1, None if error is None else decode_failure(error), None,
    )  # fmt: skip
    return _make(JobRecord, (_make(Definition, definition), _make(Head, head)))
