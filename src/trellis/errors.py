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
    │   ├── WorkflowCycle         steps of a workflow wait for each other in a circle
    │   ├── AddressUnusable       also an EngineError
    │   ├── CalledDirectly
    │   ├── CalledFromLoop
    │   └── ContractInvalid       a document is no contract, or its fields are wrong
    │       └── ContractTooNew
    ├── AdmissionError            a job was not accepted; nothing was stored
    │   ├── PayloadInvalid
    │   │   ├── PayloadTooLarge
    │   │   ├── PayloadTooNew     its schema version needs a newer program
    │   │   ├── UpgradeMissing    no upgrader reads its schema version
    │   │   └── UpgradeFailed
    │   ├── PlanUnusable          `expect=` names a job that has not completed
    │   ├── KeyUnresolved
    │   ├── KeyBusy
    │   ├── QueueFull
    │   ├── Draining
    │   ├── BatchClosed
    │   ├── AttemptOver
    │   ├── IdempotencyMismatch
    │   ├── UnknownPrerequisite   `after=` names a job that does not exist
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
    │       │   ├── JobDead       its attempts are used up
    │       │   └── PreconditionFailed  the configuration is not what `expect=` says
    │       ├── JobCancelled
    │       ├── JobExpired
    │       └── JobReplaced
    ├── LockBusy                  another job or program holds the lock
    ├── LockLost                  the lock of a program was lost while its block ran
    ├── NotFound                  an operator named something that does not exist
    │   ├── KeyNotFound
    │   ├── BatchNotFound
    │   ├── ScheduleNotFound
    │   ├── TokenNotFound
    │   └── WorkerNotFound
    ├── CursorInvalid             a text is no cursor of this engine's feed
    ├── CursorExpired             events after the cursor were removed, or are not there yet
    ├── ContractNotAccepted       code and deployed contract differ by an unaccepted migration
    ├── MoveRefused               jobs cannot be moved to another engine now
    ├── Unstorable                the engine refuses the values, and would refuse them again
    ├── EngineError               the engine could not do what was asked
    │   ├── EngineUnavailable     may work later; nothing was lost
    │   │   ├── ProjectionUnavailable  no admin runtime of JetStream answers
    │   │   ├── EngineBusy
    │   │   │   └── EngineBlocked
    │   │   ├── DiskFull
    │   │   ├── EngineClosed
    │   │   └── ProjectionUnavailable
    │   ├── AccessDenied
    │   ├── ReadOnlyDatabase
    │   ├── DatabaseMissing
    │   ├── DatabaseDamaged
    │   ├── NatsRefused
    │   ├── Unreadable
    │   ├── NotATrellisDatabase
    │   ├── SchemaTooNew
    │   ├── SchemaTooOld
    │   ├── OutcomeUnknown
    │   ├── TransactionRefused
    │   ├── VersionMismatch       server and program are of versions that do not fit
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

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from datetime import datetime


class TrellisError(Exception):
    """Base of all exceptions that Trellis raises."""

    code: ClassVar[str] = "trellis"


class ConfigurationError(TrellisError):
    """A name, URL, declaration or setting is wrong; fix the program or its settings."""

    code = "configuration"


class WorkflowCycle(ConfigurationError):
    """Steps of a workflow wait for each other in a circle."""

    code = "workflow_cycle"


class InvalidName(ConfigurationError):
    """A name of a service, type or queue is not usable; use letters, digits, `_` and `-`."""

    code = "invalid_name"


class UnknownScheme(ConfigurationError):
    """The URL begins with an unknown scheme; use `sqlite:///`, `postgresql://` or `memory://`."""

    code = "unknown_scheme"


class UnknownService(ConfigurationError):
    """There is no such service in the module; write it like `module:variable`."""

    code = "unknown_service"


class UnknownJobType(ConfigurationError):
    """No service declares this type; the message lists those that are declared."""

    code = "unknown_job_type"


class UnsupportedDatabase(ConfigurationError):
    """The framework's database cannot keep jobs; name another one in its settings."""

    code = "unsupported_database"


class CalledFromLoop(ConfigurationError, RuntimeError):
    """A `_sync` method would block the event loop it was called on; await the other method."""

    code = "called_from_loop"


class CalledDirectly(ConfigurationError, TypeError):
    """A job was called like a function; use `create`, or `run_inline` to call its handler."""

    code = "called_directly"


class ContractInvalid(ConfigurationError):
    """The document is not a contract, or a field of it is wrong; the message names the field."""

    code = "contract_invalid"


class ContractTooNew(ContractInvalid):
    """A newer version of Trellis wrote the contract; upgrade the program that reads it."""

    code = "contract_too_new"


class AdmissionError(TrellisError):
    """A job was not accepted. Nothing was stored."""

    code = "not_admitted"

    def __init__(self, message: str, *, existing: str | None = None) -> None:
        super().__init__(message)
        #: Id of the job because of which it was not accepted, if there is one.
        self.existing = existing


class PayloadInvalid(AdmissionError):
    """The payload is not what the type says, or not JSON; correct it, a repetition fails too."""

    code = "payload_invalid"


class PayloadTooLarge(PayloadInvalid):
    """The payload or result is over 1 MiB; store the data elsewhere and pass its name."""

    code = "payload_too_large"


class PayloadTooNew(PayloadInvalid):
    """A newer program created the job; a worker with the newer code can run it."""

    code = "payload_too_new"


class UpgradeMissing(PayloadInvalid):
    """The type has no upgrader for the schema version of the job; add one, then retry the job."""

    code = "upgrade_missing"


class UpgradeFailed(PayloadInvalid):
    """An upgrader raised an exception or returned what is not JSON; correct it, then retry."""

    code = "upgrade_failed"


class PlanUnusable(AdmissionError):
    """The job whose configuration is expected has not completed, or was created without one."""

    code = "plan_unusable"


class KeyUnresolved(AdmissionError):
    """The key or tenant needs a field that this payload lacks, or that is no text or number."""

    code = "key_unresolved"


class KeyBusy(AdmissionError):
    """The key has as many jobs as its policy allows; wait, or use `PerKey.in_turn`."""

    code = "key_busy"


class QueueFull(AdmissionError):
    """As many jobs wait for the key as its policy allows; wait, or raise `queued`."""

    code = "queue_full"


class Draining(AdmissionError):
    """The queue, or every queue, accepts no new jobs, until an operator opens it again."""

    code = "draining"


class BatchClosed(AdmissionError):
    """The batch accepts no more members: it is sealed, cancelled or finished, or not there."""

    code = "batch_closed"


class AttemptOver(AdmissionError):
    """The attempt that creates the job is over; another one may be running."""

    code = "attempt_over"


class IdempotencyMismatch(AdmissionError):
    """The idempotency key was used before with another payload; use a key per request."""

    code = "idempotency_mismatch"


class JobIdTaken(AdmissionError):
    """The id belongs to another job; leave the choice of the id to Trellis."""

    code = "job_id_taken"


class UnknownPrerequisite(AdmissionError):
    """A job that the new one is to follow does not exist."""

    code = "unknown_prerequisite"


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
    """Several jobs have an id with this beginning or end; write more of it."""

    code = "ambiguous_id"

    def __init__(self, message: str, *, candidates: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        #: Some of these ids.
        self.candidates = candidates


class CommandRejected(JobError):
    """The state of the job does not allow this command; the message names the state."""

    code = "command_rejected"


class ConflictPersists(JobError):
    """The job was changed by others at the same time, several times in a row; try again."""

    code = "conflict"


class WaitTimeout(JobError):
    """The job had not ended after the given time; it continues, so wait again or look later."""

    code = "wait_timeout"


class TransactionOpen(JobError):
    """The call would wait for your own open transaction; commit it before you wait."""

    code = "transaction_open"


class JobNotCompleted(JobError):
    """The awaited job ended without a result; catch this for all such ends."""

    code = "job_not_completed"

    def __init__(
        self,
        message: str,
        *,
        job_id: str = "",
        data: Any = None,  # noqa: ANN401 - plain JSON data
    ) -> None:
        super().__init__(message, job_id=job_id)
        #: What the handler gave: `raise Fail("no such order", data={"order": 7})`.
        self.data = data


class JobFailed(JobNotCompleted):
    """The job failed, or lost its worker and its type has `on_lost="stale"`."""

    code = "job_failed"


class JobDead(JobFailed):
    """The job used up its attempts; correct the cause, then `trellis dlq replay`."""

    code = "job_dead"


class PreconditionFailed(JobFailed):
    """The configuration is not the expected one, so the handler was not called."""

    code = "precondition_failed"


class JobCancelled(JobNotCompleted):
    """The job was cancelled."""

    code = "job_cancelled"


class JobExpired(JobNotCompleted):
    """The deadline of the job passed; `clone` makes a new one."""

    code = "job_expired"


class JobReplaced(JobNotCompleted):
    """The job was skipped for a newer one of its key, or dismissed by an operator."""

    code = "job_replaced"


class LockBusy(TrellisError):
    """Another job or program holds the lock; wait longer, or come back later."""

    code = "lock_busy"

    def __init__(self, message: str, *, name: str, worker: str, job_id: str | None) -> None:
        super().__init__(message)
        #: The name of the lock.
        self.name = name
        #: The worker process that holds the lock, and its job, if a job took it.
        self.worker = worker
        self.job_id = job_id


class LockLost(TrellisError):
    """A lock was lost while its block ran; check what the block did, another may run it too."""

    code = "lock_lost"

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        #: The name of the lock.
        self.name = name


class NotFound(TrellisError):
    """An operator named something that does not exist; list what there is."""

    code = "not_found"


class KeyNotFound(NotFound):
    """No job holds or waits for this key; see `trellis keys`."""

    code = "key_not_found"


class WorkerNotFound(NotFound):
    """No worker process has this id or name; see `trellis workers`."""

    code = "worker_not_found"


class BatchNotFound(NotFound):
    """There is no batch with this id, or it was removed; list them with `trellis batches list`."""

    code = "batch_not_found"


def no_such_batch(batch_id: str) -> BatchNotFound:
    """Return the error for an id without a batch."""
    return BatchNotFound(
        f"There is no batch {batch_id} here, or it was removed. List them with: trellis batches "
        "list"
    )


class ScheduleNotFound(NotFound):
    """No schedule has this name; see `trellis schedules`."""

    code = "schedule_not_found"


class TokenNotFound(NotFound):
    """No token has this id; see `trellis tokens`."""

    code = "token_not_found"


class CursorInvalid(TrellisError):
    """The text is no cursor of this engine's feed; nothing was read."""

    code = "cursor_invalid"


class CursorExpired(TrellisError):
    """Events after the cursor were removed before they were read; the message says which.

    To go on from the same place with the events that are left, pass `after=error.cursor`.
    """

    code = "cursor_expired"

    def __init__(self, message: str, *, cursor: str, until: datetime | None) -> None:
        super().__init__(message)
        #: The same place in the feed, with the loss accepted.
        self.cursor = cursor
        #: When the last of the lost events happened; None: the database is older than the cursor.
        self.until = until


class ContractNotAccepted(TrellisError):
    """The code differs from the deployed contract by a migration that no operator accepted."""

    code = "contract_not_accepted"


class MoveRefused(TrellisError):
    """Jobs cannot be moved to another engine now; this step moved nothing."""

    code = "move_refused"


class EngineError(TrellisError):
    """The database could not do what was asked."""

    code = "engine"


class AddressUnusable(ConfigurationError, EngineError):
    """The URL does not fit the server or its pooler; the message says what to write."""

    code = "address_unusable"


class Unstorable(TrellisError):
    """The database rejected the values, and would again; nothing was stored."""

    code = "unstorable"


class EngineUnavailable(EngineError):
    """The database cannot be used now. Nothing was lost; try again later."""

    code = "engine_unavailable"


class ProjectionUnavailable(EngineUnavailable):
    """No admin runtime answers what only its index can. Nothing was changed; jobs run on."""

    code = "projection_unavailable"


class EngineBusy(EngineUnavailable):
    """A lock was not free in time, or a statement took too long. Nothing was stored; try again."""

    code = "engine_busy"


class EngineBlocked(EngineBusy):
    """Another session of the database holds a lock; the message names it. Nothing was stored."""

    code = "engine_blocked"

    def __init__(self, message: str, *, pids: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        #: The server processes that block, as far as they are known: first those to end.
        self.pids = pids


class DiskFull(EngineUnavailable):
    """The disk is full. Nothing of the call was stored; make room, then try again."""

    code = "disk_full"


class EngineClosed(EngineUnavailable):
    """The service was closed before or during this call; open it again."""

    code = "engine_closed"


class AccessDenied(EngineError):
    """The server denies this user access or the operation; check the user and its roles."""

    code = "access_denied"


class ReadOnlyDatabase(EngineError):
    """The database cannot be written: check the rights of file and folder; not a standby."""

    code = "read_only"


class DatabaseMissing(EngineError):
    """There is no database at the URL, or it is another one than before; check the URL."""

    code = "database_missing"


class DatabaseDamaged(EngineError):
    """The file of the database is damaged: keep a copy of it, and restore a backup."""

    code = "database_damaged"


class NatsRefused(EngineError):
    """A NATS server refused a request about its streams; the message has its reason."""

    code = "nats_refused"

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        #: The number of the reason in the JetStream API.
        self.number = number


class Unreadable(EngineError):
    """A stored message has no value that this version of Trellis can read; others can be read."""

    code = "unreadable"


class NotATrellisDatabase(EngineError):
    """The database has no tables of Trellis, or those of another program; check the URL."""

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
    """The job cannot join this transaction of yours; nothing was stored."""

    code = "transaction_refused"


class VersionMismatch(EngineError):
    """Server and program do not understand each other; install the same version on both sides."""

    code = "version_mismatch"


class CapabilityMissing(EngineError):
    """This engine, or this installation, cannot do it; the message says what can."""

    code = "capability_missing"
