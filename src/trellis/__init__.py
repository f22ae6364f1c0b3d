"""Trellis: durable jobs for Python services.

Declare typed jobs with a `Service`, create them from anywhere, run them in workers; an
accepted job is never lost. Names are loaded at first use, so that `import trellis` is fast.
"""

from __future__ import annotations

#: What type checkers take for true; importing `typing` would be half of the time of this import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from trellis.client.batches import BatchRef, OpenBatch
    from trellis.client.chain import Chain, ChainRef
    from trellis.client.job import Job
    from trellis.client.ref import JobRef
    from trellis.client.results import Accepted, Answer, Coalesced, Rejected, Replaced
    from trellis.client.workflow import Workflow
    from trellis.core.job import Context
    from trellis.core.limits import Limit
    from trellis.core.retry import Retry
    from trellis.core.states import State
    from trellis.declaration.fair import Fair
    from trellis.declaration.fingerprint import fingerprint
    from trellis.declaration.handler_exceptions import Cancelled, Fail, RetryIn, Snooze, Stopped
    from trellis.declaration.hooks import Outcome
    from trellis.declaration.per_key import PerKey
    from trellis.errors import (
        AccessDenied,
        AdmissionError,
        AmbiguousId,
        AttemptOver,
        BatchClosed,
        CalledDirectly,
        CalledFromLoop,
        CommandRejected,
        ConfigurationError,
        ConflictPersists,
        CursorExpired,
        CursorInvalid,
        DiskFull,
        Draining,
        EngineBlocked,
        EngineBusy,
        EngineClosed,
        EngineError,
        EngineUnavailable,
        IdempotencyMismatch,
        JobCancelled,
        JobDead,
        JobExpired,
        JobFailed,
        JobNotCompleted,
        JobNotFound,
        JobReplaced,
        KeyBusy,
        KeyUnresolved,
        LockBusy,
        LockLost,
        OutcomeUnknown,
        PayloadInvalid,
        PayloadTooLarge,
        PlanUnusable,
        PreconditionFailed,
        QueueFull,
        ReadOnlyDatabase,
        SchemaTooNew,
        SchemaTooOld,
        TransactionOpen,
        TransactionRefused,
        TrellisError,
        UnknownPrerequisite,
        Unstorable,
        WaitTimeout,
        WorkflowCycle,
    )
    from trellis.insight.feed import ChangeFeed, JobChange
    from trellis.insight.views import JobEvent, JobLogLine, JobView
    from trellis.operations.operator import Operator, connect
    from trellis.service import Declaration, Service
    from trellis.worker.active_job import ActiveJob
    from trellis.worker.failure_reports import AttemptError, AttemptFailure

__version__ = "0.1.0"

#: The modules of public names; names not listed here are in `trellis.errors`.
_MODULES = {
    "trellis.client.results": ("Accepted", "Answer", "Coalesced", "Rejected", "Replaced"),
    "trellis.client.batches": ("BatchRef", "OpenBatch"),
    "trellis.client.chain": ("Chain", "ChainRef"),
    "trellis.client.job": ("Job",),
    "trellis.client.ref": ("JobRef",),
    "trellis.client.workflow": ("Workflow",),
    "trellis.declaration.fingerprint": ("fingerprint",),
    "trellis.declaration.fair": ("Fair",),
    "trellis.declaration.hooks": ("Outcome",),
    "trellis.declaration.per_key": ("PerKey",),
    "trellis.declaration.handler_exceptions": ("Cancelled", "Fail", "RetryIn", "Snooze", "Stopped"),
    "trellis.core.job": ("Context",),
    "trellis.core.limits": ("Limit",),
    "trellis.core.retry": ("Retry",),
    "trellis.core.states": ("State",),
    "trellis.insight.feed": ("ChangeFeed", "JobChange"),
    "trellis.insight.views": ("JobEvent", "JobLogLine", "JobView"),
    "trellis.operations.operator": ("Operator", "connect"),
    "trellis.service": ("Declaration", "Service"),
    "trellis.worker.active_job": ("ActiveJob",),
    "trellis.worker.failure_reports": ("AttemptError", "AttemptFailure"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Accepted",
    "AccessDenied",
    "ActiveJob",
    "AdmissionError",
    "AmbiguousId",
    "Answer",
    "AttemptError",
    "AttemptFailure",
    "AttemptOver",
    "BatchClosed",
    "BatchRef",
    "CalledDirectly",
    "CalledFromLoop",
    "Cancelled",
    "Chain",
    "ChainRef",
    "ChangeFeed",
    "Coalesced",
    "CommandRejected",
    "ConfigurationError",
    "ConflictPersists",
    "Context",
    "CursorExpired",
    "CursorInvalid",
    "Declaration",
    "DiskFull",
    "Draining",
    "EngineBlocked",
    "EngineBusy",
    "EngineClosed",
    "EngineError",
    "EngineUnavailable",
    "Fail",
    "Fair",
    "IdempotencyMismatch",
    "Job",
    "JobCancelled",
    "JobChange",
    "JobDead",
    "JobEvent",
    "JobExpired",
    "JobFailed",
    "JobLogLine",
    "JobNotCompleted",
    "JobNotFound",
    "JobRef",
    "JobReplaced",
    "JobView",
    "KeyBusy",
    "KeyUnresolved",
    "Limit",
    "LockBusy",
    "LockLost",
    "OpenBatch",
    "Operator",
    "Outcome",
    "OutcomeUnknown",
    "PayloadInvalid",
    "PayloadTooLarge",
    "PerKey",
    "PlanUnusable",
    "PreconditionFailed",
    "QueueFull",
    "ReadOnlyDatabase",
    "Rejected",
    "Replaced",
    "Retry",
    "RetryIn",
    "SchemaTooNew",
    "SchemaTooOld",
    "Service",
    "Snooze",
    "State",
    "Stopped",
    "TransactionOpen",
    "TransactionRefused",
    "TrellisError",
    "UnknownPrerequisite",
    "Unstorable",
    "WaitTimeout",
    "Workflow",
    "WorkflowCycle",
    "__version__",
    "connect",
    "fingerprint",
]


def __getattr__(name: str) -> object:  # type checkers read the imports above
    if name not in __all__:
        raise AttributeError(f"module 'trellis' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see `TYPE_CHECKING`

    module = _MODULE_OF.get(name, "trellis.errors")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
