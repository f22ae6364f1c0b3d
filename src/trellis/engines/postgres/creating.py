"""`create` on PostgreSQL: one statement for jobs that need no look at others, gates for the rest.

A job with a dedupe or idempotency key, or with a bounded key, passes a gate named by it: a lock
that every creator takes until its transaction ends, so that what was looked up stays true. In a
caller's transaction the gate is only tried; whoever is in it may have a long way to the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trellis.core.admission import (
    Admit,
    CheckKey,
    Decision,
    Facts,
    Replace,
    admit,
    admit_key,
    check_new_job,
    limited_key,
)
from trellis.core.commands import Skip
from trellis.core.job import JobId, NewJob
from trellis.core.lifecycle import Transition, decide
from trellis.engines.postgres.committing import commit_one
from trellis.engines.postgres.keying import gather_facts, hand_over, lock_keys
from trellis.engines.postgres.registry import Books, lane_of
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql.rows import encode_tags, record_from
from trellis.engines.values import Committed, CreateResult, answer_to
from trellis.errors import EngineBusy

_ID, _IDEMPOTENCY, _DEDUPE = 0, 1, 2
_TRIES: Final = 5


def check(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Refuse requests no engine should see."""
    return [check_new_job(new) for new in jobs]


def needs_look(new: NewJob) -> bool:
    """Tell whether a job must pass a gate, or take a slot."""
    return new.dedupe is not None or new.idempotency_key is not None or new.key_hash is not None


def has_gates(new: NewJob) -> bool:
    """Tell whether a job must pass a gate."""
    return any(True for _ in _gates(new))


async def create(
    tx: Transaction, jobs: Sequence[NewJob], *, guest: bool = False
) -> list[CreateResult]:
    """Admit and store new jobs whose numbers are in the books, in the order given."""
    await _pass_gates(tx, jobs, guest=guest)
    if not guest:
        await lock_keys(tx, (new.key_hash for new in jobs))
    await tx.read_clock()
    known = await _known(tx, jobs)
    results: list[CreateResult] = []
    admitted: list[NewJob] = []
    for new in jobs:
        decision = admit(new, known.facts(new))
        if isinstance(decision, CheckKey):
            await _insert(tx, admitted, guest=guest)
            admitted = []
            decision = await _admit_key(tx, new, decision, guest=guest)
        if isinstance(decision, Admit | Replace):
            admitted.append(new)
            known.add(new, decision)
        results.append(answer_to(new, decision))
    await _insert(tx, admitted, guest=guest)
    tx.topics.add("ready")
    return results


async def _pass_gates(tx: Transaction, jobs: Sequence[NewJob], *, guest: bool) -> None:
    names = sorted({name for new in jobs for name in _gates(new)})
    if not names:
        return
    if not guest:
        await tx.rows("gate_patience")
        await tx.rows("gate", names)
    elif not await tx.value("gate_try", names):
        raise EngineBusy(
            "Another transaction is creating a job with the same key, dedupe key or idempotency "
            "key and has not ended yet. Nothing was stored and your transaction goes on; try "
            "again, or roll back and repeat it."
        )


def _gates(new: NewJob) -> Iterable[str]:
    if new.dedupe is not None:
        yield f"dedupe/{_mark(new, new.dedupe)}"
    if new.idempotency_key is not None:
        yield f"idempotency/{_mark(new, new.idempotency_key)}"
    if limited_key(new) is not None:
        yield f"key/{new.key_hash}"


def _mark(new: NewJob, text: str) -> str:
    # Service and type names have no slash, so marks of two types never meet.
    return f"{new.service}/{new.type}/{text}"


class _Known:
    """The facts about the requests of a call, from the store and from earlier in the same call."""

    def __init__(self) -> None:
        self.ids: dict[str, tuple[str, str, str]] = {}
        self.idempotency: dict[str, tuple[JobId, str]] = {}
        self.dedupe: dict[str, JobId] = {}
        #: Services and queues that accept nothing new.
        self.draining: set[tuple[str, str]] = set()

    def facts(self, new: NewJob) -> Facts:
        """Return what decides on a request, but for its key."""
        same_idempotency = same_dedupe = None
        if new.idempotency_key is not None:
            same_idempotency = self.idempotency.get(_mark(new, new.idempotency_key))
        if new.dedupe is not None:
            same_dedupe = self.dedupe.get(_mark(new, new.dedupe))
        draining = (new.service, new.queue) in self.draining
        return Facts(self.ids.get(new.id), same_idempotency, same_dedupe, draining)

    def add(self, new: NewJob, decision: Admit | Replace) -> None:
        """Take note of a job that is stored."""
        self.ids[new.id] = (new.service, new.type, new.payload)
        if new.idempotency_key is not None:
            mark = _mark(new, new.idempotency_key)
            self.idempotency.setdefault(mark, (new.id, new.payload))
        if new.dedupe is not None:
            self.dedupe.setdefault(_mark(new, new.dedupe), new.id)
        if isinstance(decision, Replace):
            gone = [mark for mark, job in self.dedupe.items() if job == decision.existing]
            for mark in gone:
                del self.dedupe[mark]


async def _known(tx: Transaction, jobs: Sequence[NewJob]) -> _Known:
    known = _Known()
    marks = (
        [_mark(new, text) for new in jobs if (text := new.idempotency_key) is not None],
        [_mark(new, text) for new in jobs if (text := new.dedupe) is not None],
    )
    ids = [new.id for new in jobs]
    for kind, name, job_id, service, job_type, payload in await tx.rows(
        "create_known", ids, *marks
    ):
        if kind == _ID:
            known.ids[name] = (service, job_type, payload)
        elif kind == _IDEMPOTENCY:
            known.idempotency[name] = (job_id, payload)
        else:
            known.dedupe[name] = job_id
    known.draining = {(service, queue) for service, queue in await tx.rows("create_draining")}
    return known


async def _admit_key(tx: Transaction, new: NewJob, check: CheckKey, *, guest: bool) -> Decision:
    """Decide on a job whose key may be full, under the key's gate; skip the one it replaces."""
    for _ in range(_TRIES):
        facts = await gather_facts(tx, check.key_hash, check.policy.active)
        decision = admit_key(check.policy, facts)
        # A job that was just claimed can no longer be replaced: decide again.
        if not isinstance(decision, Replace) or await _skip(
            tx, decision.existing, new.id, guest=guest
        ):
            return decision
    raise EngineBusy(
        f"Jobs of the key {new.key!r} are started as fast as this one could replace them. Nothing "
        "was stored; try again."
    )


async def _insert(tx: Transaction, jobs: Sequence[NewJob], *, guest: bool) -> None:
    if not jobs:
        return
    await tx.rows("create", *columns(jobs, tx.books), "guest" if guest else "slot", False)
    if not guest:
        await hand_over(tx, (new.key_hash for new in jobs))


def columns(jobs: Sequence[NewJob], books: Books) -> tuple[list[object], ...]:
    """Return what `create` wants of the jobs."""
    return (
        [new.id for new in jobs],
        [books.lane_numbers[lane_of(new)] for new in jobs],
        [books.policy_numbers[new.policy] for new in jobs],
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
        [None if new.dedupe is None else _mark(new, new.dedupe) for new in jobs],
        [None if new.idempotency_key is None else _mark(new, new.idempotency_key) for new in jobs],
    )


async def _skip(tx: Transaction, existing: JobId, replaced_by: JobId, *, guest: bool) -> bool:
    row = await tx.one("record_by_id", [existing])
    if row is None:
        return False
    decision = decide(record_from(row), Skip(replaced_by), tx.now)
    if not isinstance(decision, Transition):
        return False
    return isinstance(await commit_one(tx, decision, guest=guest), Committed)
