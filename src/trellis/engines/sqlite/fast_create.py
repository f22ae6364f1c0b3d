"""Storing new jobs: plain ones at once, the others after `engines.sql.create` has admitted them.

Plain jobs have no key and no mark, so only their id can keep them out. A call takes a handful of
statements, independent of how many they are. If one of the ids is already there, SQLite reports it
when nothing but job rows is written: these are removed, and the jobs are looked at one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from trellis.core.admission import check_new_job
from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.fairness import tenant_of
from trellis.core.followups import is_member
from trellis.core.job import (
    NOTHING_SPECIAL,
    Head,
    NewJob,
    deadline_of,
    names_of,
    options_of,
    special_options_of,
)
from trellis.core.lifecycle import creation, first_run_at
from trellis.core.policy import Policy
from trellis.engines.sql import fairness
from trellis.engines.sql.rows import (
    Row,
    dedupe_mark_of,
    encode_ids,
    encode_relations,
    encode_tags,
    lane_of,
    mark_of,
)
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.registry import Kind
from trellis.engines.sqlite.transaction import Transaction, journal_many, shape, shape_many
from trellis.engines.values import CreateResult, accepted


def create_plain(tx: Transaction, jobs: Sequence[NewJob]) -> list[CreateResult] | None:
    """Store these jobs; None, and nothing is stored, if one is not plain or must be looked at."""
    last = last_seq(tx)
    rows = _Rows.of(tx, jobs, last)
    if rows is None:
        return None
    try:
        tx.run_many("create_job", rows.jobs)
        tx.run_sparse("create_job_full", rows.full_jobs)
    except sqlite3.IntegrityError:
        tx.run("create_undo", last, encode_ids([new.id for new in jobs]))
        return None
    rows.write_queue(tx, last)
    tx.run("create_counter_set", last + len(jobs))
    return accepted([new.id for new in jobs])


def insert(tx: Transaction, jobs: Sequence[NewJob], *, ranked: bool = True) -> None:
    """Store jobs of any kind that were admitted; those with a key wait for their slots.

    A tenant's job that is not ranked now waits for its promotion, which ranks it.
    """
    last = last_seq(tx)
    rows = _Rows()
    marks: list[Row] = []
    kinds = [numbers(tx, new) for new in jobs]
    ranks: Sequence[Instant | None] = [None] * len(jobs)
    if ranked:
        ranks = run_through(fairness.rank_new(tx.shared, jobs, [lane for lane, _ in kinds]))
    for seq, (new, kind, rank) in enumerate(zip(jobs, kinds, ranks, strict=True), last + 1):
        rows.add_full(new, seq, *kind, tx.now, rank=rank)
        if new.idempotency_key is not None:
            marks.append((mark_of(new, new.idempotency_key), seq))
    tx.run_sparse("create_job_full", rows.full_jobs)
    rows.write_full_queue(tx)
    tx.run_many("create_idempotency", marks)
    tx.run("create_counter_set", last + len(jobs))


class _Rows:
    """Rows of one call, by statement."""

    def __init__(self) -> None:
        self.jobs: list[Row] = []
        self.full_jobs: list[Row] = []
        self.full_queue: list[Row] = []
        self.full_events: list[tuple[int, Event]] = []

    @classmethod
    def of(cls, tx: Transaction, jobs: Sequence[NewJob], seq: int) -> _Rows | None:
        """Return the rows of these jobs; None if one is not plain or its queue is draining."""
        rows, now, kinds = cls(), tx.now, _Kinds(tx)
        names: Row = ()
        options: Row = ()
        policy: Policy | None = None
        for new in jobs:
            # Most are like the one before.
            if new.policy is not policy or options_of(new) != options or names_of(new) != names:
                kind = kinds.of(new)
                if kind is None:
                    return None
                lane, number, is_bare = kind
                names, policy, options = names_of(new), new.policy, options_of(new)
            seq += 1
            job_id, context = new.id, new.context
            if is_bare and context.request_id == job_id and context.tracestate is None:
                traceparent = context.traceparent
                rows.jobs.append((seq, job_id, lane, number, new.payload, now, traceparent))
            else:
                rows.add_full(new, seq, lane, number, now)
        return rows

    def add_full(
        self,
        new: NewJob,
        seq: int,
        lane: int,
        policy: int,
        now: Instant,
        *,
        rank: Instant | None = None,
    ) -> None:
        """Add a job that uses optional columns: delayed, with a deadline, tagged, ..."""
        event, head = creation(now, first_run_at(new, now))
        due = "ready" if new.key_hash is None else "waiting_for_slot"
        fair: Row = (None, None, None)
        if new.relations is not None and new.relations.tenant is not None:
            fair = (new.relations.tenant, new.relations.weight, rank)
            due = due if rank is not None else "scheduled"
        tail = queue_tail(due if head.run_at == now else "scheduled", head)
        during = None if new.dedupe is None else new.dedupe.during
        dedupe = (during and dedupe_mark_of(new), True if during == "unfinished" else None)
        self.full_jobs.append(job_row(new, seq, lane, policy, now))
        self.full_queue.append(
            (seq, lane, *tail, new.key_hash, *dedupe, deadline_of(new, now), is_member(new), *fair)
        )
        self.full_events.append((seq, event))

    def write_full_queue(self, tx: Transaction) -> None:
        """Insert what belongs to the job rows with optional columns, which are written."""
        tx.run_sparse("create_queue_full", self.full_queue)
        journal_many(tx, shape_many(self.full_events))

    def write_queue(self, tx: Transaction, last: int) -> None:
        """Insert what belongs to the job rows behind `last`, which are written."""
        event, head = creation(tx.now, tx.now)
        _, (_, *event_tail) = shape(0, event)
        tail = queue_tail("ready", head)
        if not self.full_jobs:
            # They are all alike, so SQLite writes them itself.
            tx.run("create_queue_alike", *tail, last)
            tx.run("create_event_alike", *event_tail, last)
            return
        tx.run_many("create_queue", [(seq, lane, *tail) for seq, _, lane, *_ in self.jobs])
        tx.run_many("event", [(seq, *event_tail) for seq, *_ in self.jobs])
        self.write_full_queue(tx)


class _Kinds:
    """The kinds of jobs in one call, each looked up once."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._known: dict[tuple[Any, ...], Kind | None] = {}

    def of(self, new: NewJob) -> Kind | None:
        """Return a job's kind; None if it is not plain or its queue is draining."""
        # By the policy's identity, because its hash is slow.
        like = (names_of(new), id(new.policy), options_of(new))
        if like not in self._known:
            is_plain = new.key is None and new.dedupe is None and new.idempotency_key is None
            is_plain = is_plain and not new.after and tenant_of(new.relations) is None
            is_plain = is_plain and new.spawner is None and not is_member(new)
            is_open = is_plain and not is_draining(self._tx, new.service, new.queue)
            self._known[like] = self._look(new, like) if is_open else None
        return self._known[like]

    def _look(self, new: NewJob, like: tuple[Any, ...]) -> Kind:
        policy, kind = self._tx.registry.kinds.get(like, (None, None))
        if kind is not None and policy is new.policy:
            return kind
        check_new_job(new)
        kind = Kind(*numbers(self._tx, new), is_bare=special_options_of(new) == NOTHING_SPECIAL)
        if kind.is_bare:  # of these there are few; options may differ from job to job
            self._tx.registry.kinds[like] = (new.policy, kind)
        return kind


def is_draining(tx: Transaction, service: str, queue: str) -> bool:
    """Return whether a queue, or every queue, accepts nothing new."""
    return tx.one("queue_drains", service, queue) is not None


def last_seq(tx: Transaction) -> int:
    """Return the number of the last job that was stored."""
    row = tx.one("create_counter")
    return row[0] if row else 0


def numbers(tx: Transaction, new: NewJob) -> tuple[int, int]:
    """Return the numbers of a job's lane and policy."""
    registry = tx.registry
    return registry.lane_number(tx, lane_of(new)), registry.policy_number(tx, new.policy)


def queue_tail(availability: str, head: Head) -> Row:
    """Return the columns of a queue row behind job and lane."""
    return availability, head.state.value, head.version, head.generation, head.claims, head.run_at


def job_row(new: NewJob, seq: int, lane: int, policy: int, now: Instant) -> Row:
    """Return all columns of a job row."""
    return (
        seq,
        new.id,
        lane,
        policy,
        new.payload,
        now,
        *new.context,
        deadline_of(new, now),
        new.key,
        new.key_hash,
        encode_tags(new.tags),
        new.config,
        new.expect,
        new.schema_version,
        new.clone_of,
        *_dedupe_columns(new, now),
        new.attempts,
        new.timeout,
        encode_relations(new.relations),
    )


def _dedupe_columns(new: NewJob, now: Instant) -> Row:
    dedupe = new.dedupe
    if dedupe is None:
        return None, None, None
    until = None if dedupe.period is None else now + dedupe.period
    return dedupe_mark_of(new), dedupe.during, until
