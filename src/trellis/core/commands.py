"""Everything that may be asked of a job.

Commands of a worker carry the fence of their attempt; `decide` refuses them when it no longer
holds. Commands of operators and of the clock carry none: they are guarded by the version alone.
`stopped` says whether the handler is known to have stopped: only then are its key slot and
its locks free.
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
    #: How many items of the job failed; more than none makes it a partial success.
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
    """The attempt ended badly: an exception, a timeout, a bad payload, an asked cancel."""

    fence: Fence
    error: Failure
    retryable: bool = True
    #: The wait the handler asked for; None takes the policy's.
    delay: Micros | None = None
    #: The handler gave up because of, or as if after, a cancel.
    cancelled: bool = False
    #: A random number from 0 to 1 for the jitter of the backoff.
    roll: float = 0.0
    started_at: Instant | None = None
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class Snooze:
    """Try again later, uncounted."""

    stopped: ClassVar[bool] = True
    fence: Fence
    delay: Micros
    started_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Hand an attempt back because its worker is stopping."""

    fence: Fence
    #: Whether the handler had begun; a job that had not is always requeued.
    begun: bool = True
    started_at: Instant | None = None
    #: False when the handler is stuck in a thread and may run on.
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class LoseLease:
    """The attempt's lease is over: its session was reaped, or it was silent for too long."""

    fence: Fence
    message: str = "The worker's lease ended."
    roll: float = 0.0
    #: False when only this attempt is given up and its session still lives.
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class Crash:
    """The process died under the attempt, seen by whoever watched it."""

    stopped: ClassVar[bool] = True
    fence: Fence
    #: What was seen: exit code or signal, memory, last lines.
    evidence: str
    begun: bool = True
    #: Whether no other job was in the process; only then is this one surely to blame.
    alone: bool = True
    roll: float = 0.0


@dataclass(frozen=True, slots=True)
class ReleaseKey:
    """An operator frees a key that a lost attempt still blocks."""

    stopped: ClassVar[bool] = True
    then: Literal["retry", "fail"] = "retry"
    actor: str = "operator"
    roll: float = 0.0


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the job: at once when it waits, by asking when it runs, at once again when forced."""

    stopped: ClassVar[bool] = False
    reason: str = ""
    force: bool = False
    actor: str = "operator"


@dataclass(frozen=True, slots=True)
class Expire:
    """The job's deadline has passed."""

    stopped: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Skip:
    """Queue policy replaced this waiting job by a newer one."""

    stopped: ClassVar[bool] = True
    replaced_by: JobId


@dataclass(frozen=True, slots=True)
class Retry:
    """An operator runs a failed job again, with a fresh budget."""

    stopped: ClassVar[bool] = True
    actor: str = "operator"


@dataclass(frozen=True, slots=True)
class Replay:
    """An operator brings a dead letter back, with a fresh budget."""

    stopped: ClassVar[bool] = True
    actor: str = "operator"


@dataclass(frozen=True, slots=True)
class Dismiss:
    """An operator closes a dead letter for good."""

    stopped: ClassVar[bool] = True
    actor: str = "operator"


#: Commands that only the attempt named in their fence may give.
FENCED: Final = (Complete, Fail, Snooze, Release, LoseLease, Crash)
FencedCommand: TypeAlias = Complete | Fail | Snooze | Release | LoseLease | Crash
Command: TypeAlias = (
    Claim | FencedCommand | ReleaseKey | Cancel | Expire | Skip | Retry | Replay | Dismiss
)
