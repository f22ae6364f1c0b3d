"""`claim` on PostgreSQL: one statement picks over the demanded lanes, leases and journals.

The statement first looks whether something must happen before (delayed jobs are due, a keyed
job of a caller's transaction must be admitted, lanes were added); then nothing is taken, that is
done, and it runs again. What is stored follows the rule for `Claim`; the conformance suite compares
the two.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from trellis.core.durations import Instant
from trellis.core.job import JobRecord, SessionId, build_context, build_definition, claimed_record
from trellis.core.policy import DEFAULT_POLICY
from trellis.engines.demand import Demand
from trellis.engines.postgres.claim_limits import Ask, Asked, Overdrawn, ask, ask_limited
from trellis.engines.postgres.claim_planner import ClaimPlanner, Plan, order_of
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql.key_rates import MOST_WITHDRAWALS
from trellis.engines.sql.rows import Row, decode_failure, decode_relations, decode_tags, dedupe_from
from trellis.engines.values import Claimed
from trellis.errors import EngineError

# What must happen first; see `claim.sql`.
_OVER, _DUE, _CALLERS, _NEW, _AGING = 1, 2, 4, 8, 16

# Where a row has the number of the job and its rank, if it has a tenant.
_SEQ: Final = 2
_RANK: Final = 12

Chore = Callable[[Sequence[int], int], Awaitable[object]]


class Claimer:
    """Claims through one connection."""

    def __init__(
        self,
        link: ServerConnection,
        registry: Registry,
        promote: Chore,
        admit: Chore,
        withdraw: Callable[[Collection[str]], Awaitable[None]],
    ) -> None:
        self._link = link
        self._registry = registry
        self._planner = ClaimPlanner(registry)
        self._promote = promote
        self._admit = admit
        self._withdraw = withdraw

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Lease up to `limit` due jobs to this session."""
        left = [demand.limit for demand in demands]
        records: list[JobRecord] = []
        now, next_at = 0, None
        while True:
            wanted = limit - len(records)
            try:
                more, now, is_all, next_at = await self._claim_some(session, demands, left, wanted)
            except EngineError:
                if not records:
                    raise
                # The worker must learn what it holds now: no other process runs these jobs.
                return Claimed(now, tuple(records), next_at)
            records += more
            if is_all or not more or len(records) >= limit:
                return Claimed(now, tuple(records), next_at)
            for record in more:
                left[self._planner.demand_of(record.definition)] -= 1

    async def _claim_some(
        self, session: SessionId, demands: Sequence[Demand], left: Sequence[int], limit: int
    ) -> tuple[list[JobRecord], int, bool, Instant | None]:
        """Claim once; also return whether there can be no more, and when a rate lets more start."""
        done, sweep, withdrawn = 0, False, 0
        await self._registry.enter_policies(self._link, self._planner.unknown_policies(demands))
        while True:
            plan = self._planner.plan(demands, left, limit, sweep=sweep)
            if any(plan.starts):
                done |= _DUE | _CALLERS  # searching for them would read the deleted rows as well
            first = secrets.randbits(61) + 1
            by = Ask(session, left, limit, first, done, self._registry.aging)
            try:
                with plan.timed():
                    rows, read, next_at, is_cut = await self._ask(demands, plan, by)
            except Overdrawn as overdrawn:
                await self._withdraw(overdrawn.keys)
                withdrawn += 1
                if withdrawn < MOST_WITHDRAWALS:
                    continue
                return [], overdrawn.now, True, overdrawn.now
            now, flags, job = rows[0][0], rows[0][1], rows[0][2]
            if flags & _OVER:
                return [], now, True, None
            if flags & _NEW:
                # Until a limit is known, `read` may have lanes that it closes. A limit that changes
                # before this claim has locked it counts already.
                await self._registry.read_lanes(self._link)
                await self._registry.read_limits(Transaction(self._link, self._registry))
                continue
            if flags:
                await self._do_first(flags, read, limit)
                done |= flags  # once is enough: what comes later is for the next claim
                continue
            if job is None:
                is_all = read.note([], {}, now)
                if not self._planner.needs_sweep(read):
                    return [], now, is_all, next_at
                done, sweep = 0, True
                continue
            ranks = {row[_SEQ]: row[_RANK] for row in rows if row[_RANK] is not None}
            records = await self._build(rows, session, first, ranks)
            return records, now, read.note(records, ranks, now) and not is_cut, next_at

    async def _do_first(self, flags: int, read: Plan, limit: int) -> None:
        """Do what must happen before anything is taken."""
        if flags & _AGING:
            await self._registry.read_aging(self._link)
        if flags & _CALLERS:
            await self._admit(read.lanes, limit)
        if flags & _DUE:
            await self._promote(read.lanes, limit)

    async def _ask(self, demands: Sequence[Demand], plan: Plan, by: Ask) -> Asked:
        registry = self._registry
        if registry.limits and any(map(registry.is_limited, plan.lanes)):
            return await ask_limited(self._link, registry, demands, plan, by)
        return Asked(await ask(self._link, plan, registry.known, by), plan)

    async def _build(
        self, rows: Sequence[Row], session: SessionId, first: int, ranks: Mapping[int, Instant]
    ) -> list[JobRecord]:
        numbers = {row[5] for row in rows} | {row[6] for row in rows} - {None}
        if not numbers <= self._registry.policies.keys():
            await self._registry.read_policies(self._link, numbers)
        records = _records(rows, session, first, self._registry)
        aging = self._registry.aging
        if ranks or aging is not None:
            records.sort(key=lambda each: order_of(each, ranks, aging))
        else:
            records.sort(key=_order)
        return records


def _records(
    rows: Sequence[Row], session: SessionId, first: int, registry: Registry
) -> list[JobRecord]:
    """Build the jobs of the rows that `claim.sql` returned."""
    lanes, in_force = registry.lanes, registry.in_force
    records: list[JobRecord] = []
    # Most jobs of a claim are under one policy.
    source: tuple[int, int | None] = (-1, None)
    usual = DEFAULT_POLICY
    for (
        now, _, seq, job_id, lane, created, declared, payload, created_at, traceparent, extras,
        head, _,
    ) in rows:  # fmt: skip
        service, queue, job_type, priority = lanes[lane]
        if source != (found := (created, declared)):
            source, usual = found, in_force(created, declared, None, None)
        if extras is None:
            definition = build_definition(
                seq, job_id, service, job_type, queue, payload,
                usual,
                build_context(job_id, traceparent, None), priority, created_at,
            )  # fmt: skip
        else:
            (
                request_id, tracestate, deadline_at, key, key_hash, tags, config, expect,
                schema_version, clone_of, dedupe, dedupe_while, dedupe_until, attempts, timeout,
                relations,
            ) = json.loads(extras)  # fmt: skip
            definition = build_definition(
                seq, job_id, service, job_type, queue, payload,
                in_force(created, declared, attempts, timeout),
                build_context(request_id or job_id, traceparent, tracestate), priority, created_at,
                deadline_at, key, key_hash, decode_tags(tags), config, expect, schema_version,
                clone_of, dedupe_from(dedupe, dedupe_while, dedupe_until, created_at),
                attempts, timeout, decode_relations(relations),
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


def _order(record: JobRecord) -> tuple[int, int, int]:
    return -record.definition.priority, record.head.run_at, record.definition.row
