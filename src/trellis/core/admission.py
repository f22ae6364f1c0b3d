"""Admission: whether a new job is stored. An engine reads the facts, `admit` decides.

The order of the checks is: same id, same idempotency key, same dedupe key, drain, jobs to follow,
key: a request
that is already known gets its answer even while nothing new is accepted. The first check that
applies decides. Facts about a key are read last and only if needed (`CheckKey`), because an engine
needs a lock or several statements to read them.

A key holds at most `active` + `queued` live jobs. `coalesce` and `replace-oldest` apply only when
it is full, so a job is never merged or replaced while there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from trellis.core.batches import Admits
from trellis.core.dependencies import check_prerequisites
from trellis.core.durations import Instant
from trellis.core.fairness import check_weight
from trellis.core.job import Dedupe, DedupeWhile, Definition, Head, JobId, NewJob, Relations
from trellis.core.keys import hash_key
from trellis.core.names import check_identifier, check_queue, check_service, check_type
from trellis.core.policy import KeyPolicy, check_word
from trellis.core.states import ENDED, State
from trellis.errors import ConfigurationError

MIN_PRIORITY: Final = -4
MAX_PRIORITY: Final = 4


class Reason(StrEnum):
    """Why a job was not accepted, or was merged into another."""

    KEY_BUSY = "key_busy"
    QUEUE_FULL = "queue_full"
    DRAINING = "draining"
    ALL_DRAINING = "all_draining"
    JOB_ID_TAKEN = "job_id_taken"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    SAME_IDEMPOTENCY_KEY = "same_idempotency_key"
    SAME_DEDUPE_KEY = "same_dedupe_key"
    NO_PREREQUISITE = "no_prerequisite"
    OTHER_REFUSED = "other_refused"
    BATCH_UNKNOWN = "batch_unknown"
    BATCH_CLOSED = "batch_closed"
    ATTEMPT_OVER = "attempt_over"


class Facts(NamedTuple):
    """Facts about a request; the engine guarantees them until the job is stored."""

    #: Service, type and payload of the stored job that has the same id.
    same_id: tuple[str, str, str] | None = None
    #: Id and payload of the stored job of this type that has the same idempotency key.
    same_idempotency: tuple[JobId, str] | None = None
    #: The job of this type whose dedupe key is the same and still holds (`holds_dedupe`).
    same_dedupe: JobId | None = None
    #: The request's queue accepts nothing new.
    draining: bool = False
    #: No queue accepts anything new.
    all_draining: bool = False
    #: A job that the request is to follow and that does not exist.
    missing: JobId | None = None
    #: Which jobs the batch accepts that the request names; None: there is no such batch.
    batch: Admits | None = None
    #: Whether the attempt that creates the job is the present one of its job.
    spawner_is_current: bool = False


class KeyFacts(NamedTuple):
    """Facts about a key at the moment of admission, read under the engine's lock of the key."""

    #: Slots taken, lingering ones included.
    held: int
    #: Waiting jobs that hold no slot.
    waiting: int
    #: The oldest job that holds a slot and has not ended.
    holder: JobId | None
    #: The newest job that waits (with or without a slot) and was never claimed.
    newest_waiting: JobId | None
    #: The oldest such job: the one that may be replaced.
    oldest_waiting: JobId | None


class Admit(NamedTuple):
    """Store the job; it takes a slot when it is due and a slot is free."""


class Repeat(NamedTuple):
    """Store nothing: the same request was stored before."""


class Reject(NamedTuple):
    """Store nothing."""

    reason: Reason
    existing: JobId | None


class Coalesce(NamedTuple):
    """Store nothing: the existing job does the same work."""

    existing: JobId
    reason: Reason


class Replace(NamedTuple):
    """Skip the existing waiting job, then store the new one."""

    existing: JobId


class CheckKey(NamedTuple):
    """Only the key is left to check: read its facts and call `admit_key`."""

    policy: KeyPolicy
    key_hash: str


KeyDecision: TypeAlias = Admit | Reject | Coalesce | Replace
Decision: TypeAlias = KeyDecision | Repeat

_ADMIT: Final = Admit()


def admit(new: NewJob, facts: Facts) -> Decision | CheckKey:
    """Decide on a request that `check_new_job` has passed."""
    # A payload that is handed on may have replaced the one that was sent.
    is_handed_on = new.relations is not None and new.relations.payload_from is not None
    if facts.same_id is not None:
        *same, payload = facts.same_id
        if same == [new.service, new.type] and (payload == new.payload or is_handed_on):
            return Repeat()
        return Reject(Reason.JOB_ID_TAKEN, new.id)
    refusal = _refuse_member(new, facts)
    if refusal is not None:
        return Reject(refusal, None)
    if facts.same_idempotency is not None:
        existing, payload = facts.same_idempotency
        if payload == new.payload or is_handed_on:
            return Coalesce(existing, Reason.SAME_IDEMPOTENCY_KEY)
        return Reject(Reason.IDEMPOTENCY_MISMATCH, existing)
    if facts.same_dedupe is not None:
        return Coalesce(facts.same_dedupe, Reason.SAME_DEDUPE_KEY)
    if facts.all_draining:
        return Reject(Reason.ALL_DRAINING, None)
    if facts.draining:
        return Reject(Reason.DRAINING, None)
    if facts.missing is not None:
        return Reject(Reason.NO_PREREQUISITE, facts.missing)
    return limited_key(new) or _ADMIT


def _refuse_member(new: NewJob, facts: Facts) -> Reason | None:
    """Return why the job may not join its batch, or may not be created by its parent."""
    if new.spawner is not None and not facts.spawner_is_current:
        return Reason.ATTEMPT_OVER
    if new.relations is None or new.relations.batch is None or facts.batch == "members":
        return None
    if facts.batch is None:
        return Reason.BATCH_UNKNOWN
    # A job that is running is unfinished itself, so what it creates comes before the batch's end.
    if facts.batch == "spawned" and new.spawner is not None:
        return None
    return Reason.BATCH_CLOSED


def withdraw(jobs: Sequence[NewJob], decisions: Sequence[Decision]) -> list[Decision] | None:
    """Return the decisions on a call that stores nothing, because a job of it is kept out.

    None: the call needs no job to be stored together with the others, or all are stored. An
    existing job cannot stand for one that others may follow, so one that would be merged is
    rejected.
    """
    pairs = zip(jobs, decisions, strict=True)
    if not any(new.together and isinstance(each, Reject | Coalesce) for new, each in pairs):
        return None
    return [
        Reject(each.reason, each.existing)
        if isinstance(each, Reject | Coalesce)
        else Reject(Reason.OTHER_REFUSED, None)
        for each in decisions
    ]


def holds_dedupe(definition: Definition, head: Head, now: Instant) -> bool:
    """Return whether the dedupe key of a job keeps out other jobs now.

    The job that has the key decides how long, not the one that is to be created. Only creation
    takes a key: a job that an operator runs again does not.
    """
    dedupe = definition.dedupe
    if dedupe is None:
        return False
    if dedupe.period is not None and now < definition.created_at + dedupe.period:
        return True
    if head.generation > 0:
        return False
    match dedupe.during:
        case "pending":
            return head.state is State.PENDING
        case "unfinished":
            return head.state not in ENDED
        case None:
            return False


def limited_key(new: NewJob) -> CheckKey | None:
    """Return the key that may be full; None if the job has no key with a limit."""
    policy = new.policy.key
    if new.key_hash is None or policy is None:
        return None
    if policy.queued is None or policy.when_full == "wait":
        return None
    return CheckKey(policy, new.key_hash)


def has_room(policy: KeyPolicy, facts: KeyFacts) -> bool:
    """Return whether one more live job fits under the limits of the key."""
    if policy.queued is None or policy.when_full == "wait":
        return True
    return facts.held + facts.waiting < policy.active + policy.queued


def admit_key(policy: KeyPolicy, facts: KeyFacts) -> KeyDecision:
    """Decide on a new job of this key that has passed `admit`."""
    if has_room(policy, facts):
        return _ADMIT
    match policy.when_full:
        case "coalesce":
            existing = facts.newest_waiting or facts.holder
            if existing is not None:
                return Coalesce(existing, Reason.KEY_BUSY)
        case "replace-oldest":
            if facts.oldest_waiting is not None:
                return Replace(facts.oldest_waiting)
        case "reject" | "wait":
            pass
    reason = Reason.QUEUE_FULL if facts.waiting else Reason.KEY_BUSY
    return Reject(reason, facts.holder or facts.newest_waiting)


def revive_key(policy: KeyPolicy, facts: KeyFacts) -> Reject | Admit:
    """Decide whether an ended job may run again under its key."""
    if has_room(policy, facts):
        return _ADMIT
    reason = Reason.QUEUE_FULL if facts.waiting else Reason.KEY_BUSY
    return Reject(reason, facts.holder or facts.newest_waiting)


def check_new_job(new: NewJob) -> NewJob:
    """Return the request with its key hash; raise `ConfigurationError` if it is invalid."""
    check_service(new.service)
    check_type(new.type)
    check_queue(new.queue)
    check_priority(new.priority)
    if new.dedupe is not None:
        _check_dedupe(new.dedupe)
    if new.relations is not None:
        _check_tenant(new.relations)
    for what, text in (
        ("idempotency_key", new.idempotency_key),
        ("expect", new.expect),
    ):
        if text is not None:
            check_identifier(what, text)
    _check_overrides(new)
    if new.after:
        check_prerequisites(new)
    if new.tags and len(dict(new.tags)) != len(new.tags):
        raise ConfigurationError("A tag is given twice. Give each tag one value.")
    if new.key is not None and new.policy.key is None:
        raise ConfigurationError(
            f"The job has the key {new.key!r}, but its type is declared without keys. "
            "Declare the type with per_key=PerKey(...)."
        )
    if new.key is not None and new.key_hash is None:
        return new._replace(key_hash=hash_key(new.service, new.type, new.key))
    return new


def _check_overrides(new: NewJob) -> None:
    if new.attempts is not None:
        check_attempts(new.attempts)
    if new.timeout is not None and new.timeout <= 0:
        raise ConfigurationError("timeout must be longer than 0.")


def _check_tenant(relations: Relations) -> None:
    if relations.tenant is not None:
        check_identifier("tenant", relations.tenant)
    if relations.weight is not None:
        check_weight(relations.tenant or "", relations.weight)


def _check_dedupe(dedupe: Dedupe) -> None:
    check_identifier("dedupe", dedupe.key)
    if dedupe.during is not None:
        check_word("dedupe_while", dedupe.during, DedupeWhile)
    elif dedupe.period is None:
        raise ConfigurationError("A dedupe key without dedupe_while= needs dedupe_for=.")
    if dedupe.period is not None and dedupe.period <= 0:
        raise ConfigurationError("dedupe_for must be longer than 0. Write dedupe_for='1h'.")


def check_priority(priority: int) -> None:
    """Raise `ConfigurationError` for a priority that is out of range."""
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise ConfigurationError(
            f"Priority {priority} is out of range. Use {MIN_PRIORITY} (last) to "
            f"{MAX_PRIORITY} (first); 0 is normal."
        )


def check_attempts(attempts: int) -> None:
    """Raise `ConfigurationError` for a number of attempts below 1."""
    if attempts < 1:
        raise ConfigurationError("attempts must be at least 1: the first run counts as one.")
