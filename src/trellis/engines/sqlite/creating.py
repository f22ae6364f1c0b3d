"""`create` on SQLite: a fast path for calls of plain jobs (`plain.py`), a careful one for the rest.

The careful one gathers for each job the facts by which `core.admission` decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from trellis.core.admission import (
    Admit,
    CheckKey,
    Facts,
    Replace,
    admit,
    admit_key,
    check_new_job,
)
from trellis.core.commands import Skip
from trellis.core.job import JobId, NewJob, define
from trellis.core.lifecycle import Transition, born, decide, first_run_at
from trellis.core.timers import look_at
from trellis.engines.sql.rows import record_from
from trellis.engines.sqlite.committing import commit_one
from trellis.engines.sqlite.fast_create import (
    create_plain,
    is_draining,
    job_row,
    last_seq,
    numbers,
    queue_tail,
)
from trellis.engines.sqlite.journaling import journal
from trellis.engines.sqlite.keying import gather_facts, hand_over, park_of
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.values import CreateResult, answer_to


def create(tx: Transaction, jobs: Sequence[NewJob]) -> list[CreateResult]:
    """Admit and store new jobs."""
    tx.topics.add("ready")
    results = create_plain(tx, jobs)
    return [_create_one(tx, new) for new in jobs] if results is None else results


def _create_one(tx: Transaction, new: NewJob) -> CreateResult:
    new = check_new_job(new)
    decision = admit(new, _facts(tx, new))
    if isinstance(decision, CheckKey):
        decision = admit_key(decision.policy, gather_facts(tx, decision.key_hash))
    if isinstance(decision, Replace):
        _skip(tx, decision.existing, new.id)
    if isinstance(decision, Admit | Replace):
        _insert(tx, new)
    return answer_to(new, decision)


def _facts(tx: Transaction, new: NewJob) -> Facts:
    same_id = tx.one("create_same_id", new.id)
    same_idempotency = same_dedupe = None
    if new.idempotency_key is not None:
        same_idempotency = tx.one("create_same_idempotency", _mark(new, new.idempotency_key))
    if new.dedupe is not None:
        same_dedupe = tx.one("create_same_dedupe", _mark(new, new.dedupe))
    return Facts(
        None if same_id is None else tuple(same_id),
        None if same_idempotency is None else tuple(same_idempotency),
        None if same_dedupe is None else same_dedupe[0],
        is_draining(tx, new.service, new.queue),
    )


def _mark(new: NewJob, text: str) -> str:
    # Service and type names have no slash, so marks of two types never meet.
    return f"{new.service}/{new.type}/{text}"


def _insert(tx: Transaction, new: NewJob) -> None:
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


def _skip(tx: Transaction, existing: JobId, replaced_by: JobId) -> None:
    row = tx.one("record_by_id", existing)
    if row is None:
        return
    decision = decide(record_from(row), Skip(replaced_by), tx.now)
    if isinstance(decision, Transition):
        commit_one(tx, decision)
