"""Fair share: the ranks of tenants' jobs, given when the jobs become due.

The facts (where the tenants' shares end, the first claimable job of a line) are read under a lock
of the shares, `core.fairness` decides, and the ends of the shares are stored. A due job with a
tenant that has no rank yet stays `scheduled`, so every claimable one has a rank.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from trellis.core.durations import Instant, Micros
from trellis.core.fairness import Share, Turn, give_ranks, is_due, tenant_of
from trellis.core.job import NewJob
from trellis.engines.audit import By, aging_change
from trellis.engines.sql import audit
from trellis.engines.sql.rows import Row
from trellis.engines.sql.transaction import Transaction


async def rank_new(
    tx: Transaction, jobs: Sequence[NewJob], lanes: Sequence[int]
) -> list[Instant | None]:
    """Return the ranks of new jobs in these lanes; None for those that get none now.

    In a caller's transaction none is given: no other transaction may wait for its end.
    """
    ranks: list[Instant | None] = [None] * len(jobs)
    due = [
        number
        for number, new in enumerate(jobs)
        if tenant_of(new.relations) is not None and is_due(new, tx.now)
    ]
    if not due or tx.is_callers:
        return ranks
    turns = [_turn(jobs[number], lanes[number]) for number in due]
    for number, rank in zip(due, await _give(tx, turns), strict=True):
        ranks[number] = rank
    return ranks


def _turn(new: NewJob, lane: int) -> Turn[int]:
    relations = new.relations
    weight = None if relations is None else relations.weight
    return Turn(lane, tenant_of(relations) or "", weight, new.key_hash is not None)


async def rank_due(tx: Transaction, jobs: Sequence[Row]) -> None:
    """Give jobs of tenants whose time has come their ranks; the rows are those of `due_scheduled`.

    A row without a tenant needs no rank, or has one.
    """
    waiting = [row for row in jobs if row[3] is not None]
    if not waiting:
        return
    turns = [
        Turn(lane, tenant, weight, key_hash is not None)
        for _, key_hash, lane, tenant, weight in waiting
    ]
    ranks = await _give(tx, turns)
    rows = sorted((row[0], rank) for row, rank in zip(waiting, ranks, strict=True))
    await tx.run_many("fair_rank", rows)


async def _give(tx: Transaction, turns: Sequence[Turn[int]]) -> list[Instant]:
    """Return the ranks of jobs in lanes, and store where their tenants' shares end now."""
    lanes = sorted({turn.line for turn in turns})
    found = await tx.rows("fair_lines", tx.array(lanes))
    lines: dict[int, int] = {lane: line for lane, line, _ in found}
    heads: dict[int, Instant] = {line: head for _, line, head in found if head is not None}
    turns = [turn._replace(line=lines[turn.line]) for turn in turns]
    wanted = [
        json.dumps(share, ensure_ascii=False)
        for share in sorted({(turn.line, turn.tenant) for turn in turns})
    ]
    await tx.lock("fair_lock", wanted)
    shares = {
        (line, tenant): Share(end, last)
        for line, tenant, end, last in await tx.rows("fair_shares", tx.array(wanted))
    }
    ranked = give_ranks(turns, heads, shares, tx.now)
    ends = [(line, tenant, end) for (line, tenant), end in sorted(ranked.ends.items())]
    await tx.run_many("fair_keep", ends)
    return ranked.ranks


async def set_aging(tx: Transaction, aging: Micros | None, by: By) -> None:
    """Change the span of aging, and record who did."""
    await tx.read_clock()
    change = aging_change(await tx.value("aging"), aging)
    if change is None:
        return
    await tx.run("aging_set", aging)
    await audit.record(tx, change, by)
    tx.topics.add("ready")


async def aging(tx: Transaction) -> Micros | None:
    """Return the span of aging."""
    span: Micros | None = await tx.value("aging")
    return span


async def prune(tx: Transaction, limit: int) -> None:
    """Remove the shares that no longer matter."""
    await tx.run("fair_prune", tx.now, limit)
