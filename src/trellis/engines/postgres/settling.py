"""The order in which a batch of decisions is stored: together where they can, else one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trellis.core.lifecycle import Transition
from trellis.engines.postgres import fast_complete
from trellis.engines.postgres.committing import (
    COMMITTED,
    commit_one,
    end_columns,
    kind_of,
    move_columns,
)
from trellis.engines.postgres.connection import Link
from trellis.engines.postgres.keying import hand_over, lock_keys
from trellis.engines.postgres.registry import Books
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql.rows import record_from
from trellis.engines.values import CommitResult, Conflict, Topic

Placed = list[tuple[int, Transition]]
#: The statement, and what its decisions must have in common.
Kind = tuple[str, object]


async def commit(
    link: Link, books: Books, transitions: Sequence[Transition]
) -> tuple[list[CommitResult], set[Topic]]:
    """Store decisions, each on its own; return the answers and what to tell others."""
    topics: set[Topic] = {"settled"}
    results: list[CommitResult] = [COMMITTED] * len(transitions)
    if transitions and fast_complete.are_alike(transitions):  # as nearly always
        held = await _together(link, "commit_done", fast_complete.in_order(transitions))
        if held is not None:
            await _explain(link, list(enumerate(transitions)), set(held), results)
        return results, topics
    groups = _group(transitions)
    singles = groups.pop(("", None), [])
    for (kind, _), group in groups.items():
        group.sort(key=lambda placed: placed[1].definition.row)
        batch = [each for _, each in group]
        if kind == "keyed_done":
            topics.add("ready")
            held = await _keyed_together(link, books, batch)
        else:
            if kind == "commit_move":
                topics.add("ready")
            held = await _together(link, kind, batch)
        if held is not None:
            await _explain(link, group, set(held), results)
    if singles:
        topics.add("ready")
        await _one_by_one(link, books, singles, results)
    return results, topics


def _group(transitions: Sequence[Transition]) -> dict[Kind, Placed]:
    """Sort decisions by how they are stored; two about one job are never stored together."""
    groups: dict[Kind, Placed] = {}
    seen: set[int] = set()
    for place, transition in enumerate(transitions):
        row = transition.definition.row
        kind = "" if row in seen else kind_of(transition)
        seen.add(row)
        # Successes have one state and moment per statement.
        event = transition.event
        same = (event.state, event.at) if kind.endswith("_done") else None
        found = groups.get((kind, same))
        if found is None:
            found = groups[kind, same] = []
        found.append((place, transition))
    return groups


async def _together(link: Link, kind: str, batch: Sequence[Transition]) -> Sequence[int] | None:
    """Run one statement for all; None if every guard held, else the jobs whose did."""
    held: Sequence[int] | None
    if kind == "commit_done":
        held = await link.value(kind, *fast_complete.columns(batch))
    elif kind == "commit_end":
        held = await link.value(kind, *end_columns(batch))
    else:
        running = [each.definition.row for each in batch if each.head.fence is not None]
        seen: dict[int, Any] = {}
        if running:
            seen = {row[0]: row[1] for row in await link.rows("commit_seen_at", running)}
        held = await link.value(kind, *move_columns(batch, seen))
    return held


async def _keyed_together(
    link: Link, books: Books, batch: Sequence[Transition]
) -> Sequence[int] | None:
    """Store successes of jobs with keys, and hand their slots over."""
    keys = {each.definition.row: each.definition.key_hash for each in batch}
    async with link.transaction("commit") as connection:
        tx = Transaction(connection, books)
        await lock_keys(tx, keys.values())
        held: Sequence[int] | None = await tx.value("commit_done", *fast_complete.columns(batch))
        done = list(keys) if held is None else held
        await tx.rows("slot_free_jobs", done)
        await hand_over(tx, (keys[job] for job in done))
    return held


async def _explain(link: Link, group: Placed, held: set[int], results: list[CommitResult]) -> None:
    """Answer those whose guard did not hold with the job as it is now."""
    refused = [
        (place, each.definition.row) for place, each in group if each.definition.row not in held
    ]
    rows = await link.rows("record_by_seq", [job for _, job in refused])
    found = {row[0]: record_from(row) for row in rows}
    for place, job in refused:
        results[place] = Conflict(found.get(job))


async def _one_by_one(
    link: Link, books: Books, singles: Placed, results: list[CommitResult]
) -> None:
    async with link.transaction() as connection:
        tx = Transaction(connection, books)
        await lock_keys(tx, (each.definition.key_hash for _, each in singles))
        await tx.read_clock()
        # In one order everywhere, so that two batches never wait for each other in a circle.
        singles.sort(key=lambda placed: placed[1].definition.row)
        for place, transition in singles:
            results[place] = await commit_one(tx, transition)
