"""The commands: every request to change a job.

Commands of a worker carry the fence of their attempt; `decide` answers `Stale` when the job has
another fence. Commands of operators and of timers carry no fence: the version guards them. Commands
of operators say who gives them and why; see `audit.py`.
`stopped` states whether the handler is known to have stopped: only then are its key slot and its
locks free.

The names of the classes are used in the journal and in `docs/lifecycle.md`. `Fail` and `Snooze` are
also exceptions of handlers, and `Retry` is also a policy: a module that needs both meanings
imports this module (`from trellis.core import commands`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

from trellis.core.durations import Instant, Micros
from trellis.core.job import Failure, Fence, JobId

#: Builds a named tuple from its fields in order and checks nothing; see `job.py`.
_make: Final = tuple.__new__


@dataclass(frozen=True, slots=True)
class Claim:
    """Take a waiting job under a lease."""

    stopped: ClassVar[bool] = True
    fence: Fence


class Complete(NamedTuple):
    """The handler returned. A named tuple, because most commands are this one."""

    fence: Fence
    #: JSON text of what the handler returned.
    result: str | None = None
    #: How many items of the job failed; above 0 the job is a partial success.
    item_errors: int = 0
    started_at: Instant | None = None

    @property
    def stopped(self) -> bool:
        """A handler that returned has stopped."""
        return True


def build_complete(
    fence: Fence, result: str | None, item_errors: int, started_at: Instant | None
) -> Complete:
    """Return the command, at half the cost of calling the class."""
    return _make(Complete, (fence, result, item_errors, started_at))


@dataclass(frozen=True, slots=True)
class Fail:
    """The attempt failed: an exception, a timeout, an invalid payload, a requested cancel."""

    fence: Fence
    error: Failure
    retryable: bool = True
    #: The delay that the handler or a backoff function asked for; None: the delay of the policy.
    delay: Micros | None = None
    #: The handler stopped because of a cancel, or raised `Cancelled`.
    cancelled: bool = False
    #: A random number from 0 to 1 for the jitter of the backoff.
    roll: float = 0.0
    started_at: Instant | None = None
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run again later; the attempt does not count."""

    stopped: ClassVar[bool] = True
    fence: Fence
    delay: Micros
    started_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Hand an attempt back because its worker is stopping."""

    fence: Fence
    #: Whether the handler had begun; if not, the job is always requeued.
    begun: bool = True
    started_at: Instant | None = None
    #: False when the handler is stuck in a thread and may still run.
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class LoseLease:
    """The attempt lost its lease: its session expired, or it reported no activity for too long."""

    fence: Fence
    message: str = "The worker's lease ended."
    roll: float = 0.0
    #: False when only this attempt is lost and its session is still open.
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class Crash:
    """The process of the attempt died; reported by the process that supervises it."""

    stopped: ClassVar[bool] = True
    fence: Fence
    #: Exit code or signal, memory in use, last lines of output.
    evidence: str
    begun: bool = True
    #: Whether no other job ran in the process; only then is this job certainly the cause.
    alone: bool = True
    roll: float = 0.0


@dataclass(frozen=True, slots=True)
class ReleaseKey:
    """An operator frees the key that a lost attempt still blocks."""

    stopped: ClassVar[bool] = True
    then: Literal["retry", "fail"] = "retry"
    actor: str = "operator"
    roll: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the job: at once if it waits or if `force`; otherwise its handler is asked to stop."""

    stopped: ClassVar[bool] = False
    reason: str = ""
    force: bool = False
    actor: str = "operator"


@dataclass(frozen=True, slots=True)
class Resolve:
    """Every job that this one waits for has ended as it was to end: it may start."""

    stopped: ClassVar[bool] = True
    #: JSON text: the result of the job that it takes as payload; None: it keeps its own payload.
    payload: str | None = None


@dataclass(frozen=True, slots=True)
class Adjust:
    """An operator moves a live job to another queue, or changes when and how often it runs.

    None leaves a value as it is. The due time of a running job cannot change. A due time that is
    not in the future means at once: a job that is already due keeps its place.
    """

    stopped: ClassVar[bool] = True
    queue: str | None = None
    priority: int | None = None
    run_at: Instant | None = None
    attempts: int | None = None
    actor: str = "operator"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expire:
    """The job's deadline has passed."""

    stopped: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Skip:
    """The key policy replaced this waiting job by a newer one."""

    stopped: ClassVar[bool] = True
    replaced_by: JobId


@dataclass(frozen=True, slots=True)
class Exhaust:
    """The store gave up delivering this waiting job, so that no worker would find it again."""

    stopped: ClassVar[bool] = True
    #: What the store reported.
    evidence: str


@dataclass(frozen=True, slots=True)
class Retry:
    """An operator runs a failed job again, with all its attempts."""

    stopped: ClassVar[bool] = True
    actor: str = "operator"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RetryItems:
    """An operator runs a job again for its failed items, with all its attempts.

    What earlier attempts finished still counts; see `items.py`.
    """

    stopped: ClassVar[bool] = True
    actor: str = "operator"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """An operator runs a dead letter again, with all its attempts."""

    stopped: ClassVar[bool] = True
    actor: str = "operator"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Dismiss:
    """An operator closes a dead letter for good."""

    stopped: ClassVar[bool] = True
    actor: str = "operator"
    reason: str = ""


OperatorCommand: TypeAlias = Cancel | Adjust | Retry | RetryItems | Replay | Dismiss | ReleaseKey
#: Commands that only the attempt with their fence may give.
FENCED: Final = (Complete, Fail, Snooze, Release, LoseLease, Crash)
FencedCommand: TypeAlias = Complete | Fail | Snooze | Release | LoseLease | Crash
Command: TypeAlias = Claim | FencedCommand | OperatorCommand | Resolve | Expire | Skip | Exhaust
