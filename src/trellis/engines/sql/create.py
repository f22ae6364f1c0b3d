"""`create`, for jobs that something else may keep out: facts, the core's decision, storing.

Plain jobs are stored by each engine's `fast_create.py`. On PostgreSQL the gates of the jobs have
been passed before (`gates.py`), so what is read here stays true until the transaction ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trellis.core.admission import Admit, CheckKey, Decision, Facts, Replace, admit, admit_key
from trellis.core.commands import Skip
from trellis.core.job import JobId, NewJob
from trellis.core.lifecycle import Transition, decide
from trellis.engines.sql import commit
from trellis.engines.sql.rows import record_from
from trellis.engines.sql.slots import gather_facts, hand_over, lock_keys
from trellis.engines.sql.transaction import Storage, Transaction
from trellis.engines.values import Committed, CreateResult, answer_to
from trellis.errors import EngineBusy

_ID, _IDEMPOTENCY, _DEDUPE = 0, 1, 2  # and 3 for a queue; see `create_known`
_TRIES: Final = 5


async def create(tx: Transaction, storage: Storage, jobs: Sequence[NewJob]) -> list[CreateResult]:
    """Admit and store new jobs that `check_new_job` has passed, in the order given."""
    await lock_keys(tx, (new.key_hash for new in jobs))
    await tx.read_clock()
    known = await _known(tx, jobs)
    results: list[CreateResult] = []
    admitted: list[NewJob] = []
    for new in jobs:
        decision = admit(new, known.facts(new))
        if isinstance(decision, CheckKey):
            await _insert(tx, storage, admitted)
            admitted = []
            decision = await _admit_key(tx, storage, new, decision)
        if isinstance(decision, Admit | Replace):
            admitted.append(new)
            known.add(new, decision)
        results.append(answer_to(new, decision))
    await _insert(tx, storage, admitted)
    tx.topics.add("ready")
    return results


def mark_of(new: NewJob, text: str | None) -> str | None:
    """Return a dedupe or idempotency key as it is stored: together with the service and type.

    Names of services and types have no slash, so marks of two types are never equal.
    """
    return None if text is None else f"{new.service}/{new.type}/{text}"


class _Known:
    """The facts about the requests of a call, from the store and from earlier in the same call."""

    def __init__(self) -> None:
        self.ids: dict[str, tuple[str, str, str]] = {}
        self.idempotency: dict[str | None, tuple[JobId, str]] = {}
        self.dedupe: dict[str | None, JobId] = {}
        #: Services and queues that accept nothing new.
        self.draining: set[tuple[str, str]] = set()

    def facts(self, new: NewJob) -> Facts:
        """Return what decides on a request, except the facts of its key."""
        return Facts(
            self.ids.get(new.id),
            self.idempotency.get(mark_of(new, new.idempotency_key)),
            self.dedupe.get(mark_of(new, new.dedupe)),
            (new.service, new.queue) in self.draining,
        )

    def add(self, new: NewJob, decision: Admit | Replace) -> None:
        """Record that a job is stored, and that the one it replaces no longer waits."""
        self.ids[new.id] = (new.service, new.type, new.payload)
        if new.idempotency_key is not None:
            mark = mark_of(new, new.idempotency_key)
            self.idempotency.setdefault(mark, (new.id, new.payload))
        if new.dedupe is not None:
            self.dedupe.setdefault(mark_of(new, new.dedupe), new.id)
        if isinstance(decision, Replace):
            gone = [mark for mark, job in self.dedupe.items() if job == decision.existing]
            for mark in gone:
                del self.dedupe[mark]


async def _known(tx: Transaction, jobs: Sequence[NewJob]) -> _Known:
    known = _Known()
    found = await tx.rows(
        "create_known",
        tx.array([new.id for new in jobs]),
        tx.array([mark_of(new, text) for new in jobs if (text := new.idempotency_key) is not None]),
        tx.array([mark_of(new, text) for new in jobs if (text := new.dedupe) is not None]),
    )
    for kind, name, job_id, service, job_type, payload in found:
        if kind == _ID:
            known.ids[name] = (service, job_type, payload)
        elif kind == _IDEMPOTENCY:
            known.idempotency[name] = (job_id, payload)
        elif kind == _DEDUPE:
            known.dedupe[name] = job_id
        else:
            known.draining.add((name, job_id))
    return known


async def _admit_key(tx: Transaction, storage: Storage, new: NewJob, check: CheckKey) -> Decision:
    """Decide on a job whose key may be full; skip the job it replaces."""
    for _ in range(_TRIES):
        facts = await gather_facts(tx, check.key_hash, check.policy.active)
        decision = admit_key(check.policy, facts)
        # A job that was just claimed can no longer be replaced: decide again.
        if not isinstance(decision, Replace) or await _skip(tx, storage, decision, new.id):
            return decision
    raise EngineBusy(
        f"Jobs of the key {new.key!r} are started as fast as this one could replace them. Nothing "
        "was stored; try again."
    )


async def _insert(tx: Transaction, storage: Storage, jobs: Sequence[NewJob]) -> None:
    if jobs:
        await storage.insert(jobs)
        await hand_over(tx, (new.key_hash for new in jobs))


async def _skip(tx: Transaction, storage: Storage, decision: Replace, replaced_by: JobId) -> bool:
    row = await tx.one("record_by_id", tx.array([decision.existing]))
    if row is None:
        return False
    skipped = decide(record_from(row), Skip(replaced_by), tx.now)
    if not isinstance(skipped, Transition):
        return False
    return isinstance(await commit.commit_one(tx, storage, skipped), Committed)
