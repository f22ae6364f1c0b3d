"""The exceptions of Trellis, as one tree.

Expected results are values (`Rejected`, `Conflict`, `Stale`); an exception means that the call did
not do what it promises. Each class has a stable `code`, from which exit codes and HTTP answers are
derived. Each message says what happened and what to do.

    TrellisError
    ├── ConfigurationError        a name, URL, declaration or setting is wrong
    │   ├── InvalidName
    │   ├── UnknownScheme
    │   ├── UnknownService
    │   ├── UnknownJobType
    │   ├── UnsupportedDatabase
    │   ├── AddressUnusable       also an EngineError
    │   ├── CalledDirectly
    │   └── CalledFromLoop
    ├── AdmissionError            a job was not accepted; nothing was stored
    │   ├── PayloadInvalid
    │   │   └── PayloadTooLarge
    │   ├── KeyUnresolved
    │   ├── KeyBusy
    │   ├── QueueFull
    │   ├── Draining
    │   ├── IdempotencyMismatch
    │   └── JobIdTaken
    ├── JobError                  about one existing job
    │   ├── JobNotFound
    │   ├── AmbiguousId
    │   ├── CommandRejected
    │   ├── ConflictPersists
    │   ├── WaitTimeout
    │   ├── TransactionOpen
    │   └── JobNotCompleted       what `wait` raises when a job ended without a result
    │       ├── JobFailed
    │       ├── JobCancelled
    │       ├── JobExpired
    │       ├── JobDead
    │       └── JobReplaced
    ├── LockBusy                  another job or worker holds the lock
    ├── NotFound                  an operator named something that does not exist
    │   ├── KeyNotFound
    │   └── WorkerNotFound
    ├── MoveRefused               jobs cannot be moved to another engine now
    ├── Unstorable                the engine refuses the values, and would refuse them again
    ├── EngineError               the engine could not do what was asked
    │   ├── EngineUnavailable     may work later; nothing was lost
    │   │   ├── EngineBusy
    │   │   ├── DiskFull
    │   │   └── EngineClosed
    │   ├── AccessDenied
    │   ├── ReadOnlyDatabase
    │   ├── DatabaseMissing
    │   ├── NotATrellisDatabase
    │   ├── SchemaTooNew
    │   ├── SchemaTooOld
    │   ├── OutcomeUnknown
    │   ├── TransactionRefused
    │   └── CapabilityMissing
    └── SandboxError              in `trellis.testing`: raised by a sandbox
        ├── HandlerFailed
        ├── HandlerMissing
        ├── SandboxStuck
        └── JobsLeft

The exceptions by which a handler decides about its job (`Fail`, `RetryIn`, `Snooze`, `Cancelled`,
`Stopped`) are not errors and not part of the tree; see `declaration/handler_exceptions.py`.
"""

from __future__ import annotations

from typing import ClassVar


class TrellisError(Exception):
    """Base of all exceptions that Trellis raises."""

    code: ClassVar[str] = "trellis"


class ConfigurationError(TrellisError):
    """A name, URL, declaration or setting is wrong; fix the program or its settings."""

    code = "configuration"


class InvalidName(ConfigurationError):
    """A service, job type or queue name is not usable on every engine."""

    code = "invalid_name"


class UnknownScheme(ConfigurationError):
    """The engine URL names a scheme that Trellis does not know."""

    code = "unknown_scheme"


class UnknownService(ConfigurationError):
    """A job names a service that this program does not have."""

    code = "unknown_service"


class UnknownJobType(ConfigurationError):
    """A job names a type that its service does not declare."""

    code = "unknown_job_type"


class UnsupportedDatabase(ConfigurationError):
    """The database of a framework is of a kind that Trellis cannot use."""

    code = "unsupported_database"


class CalledFromLoop(ConfigurationError, RuntimeError):
    """A `_sync` method was called where it would block an event loop; await the other method."""

    code = "called_from_loop"


class CalledDirectly(ConfigurationError, TypeError):
    """A job was called like a function, which does not create a job."""

    code = "called_directly"


class AdmissionError(TrellisError):
    """A job was not accepted. Nothing was stored."""

    code = "not_admitted"

    def __init__(self, message: str, *, existing: str | None = None) -> None:
        super().__init__(message)
        #: Id of the job because of which it was not accepted, if there is one.
        self.existing = existing


class PayloadInvalid(AdmissionError):
    """The payload does not fit its schema or cannot be stored as JSON."""

    code = "payload_invalid"


class PayloadTooLarge(PayloadInvalid):
    """The encoded payload (or result) is over the size limit."""

    code = "payload_too_large"


class KeyUnresolved(AdmissionError):
    """A key template points at something in the payload that is not a scalar."""

    code = "key_unresolved"


class KeyBusy(AdmissionError):
    """The key already has as many jobs as its policy allows."""

    code = "key_busy"


class QueueFull(AdmissionError):
    """The key has as many waiting jobs as its policy allows."""

    code = "queue_full"


class Draining(AdmissionError):
    """The queue is draining: it finishes its jobs and accepts no new ones."""

    code = "draining"


class IdempotencyMismatch(AdmissionError):
    """The idempotency key was used before with another payload."""

    code = "idempotency_mismatch"


class JobIdTaken(AdmissionError):
    """The job id was used before for another job."""

    code = "job_id_taken"


class JobError(TrellisError):
    """Base of errors about one existing job."""

    code = "job"

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        #: The id of the job.
        self.job_id = job_id


class JobNotFound(JobError):
    """No job has this id; it was never created, or retention removed it."""

    code = "job_not_found"


def no_such_job(job_id: str, *, removed: bool | None = None) -> JobNotFound:
    """Return the error for an id without a job; `removed`: whether it was here, if known."""
    why = {
        None: "It was never created, or retention removed it.",
        True: "It existed and was removed.",
        False: "It was never created here.",
    }[removed]
    return JobNotFound(f"There is no job {job_id}. {why}", job_id=job_id)


class AmbiguousId(JobError):
    """Several jobs have an id with this beginning or end."""

    code = "ambiguous_id"

    def __init__(self, message: str, *, candidates: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        #: Some of these ids.
        self.candidates = candidates


class CommandRejected(JobError):
    """The lifecycle does not allow this command in the present state of the job."""

    code = "command_rejected"


class ConflictPersists(JobError):
    """The job was changed by others at the same time, several times in a row; try again."""

    code = "conflict"


class WaitTimeout(JobError):
    """The job had not ended after the given time; it continues."""

    code = "wait_timeout"


class TransactionOpen(JobError):
    """This call would wait without end for a transaction that only the caller can commit."""

    code = "transaction_open"


class JobNotCompleted(JobError):
    """The awaited job ended, but not with a result."""

    code = "job_not_completed"


class JobFailed(JobNotCompleted):
    """The job failed."""

    code = "job_failed"


class JobCancelled(JobNotCompleted):
    """The job was cancelled."""

    code = "job_cancelled"


class JobExpired(JobNotCompleted):
    """The job's deadline passed."""

    code = "job_expired"


class JobDead(JobNotCompleted):
    """The job has no attempts left and is a dead letter."""

    code = "job_dead"


class JobReplaced(JobNotCompleted):
    """The job was skipped, superseded or dismissed."""

    code = "job_replaced"


class LockBusy(TrellisError):
    """Another job or worker holds the lock, and the time to wait for it is over."""

    code = "lock_busy"

    def __init__(self, message: str, *, name: str, worker: str, job_id: str | None) -> None:
        super().__init__(message)
        #: The name of the lock.
        self.name = name
        #: The worker process that holds the lock, and its job, if a job took it.
        self.worker = worker
        self.job_id = job_id


class NotFound(TrellisError):
    """An operator named something that does not exist."""

    code = "not_found"


class KeyNotFound(NotFound):
    """No job holds or waits for this key."""

    code = "key_not_found"


class WorkerNotFound(NotFound):
    """No worker process has this id or name."""

    code = "worker_not_found"


class MoveRefused(TrellisError):
    """Jobs cannot be moved to another engine now. This step moved nothing."""

    code = "move_refused"


class EngineError(TrellisError):
    """The engine could not do what was asked."""

    code = "engine"


class AddressUnusable(ConfigurationError, EngineError):
    """The URL does not fit the TLS settings of the server, or a pooler in front of it."""

    code = "address_unusable"


class Unstorable(TrellisError):
    """The database rejected the data (constraint, type or size). The same call fails again."""

    code = "unstorable"


class EngineUnavailable(EngineError):
    """The engine cannot be used now. Nothing was lost; the same call may work later."""

    code = "engine_unavailable"


class EngineBusy(EngineUnavailable):
    """A lock was not free in time, or a statement took too long. Nothing was stored; try again."""

    code = "engine_busy"


class DiskFull(EngineUnavailable):
    """The disk is full. The whole transaction was rolled back."""

    code = "disk_full"


class EngineClosed(EngineUnavailable):
    """The engine was closed before or during this call."""

    code = "engine_closed"


class AccessDenied(EngineError):
    """The server denies this user access or the operation; check the user and its roles."""

    code = "access_denied"


class ReadOnlyDatabase(EngineError):
    """The database cannot be written: a file or folder without permission, or a standby."""

    code = "read_only"


class DatabaseMissing(EngineError):
    """There is no database at this URL, and the caller asked not to create one."""

    code = "database_missing"


class NotATrellisDatabase(EngineError):
    """The database at this URL has no tables of Trellis, or tables of another program."""

    code = "not_a_database"


class SchemaTooNew(EngineError):
    """The database was migrated by a newer Trellis; upgrade this program."""

    code = "schema_too_new"


class SchemaTooOld(EngineError):
    """The database has not been migrated to this Trellis; run `trellis migrate`."""

    code = "schema_too_old"


class OutcomeUnknown(EngineError):
    """The engine failed during the commit; read the job before you repeat the call."""

    code = "outcome_unknown"


class TransactionRefused(EngineError):
    """A job cannot be created in this transaction of the caller. Nothing was stored."""

    code = "transaction_refused"


class CapabilityMissing(EngineError):
    """This engine cannot do what was asked; the message names one that can."""

    code = "capability_missing"
