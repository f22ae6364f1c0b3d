"""How PostgreSQL writes jobs for the shared verbs: one statement for all tables.

The statements take a column of values for each field, so the same ones store a single job and a
batch (`commit.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from trellis.core.durations import Instant
from trellis.core.followups import is_member
from trellis.core.job import Definition, NewJob
from trellis.core.lifecycle import Transition
from trellis.core.timers import keep_until, look_at
from trellis.engines.postgres.registry import Registry, StatementRunner
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import fairness
from trellis.engines.sql.rows import (
    dedupe_mark_of,
    encode_data,
    encode_failure,
    encode_relations,
    encode_tags,
    lane_of,
    mark_of,
)
from trellis.engines.sql.slots import hand_over

Columns: TypeAlias = Iterable[list[Any]]


class UnknownNumbers(Exception):
    """Jobs that follow others have lanes or policies without numbers yet.

    Numbers are made outside of the transaction, which is then run again.
    """

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        super().__init__(f"{len(jobs)} jobs")
        self.jobs = jobs


class PostgresStorage:
    """Writes in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    async def insert(self, jobs: Sequence[NewJob]) -> None:
        """Store new jobs, in the order given."""
        columns = job_columns(jobs, self._tx.registry)
        due = "unadmitted" if self._tx.is_callers else "waiting_for_slot"
        ranks = await fairness.rank_new(self._tx, jobs, columns[1])
        await self._tx.run("create", *columns, due, False, ranks)

    async def insert_following(self, jobs: Sequence[NewJob]) -> None:
        """Store jobs that follow others; give those with keys their slots if no lock is taken."""
        tx = self._tx
        if not tx.registry.has_numbers(jobs):
            raise UnknownNumbers(jobs)
        keys = sorted({new.key_hash for new in jobs if new.key_hash is not None})
        # Only tried: this transaction has locked rows, and keys are locked before rows.
        is_free = not tx.is_callers and all(
            [await tx.value("key_try_lock", key_hash) for key_hash in keys]
        )
        due = "waiting_for_slot" if is_free else "unadmitted"
        await tx.run("create", *job_columns(jobs, tx.registry), due, False, [])
        if is_free:
            await hand_over(tx, keys)

    async def end(self, transition: Transition) -> bool:
        """End a live job that is not watched; False if its guard does not hold."""
        return await self._tx.value("commit_end", *end_columns([transition]), False) is None

    async def end_watched(self, transitions: Sequence[Transition]) -> set[int]:
        """End live jobs; return the numbers of those whose guards held."""
        held = await self._tx.value("commit_end", *end_columns(transitions), True)
        return {each.definition.row for each in transitions} if held is None else set(held)

    async def move(self, transition: Transition) -> bool:
        """Change a live job that stays live; False if its guard does not hold."""
        seen = await seen_at(self._tx, [transition])
        return await self._tx.value("commit_move", *move_columns([transition], seen)) is None

    async def redefine(self, definition: Definition) -> None:
        """Store the queue, priority and attempts of a live job."""
        lane = self._tx.registry.lane_numbers[lane_of(definition)]
        await self._tx.run("adjust_job", lane, definition.attempts, definition.row)
        await self._tx.run("adjust_queue", lane, definition.row)


def job_columns(jobs: Sequence[NewJob], registry: Registry) -> tuple[list[Any], ...]:
    """Return the first values of `create`: ids, lanes, ..."""
    return (
        [new.id for new in jobs],
        [registry.lane_numbers[lane_of(new)] for new in jobs],
        [registry.policy_numbers[new.policy] for new in jobs],
        [new.payload for new in jobs],
        [None if new.context.request_id == new.id else new.context.request_id for new in jobs],
        [new.context.traceparent for new in jobs],
        [new.context.tracestate for new in jobs],
        [new.run_at for new in jobs],
        [new.delay for new in jobs],
        [None if new.deadline_in is not None else new.deadline_at for new in jobs],
        [new.deadline_in for new in jobs],
        [new.key for new in jobs],
        [new.key_hash for new in jobs],
        [encode_tags(new.tags) for new in jobs],
        [new.config for new in jobs],
        [new.expect for new in jobs],
        [new.clone_of for new in jobs],
        [new.schema_version for new in jobs],
        [dedupe_mark_of(new) for new in jobs],
        [mark_of(new, new.idempotency_key) for new in jobs],
        [None if new.dedupe is None else new.dedupe.during for new in jobs],
        [None if new.dedupe is None else new.dedupe.period for new in jobs],
        [new.attempts for new in jobs],
        [new.timeout for new in jobs],
        [encode_relations(new.relations) for new in jobs],
        [is_member(new) for new in jobs],
    )


def end_columns(batch: Sequence[Transition]) -> Columns:
    """Return the values of `commit_end`."""
    heads = [each.head for each in batch]
    return (
        *_guards(batch),
        [getattr(each.command, "started_at", None) for each in batch],
        [getattr(each.command, "result", None) for each in batch],
        [encode_failure(head.error) for head in heads],
        [keep_until(each.definition, each.head) for each in batch],
        [head.state.value for head in heads],
        [head.version for head in heads],
        [head.attempt for head in heads],
        [head.claims for head in heads],
        [head.generation for head in heads],
        [head.crashes for head in heads],
        [head.run_at for head in heads],
        [head.finished_at for head in heads],
        *_events(batch),
    )


def move_columns(batch: Sequence[Transition], seen: dict[int, Instant]) -> Columns:
    """Return the values of `commit_move`; `seen` has the last signs of life of running ones."""
    heads = [each.head for each in batch]
    fences = [head.fence or (None, None) for head in heads]
    return (
        *_guards(batch),
        [head.state.value for head in heads],
        [head.version for head in heads],
        [head.generation for head in heads],
        [head.attempt for head in heads],
        [head.claims for head in heads],
        [head.crashes for head in heads],
        [head.run_at for head in heads],
        [fence[0] for fence in fences],
        [fence[1] for fence in fences],
        [head.claimed_at for head in heads],
        [head.asked_at for head in heads],
        [head.blocked for head in heads],
        [head.suspect for head in heads],
        [encode_failure(head.error) for head in heads],
        [_look_at(each, seen) for each in batch],
        [each.event.at for each in batch],
        *_events(batch),
        [each.definition.key_hash is not None for each in batch],
    )


def _look_at(transition: Transition, seen: dict[int, Instant]) -> Instant | None:
    definition, head = transition.definition, transition.head
    return look_at(definition, head, seen.get(definition.row) if head.fence else None)


def _guards(batch: Sequence[Transition]) -> Columns:
    return (
        [each.definition.row for each in batch],
        [each.before.version for each in batch],
        [each.before.fence.token if each.before.fence else 0 for each in batch],
    )


def _events(batch: Sequence[Transition]) -> Columns:
    events = [each.event for each in batch]
    fences = [event.fence or (None, None) for event in events]
    return (
        [event.kind.value for event in events],
        [encode_data(event.data) for event in events],
        [event.attempt for event in events],
        [fence[0] for fence in fences],
        [fence[1] for fence in fences],
    )


async def seen_at(link: StatementRunner, batch: Sequence[Transition]) -> dict[int, Instant]:
    """Return the last signs of life of attempts that continue."""
    running = [each.definition.row for each in batch if each.head.fence is not None]
    if not running:
        return {}
    return {row[0]: row[1] for row in await link.rows("commit_seen_at", running)}
