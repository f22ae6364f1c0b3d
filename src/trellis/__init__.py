"""Trellis: durable jobs for Python services.

Declare typed jobs with a `Service`, create them from anywhere, run them in workers; an
accepted job is never lost. Names are loaded at first use, so that `import trellis` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trellis.client.job import Job
    from trellis.client.ref import JobRef
    from trellis.client.results import Accepted, Answer, Coalesced, Rejected, Replaced
    from trellis.core.job import Context
    from trellis.core.retry import Retry
    from trellis.core.states import State
    from trellis.declaration.handler_exceptions import Cancelled, Fail, RetryIn, Snooze, Stopped
    from trellis.declaration.per_key import PerKey
    from trellis.errors import (
        AccessDenied,
        AdmissionError,
        AmbiguousId,
        CalledDirectly,
        CalledFromLoop,
        CommandRejected,
        ConfigurationError,
        ConflictPersists,
        DiskFull,
        Draining,
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
        OutcomeUnknown,
        PayloadInvalid,
        PayloadTooLarge,
        QueueFull,
        ReadOnlyDatabase,
        SchemaTooNew,
        SchemaTooOld,
        TransactionOpen,
        TransactionRefused,
        TrellisError,
        Unstorable,
        WaitTimeout,
    )
    from trellis.insight.views import JobEvent, JobLogLine, JobView
    from trellis.operations.operator import Operator, connect
    from trellis.service import Declaration, Service
    from trellis.worker.active_job import ActiveJob

__version__ = "0.1.0"

#: The modules of public names; names not listed here are in `trellis.errors`.
_MODULES = {
    "trellis.client.results": ("Accepted", "Answer", "Coalesced", "Rejected", "Replaced"),
    "trellis.client.job": ("Job",),
    "trellis.client.ref": ("JobRef",),
    "trellis.declaration.per_key": ("PerKey",),
    "trellis.declaration.handler_exceptions": ("Cancelled", "Fail", "RetryIn", "Snooze", "Stopped"),
    "trellis.core.job": ("Context",),
    "trellis.core.retry": ("Retry",),
    "trellis.core.states": ("State",),
    "trellis.insight.views": ("JobEvent", "JobLogLine", "JobView"),
    "trellis.operations.operator": ("Operator", "connect"),
    "trellis.service": ("Declaration", "Service"),
    "trellis.worker.active_job": ("ActiveJob",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Accepted",
    "AccessDenied",
    "ActiveJob",
    "AdmissionError",
    "AmbiguousId",
    "Answer",
    "CalledDirectly",
    "CalledFromLoop",
    "Cancelled",
    "Coalesced",
    "CommandRejected",
    "ConfigurationError",
    "ConflictPersists",
    "Context",
    "Declaration",
    "DiskFull",
    "Draining",
    "EngineBusy",
    "EngineClosed",
    "EngineError",
    "EngineUnavailable",
    "Fail",
    "IdempotencyMismatch",
    "Job",
    "JobCancelled",
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
    "LockBusy",
    "Operator",
    "OutcomeUnknown",
    "PayloadInvalid",
    "PayloadTooLarge",
    "PerKey",
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
    "Unstorable",
    "WaitTimeout",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - type checkers read the imports above
    if name not in __all__:
        raise AttributeError(f"module 'trellis' has no attribute {name!r}")
    module = _MODULE_OF.get(name, "trellis.errors")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return __all__
