"""`create` on SQLite: a fast path for calls of plain jobs (`plain.py`), a careful one for the rest.

The careful one asks, in the order that `core.admission` gives, for each job what may keep it out.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from trellis.core.job import JobId, NewJob, define
from trellis.core.lifecycle import Transition, born, decide, first_run_at
from trellis.engines.sqlite.committing import commit_one
from trellis.engines.sqlite.journaling import journal
from trellis.engines.sqlite.keying import gather_facts, hand_over, park_of
from trellis.engines.sqlite.plain import (
    create_plain,
    is_draining,
    job_row,
    last_seq,
    numbers,
    queue_tail,
)
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.sqlkit.rows import record_from
from trellis.engines.values import Accepted, Coalesced, CreateResult, Rejected, Replaced


def create(tx: Transaction, jobs: Sequence[NewJob]) -> list[CreateResult]:
    """Admit and store new jobs."""
    tx.topics.add("ready")
    results = create_plain(tx, jobs)
    return [_create_one(tx, new) for new in jobs] if results is None else results


def _create_one(tx: Transaction, new: NewJob) -> CreateResult:
    new = check_new_job(new)
    answered = _answer_repeated(tx, new)
    if answered is not None:
        return answered
    if is_draining(tx, new.service, new.queue):
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
    seq = last_seq(tx) + 1
    tx.run("create_counter_set", seq)
    definition = define(new, seq, tx.now)
    event, head = born(tx.now, first_run_at(new, tx.now))
    lane, policy = numbers(tx, new)
    dedupe = None if new.dedupe is None else _mark(new, new.dedupe)
    park = park_of(tx, definition, head)
    tx.run("create_job_full", *job_row(new, seq, lane, policy, tx.now))
    tail = (*queue_tail(park, head), new.key_hash, dedupe, look_at(definition, head))
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
