"""`create`, for jobs that something else may keep out: facts, the core's decision, storing.

Plain jobs are stored by each engine's `fast_create.py`. On PostgreSQL the gates of the jobs have
been passed before (`gates.py`), so what is read here stays true until the transaction ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from trellis.core.admission import (
    Admit,
    CheckKey,
    Decision,
    Facts,
    Replace,
    admit,
    admit_key,
    withdraw,
)
from trellis.core.batches import Admits
from trellis.core.commands import Skip
from trellis.core.job import Fence, JobId, NewJob
from trellis.core.lifecycle import Transition, decide
from trellis.engines.audit import By, creation_of
from trellis.engines.operating import ALL_QUEUES
from trellis.engines.sql import audit, batches, commit, dependencies, followups
from trellis.engines.sql.rows import dedupe_mark_of, mark_of, record_from
from trellis.engines.sql.slots import gather_facts, hand_over, lock_keys
from trellis.engines.sql.transaction import Storage, Transaction
from trellis.engines.values import Committed, CreateResult, answer_to
from trellis.errors import EngineBusy

#: What a row of `create_known` is about.
_ID, _IDEMPOTENCY, _DEDUPE, _PERIOD = 0, 1, 2, 4  # and 3 for a queue
_TRIES: Final = 5


class Withdrawn(Exception):
    """A job that is stored only with the others was refused: the engine undoes the call."""

    def __init__(self, results: list[CreateResult]) -> None:
        super().__init__(f"{len(results)} jobs")
        self.results = results


async def create(
    tx: Transaction, storage: Storage, jobs: Sequence[NewJob], by: By | None = None
) -> list[CreateResult]:
    """Admit and store new jobs that `check_new_job` has passed, in the order given.

    Raises `Withdrawn`, with the answers, if nothing of the call may be stored.
    """
    joined = await batches.lock_to_join(tx, jobs)
    await lock_keys(tx, (new.key_hash for new in jobs))
    spawners = await batches.current_spawners(tx, jobs)
    priors = await dependencies.watch(tx, jobs)
    await tx.read_clock()
    known = await _known(tx, jobs)
    known.priors = priors.keys()
    known.batches = {name: batch.admits for name, batch in joined.items()}
    known.spawners = spawners
    decisions: list[Decision] = []
    admitted: list[NewJob] = []
    stored: list[NewJob] = []
    for new in jobs:
        decision = admit(new, known.facts(new))
        if isinstance(decision, CheckKey):
            await _insert(tx, storage, admitted)
            admitted = []
            decision = await _admit_key(tx, storage, new, decision)
        if isinstance(decision, Admit | Replace):
            admitted.append(new)
            stored.append(new)
            known.add(new, decision)
        decisions.append(decision)
    if (withdrawn := withdraw(jobs, decisions)) is not None:
        raise Withdrawn(list(map(answer_to, jobs, withdrawn)))
    results = list(map(answer_to, jobs, decisions))
    await _insert(tx, storage, admitted)
    if by is not None:
        await audit.record_all(tx, map(creation_of, stored), by)
    await batches.join(tx, jobs, results)
    linked = [new for new in stored if new.after]
    ended = await dependencies.link(tx, storage, linked, priors)
    await followups.after_end(tx, storage, ended)
    tx.topics.add("ready")
    return results


class _Known:
    """The facts about the requests of a call, from the store and from earlier in the same call."""

    def __init__(self) -> None:
        self.ids: dict[str, tuple[str, str, str]] = {}
        self.idempotency: dict[str | None, tuple[JobId, str]] = {}
        self.dedupe: dict[str | None, JobId] = {}
        #: Dedupe keys whose period has not passed: they hold whatever happens to the job.
        self.periods: dict[str | None, JobId] = {}
        #: Services and queues that accept nothing new.
        self.draining: set[tuple[str, str]] = set()
        #: Stored jobs that requests are to follow.
        self.priors: Collection[JobId] = ()
        #: Which jobs the batches accept, and the attempts that may create jobs.
        self.batches: dict[str, Admits] = {}
        self.spawners: set[Fence] = set()

    def facts(self, new: NewJob) -> Facts:
        """Return what decides on a request, except the facts of its key."""
        mark = dedupe_mark_of(new)
        return Facts(
            self.ids.get(new.id),
            self.idempotency.get(mark_of(new, new.idempotency_key)),
            self.periods.get(mark) or self.dedupe.get(mark),
            (new.service, new.queue) in self.draining,
            ALL_QUEUES in self.draining,
            self._missing(new) if new.after else None,
            None if new.relations is None else self.batches.get(new.relations.batch or ""),
            new.spawner in self.spawners,
        )

    def _missing(self, new: NewJob) -> JobId | None:
        """Return a job that the request is to follow and that is not there."""
        names = (each.id for each in new.after)
        return next((one for one in names if one not in self.priors and one not in self.ids), None)

    def add(self, new: NewJob, decision: Admit | Replace) -> None:
        """Record that a job is stored, and that the one it replaces no longer waits."""
        self.ids[new.id] = (new.service, new.type, new.payload)
        if new.idempotency_key is not None:
            mark = mark_of(new, new.idempotency_key)
            self.idempotency.setdefault(mark, (new.id, new.payload))
        if new.dedupe is not None:
            marks = self.dedupe if new.dedupe.period is None else self.periods
            marks[dedupe_mark_of(new)] = new.id
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
        tx.array([dedupe_mark_of(new) for new in jobs if new.dedupe is not None]),
        tx.now,
    )
    for kind, name, job_id, service, job_type, payload in found:
        if kind == _ID:
            known.ids[name] = (service, job_type, payload)
        elif kind == _IDEMPOTENCY:
            known.idempotency[name] = (job_id, payload)
        elif kind == _DEDUPE:
            known.dedupe[name] = job_id
        elif kind == _PERIOD:
            known.periods[name] = job_id
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
        await dependencies.park(tx, jobs)
        await hand_over(tx, (new.key_hash for new in jobs))


async def _skip(tx: Transaction, storage: Storage, decision: Replace, replaced_by: JobId) -> bool:
    row = await tx.one("record_by_id", tx.array([decision.existing]))
    if row is None:
        return False
    skipped = decide(record_from(row), Skip(replaced_by), tx.now)
    if not isinstance(skipped, Transition):
        return False
    result = await commit.commit_one(tx, storage, skipped)
    if followups.was_watched(skipped, result):
        (result,) = await followups.settle(tx, storage, [skipped])
    return isinstance(result, Committed)
