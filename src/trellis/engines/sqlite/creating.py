"""`create` on SQLite: a fast path for plain jobs, a careful one for the rest.

Plain jobs (no key, no dedupe or idempotency key) of one call go in with three `executemany`s. If
one of their ids is already there, SQLite says so; the part is undone and done again job by job.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from trellis.core.admission import (
    Admit,
    Coalesce,
    Reason,
    Reject,
    Replace,
    admit_key,
    check_new_job,
)
from trellis.core.agenda import look_at
from trellis.core.commands import Skip
from trellis.core.events import Event
from trellis.core.job import Head, JobId, NewJob, deadline_of, define
from trellis.core.lifecycle import Transition, born, decide, first_run_at
from trellis.core.spans import Instant
from trellis.engines.sqlite.books import Lane
from trellis.engines.sqlite.committing import commit_one
from trellis.engines.sqlite.journaling import journal, journal_many, shape, shape_many
from trellis.engines.sqlite.keying import gather_facts, hand_over, park_of
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.sqlkit.rows import Row, encode_tags, record_from
from trellis.engines.values import Accepted, Coalesced, CreateResult, Rejected, Replaced


def create(tx: Transaction, jobs: Sequence[NewJob]) -> list[CreateResult]:
    """Admit and store new jobs."""
    tx.topics.add("ready")
    if all(_is_plain(new) for new in jobs) and not _draining(tx, jobs):
        tx.savepoint()
        try:
            results = _create_plain(tx, jobs)
        except sqlite3.IntegrityError:
            tx.undo()
        else:
            tx.release()
            return results
    return [_create_one(tx, new) for new in jobs]


def _is_plain(new: NewJob) -> bool:
    return new.key is None and new.dedupe is None and new.idempotency_key is None


def _draining(tx: Transaction, jobs: Sequence[NewJob]) -> bool:
    return any(_is_draining(tx, *names) for names in {(new.service, new.queue) for new in jobs})


def _is_draining(tx: Transaction, service: str, queue: str) -> bool:
    row = tx.one("queue_setting", service, queue)
    return bool(row and row[1])


def _create_plain(tx: Transaction, jobs: Sequence[NewJob]) -> list[CreateResult]:
    now, seq = tx.now, _last_seq(tx)
    event, head = born(now, now)
    queue_tail = _queue_tail("ready", head)
    _, *event_tail = shape(0, event)[1]
    rows = _Rows()
    like: NewJob | None = None
    lane = policy = 0
    for new in jobs:
        seq += 1
        if like is None or not _alike(new, like):
            like = check_new_job(new)
            lane, policy = _numbers(tx, new)
        if _is_bare(new):
            traceparent = new.context.traceparent
            rows.jobs.append((seq, new.id, lane, policy, new.payload, now, traceparent))
            rows.queue.append((seq, lane, *queue_tail))
            rows.events.append((seq, *event_tail))
        else:
            rows.add_full(check_new_job(new), seq, lane, policy, now)
    rows.write(tx)
    tx.run("create_counter_set", seq)
    return [Accepted(new.id) for new in jobs]


def _alike(new: NewJob, other: NewJob) -> bool:
    """Tell whether two jobs share lane and policy; if both are bare, one check serves both."""
    return new.policy is other.policy and new.priority == other.priority and new[1:4] == other[1:4]


def _numbers(tx: Transaction, new: NewJob) -> tuple[int, int]:
    lane = Lane(new.service, new.queue, new.type, new.priority)
    return tx.books.lane_number(tx, lane), tx.books.policy_number(tx, new.policy)


class _Rows:
    """Rows of one call, by statement."""

    def __init__(self) -> None:
        self.jobs: list[Row] = []
        self.full_jobs: list[Row] = []
        self.queue: list[Row] = []
        self.full_queue: list[Row] = []
        self.events: list[Row] = []
        self.full_events: list[tuple[int, Event]] = []

    def add_full(self, new: NewJob, seq: int, lane: int, policy: int, now: Instant) -> None:
        """Add a job that is not bare: delayed, with a deadline, tagged, ..."""
        event, head = born(now, first_run_at(new, now))
        tail = _queue_tail("ready" if head.run_at == now else "later", head)
        self.full_jobs.append(_job_row(new, seq, lane, policy, now))
        self.full_queue.append((seq, lane, *tail, None, None, deadline_of(new, now)))
        self.full_events.append((seq, event))

    def write(self, tx: Transaction) -> None:
        """Insert them all."""
        tx.run_many("create_job", self.jobs)
        tx.run_sparse("create_job_full", self.full_jobs)
        tx.run_many("create_queue", self.queue)
        tx.run_sparse("create_queue_full", self.full_queue)
        tx.run_many("event", self.events)
        journal_many(tx, shape_many(self.full_events))


#: run_at, delay, deadline_at, deadline_in, key, key_hash, dedupe, idempotency_key, tags, config,
#: expect, schema_version and clone_of of a job that asks for nothing special.
_BARE: Final = (None, 0, None, None, None, None, None, None, (), None, None, 1, None)


def _is_bare(new: NewJob) -> bool:
    """Tell whether a job uses none of the optional columns and may start at once."""
    request_id, _, tracestate = new.context
    return new[8:] == _BARE and request_id == new.id and tracestate is None


def _queue_tail(park: str, head: Head) -> Row:
    return (park, head.state.value, head.version, head.generation, head.claims, head.run_at)


def _job_row(new: NewJob, seq: int, lane: int, policy: int, now: Instant) -> Row:
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
    )


def _last_seq(tx: Transaction) -> int:
    row = tx.one("create_counter")
    return row[0] if row else 0


def _create_one(tx: Transaction, new: NewJob) -> CreateResult:
    new = check_new_job(new)
    answered = _answer_repeated(tx, new)
    if answered is not None:
        return answered
    if _is_draining(tx, new.service, new.queue):
        return Rejected(Reason.DRAINING, None)
    key = new.policy.key
    if new.key_hash is None or key is None or key.queued is None or key.when_full == "wait":
        return _insert(tx, new)
    match admit_key(key, gather_facts(tx, new.key_hash)):
        case Admit():
            return _insert(tx, new)
        case Reject(reason, existing):
            return Rejected(reason, existing)
        case Coalesce(existing):
            return Coalesced(existing, Reason.KEY_BUSY)
        case Replace(existing):
            _skip(tx, existing, new.id)
            _insert(tx, new)
            return Replaced(new.id, existing)


def _answer_repeated(tx: Transaction, new: NewJob) -> CreateResult | None:
    """Answer a request that some earlier job already stands for."""
    same = tx.one("create_same_id", new.id)
    if same is not None:
        if same == (new.service, new.type, new.payload):
            return Accepted(new.id)
        return Rejected(Reason.JOB_ID_TAKEN, new.id)
    if new.idempotency_key is not None:
        earlier = tx.one("create_same_idempotency", _mark(new, new.idempotency_key))
        if earlier is not None:
            job_id, payload = earlier
            if payload == new.payload:
                return Coalesced(job_id, Reason.SAME_IDEMPOTENCY_KEY)
            return Rejected(Reason.IDEMPOTENCY_MISMATCH, job_id)
    if new.dedupe is not None:
        earlier = tx.one("create_same_dedupe", _mark(new, new.dedupe))
        if earlier is not None:
            return Coalesced(earlier[0], Reason.SAME_DEDUPE_KEY)
    return None


def _mark(new: NewJob, text: str) -> str:
    # Service and type names have no slash, so marks of two types never meet.
    return f"{new.service}/{new.type}/{text}"


def _insert(tx: Transaction, new: NewJob) -> Accepted:
    seq = _last_seq(tx) + 1
    tx.run("create_counter_set", seq)
    definition = define(new, seq, tx.now)
    event, head = born(tx.now, first_run_at(new, tx.now))
    lane, policy = _numbers(tx, new)
    dedupe = None if new.dedupe is None else _mark(new, new.dedupe)
    park = park_of(tx, definition, head)
    tx.run("create_job_full", *_job_row(new, seq, lane, policy, tx.now))
    tail = (*_queue_tail(park, head), new.key_hash, dedupe, look_at(definition, head))
    tx.run("create_queue_full", seq, lane, *tail)
    journal(tx, seq, event)
    if new.idempotency_key is not None:
        tx.run("create_idempotency", _mark(new, new.idempotency_key), seq)
    if new.key_hash is not None:
        hand_over(tx, new.key_hash)
    return Accepted(new.id)


def _skip(tx: Transaction, existing: JobId, replaced_by: JobId) -> None:
    row = tx.one("record_by_id", existing)
    if row is None:
        return
    decision = decide(record_from(row), Skip(replaced_by), tx.now)
    if isinstance(decision, Transition):
        commit_one(tx, decision)
