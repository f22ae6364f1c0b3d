"""Admission: whether a new job is stored. An engine reads the facts, `admit` decides.

The order of the checks is: same id, same idempotency key, same dedupe key, draining queue, key.
The first check that applies decides. Facts about a key are read last and only if needed
(`CheckKey`), because an engine needs a lock or several statements to read them.

A key holds at most `active` + `queued` live jobs. `coalesce` and `replace-oldest` apply only when
it is full, so a job is never merged or replaced while there is room.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from trellis.core.job import JobId, NewJob
from trellis.core.keys import hash_key
from trellis.core.names import check_queue, check_service, check_type
from trellis.core.policy import KeyPolicy
from trellis.errors import ConfigurationError

MIN_PRIORITY: Final = -4
MAX_PRIORITY: Final = 4
MAX_IDENTIFIER_LENGTH: Final = 512


class Reason(StrEnum):
    """Why a job was not accepted, or was merged into another."""

    KEY_BUSY = "key_busy"
    QUEUE_FULL = "queue_full"
    DRAINING = "draining"
    JOB_ID_TAKEN = "job_id_taken"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    SAME_IDEMPOTENCY_KEY = "same_idempotency_key"
    SAME_DEDUPE_KEY = "same_dedupe_key"


class Facts(NamedTuple):
    """Facts about a request; the engine guarantees them until the job is stored."""

    #: Service, type and payload of the stored job that has the same id.
    same_id: tuple[str, str, str] | None = None
    #: Id and payload of the stored job of this type that has the same idempotency key.
    same_idempotency: tuple[JobId, str] | None = None
    #: The live job of this type that has the same dedupe key.
    same_dedupe: JobId | None = None
    #: The request's queue accepts nothing new.
    draining: bool = False


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
    if facts.same_id is not None:
        if facts.same_id == (new.service, new.type, new.payload):
            return Repeat()
        return Reject(Reason.JOB_ID_TAKEN, new.id)
    if facts.same_idempotency is not None:
        existing, payload = facts.same_idempotency
        if payload == new.payload:
            return Coalesce(existing, Reason.SAME_IDEMPOTENCY_KEY)
        return Reject(Reason.IDEMPOTENCY_MISMATCH, existing)
    if facts.same_dedupe is not None:
        return Coalesce(facts.same_dedupe, Reason.SAME_DEDUPE_KEY)
    if facts.draining:
        return Reject(Reason.DRAINING, None)
    return limited_key(new) or _ADMIT


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
    if not MIN_PRIORITY <= new.priority <= MAX_PRIORITY:
        raise ConfigurationError(
            f"Priority {new.priority} is out of range. Use {MIN_PRIORITY} (last) to "
            f"{MAX_PRIORITY} (first); 0 is normal."
        )
    for what, text in (
        ("dedupe", new.dedupe),
        ("idempotency_key", new.idempotency_key),
        ("expect", new.expect),
    ):
        if text is not None:
            _check_identifier(what, text)
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


def _check_identifier(what: str, text: object) -> None:
    if not isinstance(text, str) or not 0 < len(text) <= MAX_IDENTIFIER_LENGTH:
        raise ConfigurationError(
            f"{what} must be a text of 1 to {MAX_IDENTIFIER_LENGTH} characters."
        )
    if "\0" in text or not _is_unicode(text):
        raise ConfigurationError(
            f"{what} contains U+0000 or a lone surrogate, which not every engine can store. "
            "Remove it."
        )


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
