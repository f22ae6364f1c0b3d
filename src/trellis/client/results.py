"""The result of creating a job: a value for `match` from `submit`, a typed error from `create`.

The engine's answers (`engines.values`) name ids; these carry references and errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from trellis.client.ref import JobRef
from trellis.core.admission import Reason
from trellis.core.job import JobId, NewJob
from trellis.engines import values
from trellis.errors import (
    AdmissionError,
    AttemptOver,
    BatchClosed,
    Draining,
    IdempotencyMismatch,
    JobIdTaken,
    KeyBusy,
    QueueFull,
    UnknownPrerequisite,
)

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Accepted(Generic[R_co]):
    """The job is stored and will run."""

    ref: JobRef[R_co]


@dataclass(frozen=True, slots=True)
class Coalesced(Generic[R_co]):
    """Nothing was stored: this earlier job has the same dedupe or idempotency key."""

    ref: JobRef[R_co]


@dataclass(frozen=True, slots=True)
class Replaced(Generic[R_co]):
    """The job is stored, and an older waiting job of its key was skipped."""

    ref: JobRef[R_co]
    #: Id of the skipped job.
    skipped: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Nothing was stored."""

    #: Why, as a stable word.
    reason: Reason
    #: Id of the job that prevents it, when there is one.
    existing: str | None
    #: What `create` would have raised.
    error: AdmissionError


Answer: TypeAlias = Accepted[R] | Coalesced[R] | Replaced[R] | Rejected


def answer(
    new: NewJob, result: values.CreateResult, refer: Callable[[JobId], JobRef[R]]
) -> Answer[R]:
    """Return the caller's answer for the engine's."""
    match result:
        case values.Accepted(job_id):
            return Accepted(refer(job_id))
        case values.Coalesced(existing, _):
            return Coalesced(refer(existing))
        case values.Replaced(job_id, skipped):
            return Replaced(refer(job_id), skipped)
        case values.Rejected(reason, existing):
            return Rejected(reason, existing, rejection(new, reason, existing))


def rejection(new: NewJob, reason: Reason, existing: JobId | None) -> AdmissionError:
    """Return the error for a job that an engine has rejected."""
    kind, template = _ERRORS[reason]
    what = f"{new.service}/{new.type}"
    text = template.format(
        what=what,
        key=new.key,
        existing=existing,
        queue=new.queue,
        token=new.idempotency_key,
        batch=new.relations and new.relations.batch,
    )
    return kind(text, existing=existing)


_ERRORS: Final[dict[Reason, tuple[type[AdmissionError], str]]] = {
    Reason.KEY_BUSY: (
        KeyBusy,
        (
            "Key {key!r} of {what} is busy: job {existing} holds it. "
            "Let jobs wait for each other with per_key=PerKey.in_turn(...), or create this later."
        ),
    ),
    Reason.QUEUE_FULL: (
        QueueFull,
        (
            "As many jobs of {what} as allowed wait for key {key!r}; {existing} is first. "
            "Allow more with queued=, or any number with PerKey.in_turn(...)."
        ),
    ),
    Reason.DRAINING: (
        Draining,
        (
            "Queue {queue!r} of {what} is draining: it finishes its jobs and accepts no "
            "new ones. Try again when it is open."
        ),
    ),
    Reason.ALL_DRAINING: (
        Draining,
        (
            "No new job is accepted now, so {what} was not created: an operator drains all "
            "queues. Who, when and why: trellis drain status. Try again when new jobs are accepted."
        ),
    ),
    Reason.IDEMPOTENCY_MISMATCH: (
        IdempotencyMismatch,
        (
            "Idempotency key {token!r} of {what} was used for job {existing} with another "
            "payload. Use a new key for a new request."
        ),
    ),
    Reason.JOB_ID_TAKEN: (
        JobIdTaken,
        "The job id was used before for another job ({existing}). Use a fresh one.",
    ),
    Reason.BATCH_UNKNOWN: (
        BatchClosed,
        "There is no batch {batch!r}, so {what} was not created. Open it with service.batch().",
    ),
    Reason.BATCH_CLOSED: (
        BatchClosed,
        (
            "Batch {batch!r} is sealed, cancelled or finished, so {what} was not created. Create "
            "members inside its `async with` block. Until it is cancelled or finished, a running "
            "member can add more with job.spawn(...)."
        ),
    ),
    Reason.ATTEMPT_OVER: (
        AttemptOver,
        (
            "The attempt that creates {what} is over, so nothing was stored: the job was cancelled "
            "or another worker has it now."
        ),
    ),
    Reason.SAME_IDEMPOTENCY_KEY: (AdmissionError, "Job {existing} has the same idempotency key."),
    Reason.SAME_DEDUPE_KEY: (AdmissionError, "Job {existing} has the same dedupe key."),
    Reason.NO_PREREQUISITE: (
        UnknownPrerequisite,
        (
            "{what} is to follow job {existing}, which does not exist or was removed. Nothing was "
            "stored. Check the id, or create it without after=."
        ),
    ),
    Reason.OTHER_REFUSED: (
        AdmissionError,
        "{what} was not created, because another job of the same call was refused.",
    ),
}
