"""`claim` on PostgreSQL: one statement picks over the demanded lanes, leases and journals.

The statement first looks whether something must happen before (delayed jobs are due, a keyed
job of a caller's transaction must be admitted, lanes were added); then nothing is taken, that is
done, and it runs again. What is stored follows the rule for `Claim`; the conformance suite compares
the two.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Sequence

from trellis.core.job import JobRecord, SessionId, build_context, build_definition, claimed_record
from trellis.engines.postgres.claim_planner import ClaimPlanner, Plan
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.registry import Registry
from trellis.engines.sql.rows import Row, decode_failure, decode_tags
from trellis.engines.values import Claimed, Demand

# What must happen first; see `claim.sql`.
_OVER, _DUE, _CALLERS, _NEW_LANES = 1, 2, 4, 8

Chore = Callable[[Sequence[int], int], Awaitable[object]]


class Claimer:
    """Claims through one connection."""

    def __init__(
        self, link: ServerConnection, registry: Registry, promote: Chore, admit: Chore
    ) -> None:
        self._link = link
        self._registry = registry
        self._planner = ClaimPlanner(registry)
        self._promote = promote
        self._admit = admit

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Lease up to `limit` due jobs to this session."""
        left = [demand.limit for demand in demands]
        records: list[JobRecord] = []
        while True:
            wanted = limit - len(records)
            more, now, is_all = await self._claim_some(session, demands, left, wanted)
            records += more
            if is_all or not more or len(records) >= limit:
                return Claimed(now, tuple(records))
            for record in more:
                left[self._planner.demand_of(record.definition)] -= 1

    async def _claim_some(
        self, session: SessionId, demands: Sequence[Demand], left: Sequence[int], limit: int
    ) -> tuple[list[JobRecord], int, bool]:
        """Claim once; also return whether there can be no more."""
        done = 0
        while True:
            plan = self._planner.plan(demands, left, limit)
            if any(plan.starts):
                done |= _DUE | _CALLERS  # searching for them would read the deleted rows as well
            first = secrets.randbits(61) + 1
            with plan.timed():
                rows = await self._ask(session, plan, left, limit=limit, first=first, done=done)
            now, flags, job = rows[0][0], rows[0][1], rows[0][2]
            if flags & _OVER:
                return [], now, True
            if flags & _NEW_LANES:
                await self._registry.read_lanes(self._link)
            if flags & _CALLERS:
                await self._admit(plan.lanes, limit)
            if flags & _DUE:
                await self._promote(plan.lanes, limit)
            if flags:
                done |= flags  # once is enough: what comes later is for the next claim
                continue
            if job is None:
                return [], now, plan.note([])
            records = await self._build(rows, session, first)
            return records, now, plan.note(records)

    async def _ask(
        self,
        session: SessionId,
        plan: Plan,
        left: Sequence[int],
        *,
        limit: int,
        first: int,
        done: int,
    ) -> Sequence[Row]:
        lanes, known = plan.lanes, len(self._registry.lanes)
        if not lanes:
            return await self._link.rows("claim_none", session, known, done)
        if len(lanes) == 1:
            most = min(limit, left[plan.demands[0]])
            return await self._link.rows(
                "claim_lane", session, lanes[0], plan.starts[0], most, first, known, done
            )
        return await self._link.rows(
            "claim", session, lanes, plan.starts, plan.takes, first, known, done, plan.priorities,
            plan.demands, list(left), limit,
        )  # fmt: skip

    async def _build(self, rows: Sequence[Row], session: SessionId, first: int) -> list[JobRecord]:
        policies = self._registry.policies
        if any(row[5] not in policies for row in rows):
            await self._registry.read_policies(self._link, {row[5] for row in rows})
        records = _records(rows, session, first, self._registry)
        records.sort(key=_order)
        return records


def _records(
    rows: Sequence[Row], session: SessionId, first: int, registry: Registry
) -> list[JobRecord]:
    """Build the jobs of the rows that `claim.sql` returned."""
    lanes, policies = registry.lanes, registry.policies
    records: list[JobRecord] = []
    for (
        now, _, seq, job_id, lane, policy, payload, created_at, traceparent, extras, head,
    ) in rows:  # fmt: skip
        service, queue, job_type, priority = lanes[lane]
        if extras is None:
            definition = build_definition(
                seq, job_id, service, job_type, queue, payload, policies[policy],
                build_context(job_id, traceparent, None), priority, created_at,
            )  # fmt: skip
        else:
            (
                request_id, tracestate, deadline_at, key, key_hash, tags, config, expect,
                schema_version, clone_of,
            ) = json.loads(extras)  # fmt: skip
            definition = build_definition(
                seq, job_id, service, job_type, queue, payload, policies[policy],
                build_context(request_id or job_id, traceparent, tracestate), priority, created_at,
                deadline_at, key, key_hash, decode_tags(tags), config, expect, schema_version,
                clone_of,
            )  # fmt: skip
        token = first + seq
        if head is None:
            record = claimed_record(definition, session, token, now, 2, 0, 1, 1, 0, created_at)
        else:
            version, generation, attempt, claims, crashes, run_at, suspect, error = json.loads(head)
            record = claimed_record(
                definition, session, token, now, version, generation, attempt, claims, crashes,
                run_at, suspect, decode_failure(error),
            )  # fmt: skip
        records.append(record)
    return records


def _order(record: JobRecord) -> tuple[int, int]:
    return -record.definition.priority, record.definition.row
