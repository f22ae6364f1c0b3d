"""The attempts of this worker process, each from its claim until its settlement is stored.

An attempt is stopped at most once per reason, and only while its handler runs; the reason decides
what is recorded. A renewal names every held attempt. An attempt is held until its settlement is
stored or refused, so a renewal never answers that a claim of this worker is unknown to it. Only the
worker's loop changes `HeldAttempts`; the lease thread takes copies, which the interpreter makes in
one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

from trellis.core.commands import FencedCommand
from trellis.core.durations import SECOND, Instant
from trellis.core.items import ItemStatus
from trellis.core.job import Fence, JobRecord, SessionId
from trellis.engines.values import Item
from trellis.worker.local_type import LocalType

if TYPE_CHECKING:
    from trellis.telemetry.tracing import AttemptSpan


class Stop(Enum):
    """Why the worker stopped a handler."""

    #: It took longer than its timeout.
    TIMEOUT = "timeout"
    #: The engine reported that the attempt no longer belongs to this worker.
    LOST = "lost"
    #: The worker stops and the grace is over.
    SHUTDOWN = "shutdown"
    #: Its process is replaced while the worker works on, and the grace is over.
    REPLACED = "replaced"
    #: It holds a key, and the lease that protects the key can no longer be renewed.
    UNREACHABLE = "unreachable"


#: The reasons when the process stops.
AT_STOP: Final = frozenset({Stop.SHUTDOWN, Stop.REPLACED})


class Attempt:
    """A job that this worker has claimed."""

    __slots__ = (
        "_cancel_requested",
        "arrived",
        "began",
        "begun_noted",
        "closed",
        "earlier_items",
        "ended",
        "exception",
        "fence",
        "items",
        "late",
        "log_lines",
        "lost_at",
        "on_cancel_requested",
        "record",
        "running",
        "span",
        "started_at",
        "stop_reason",
        "task",
        "timeout_at",
        "type",
    )

    def __init__(
        self, record: JobRecord, fence: Fence, local_type: LocalType, arrived: float
    ) -> None:
        #: The job as claimed.
        self.record = record
        self.fence = fence
        self.type = local_type
        #: When it was claimed and when its handler was called, by the monotonic clock.
        self.arrived = arrived
        self.began = 0.0
        #: When its handler ended, by the monotonic clock.
        self.ended = 0.0
        self.timeout_at = inf
        #: When its handler was called, by the engine's clock; None before.
        self.started_at: Instant | None = None
        self.running = False
        #: Its settlement was given to the settler, or none is needed.
        self.closed = False
        self._cancel_requested = record.head.asked_at is not None
        #: Called when a cancel is requested.
        self.on_cancel_requested: Callable[[], None] | None = None
        self.stop_reason: Stop | None = None
        #: What its handler did after it was settled, until that settlement is stored.
        self.late: FencedCommand | None = None
        #: When it ended although its handler runs on in a thread (engine time): a lost thread.
        self.lost_at: Instant | None = None
        self.task: asyncio.Task[None] | None = None
        self.begun_noted = False
        #: The status of its items, by phase and name; None before the first report.
        self.items: dict[tuple[str, str], ItemStatus] | None = None
        #: What earlier attempts of the job reported about items, as far as it still counts.
        self.earlier_items: tuple[Item, ...] = ()
        self.log_lines = 0
        #: What its handler raised, if an error reporter wants it.
        self.exception: BaseException | None = None
        #: Its span, if its trace is sampled.
        self.span: AttemptSpan | None = None

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancel of the job was requested or forced."""
        return self._cancel_requested

    @cancel_requested.setter
    def cancel_requested(self, requested: bool) -> None:
        self._cancel_requested = requested
        if requested and self.on_cancel_requested is not None:
            self.on_cancel_requested()

    @property
    def is_suspect(self) -> bool:
        """Whether a process died while it ran this job, alone or with other jobs."""
        head = self.record.head
        return head.suspect or head.crashes > 0

    @property
    def is_isolated(self) -> bool:
        """Whether its handler runs in a handler process: because of its type, or as a suspect."""
        return self.type.in_process or (self.is_suspect and self.type.handler_name is not None)

    def begin(self, task: asyncio.Task[None] | None, began: float, started_at: Instant) -> None:
        """Record that the attempt has a slot and its handler is called now."""
        self.task = task
        self.running = True
        self.enter(began, started_at)

    def wait_for_handler(self) -> None:
        """Record that the handler is not called yet: it waits for a process, or to run alone."""
        self.began = self.timeout_at = inf
        self.started_at = None

    def enter(self, began: float, started_at: Instant) -> None:
        """Record that the handler is called now: its timeout counts from here."""
        self.began = began
        self.started_at = started_at
        timeout = self.record.definition.policy.timeout
        if timeout is not None:
            self.timeout_at = began + timeout / SECOND

    def stop(self, reason: Stop) -> bool:
        """Interrupt the handler; its slot settles the attempt according to the reason.

        Return whether this is the first stop for the reason.
        """
        if not self.running or self.stop_reason is reason or self.task is None:
            return False
        if self.stop_reason is Stop.LOST:
            return False
        self.stop_reason = reason
        self.task.cancel()
        return True


class HeldAttempts:
    """The attempts of one worker process."""

    def __init__(self) -> None:
        #: Claimed and not settled.
        self.held: dict[Fence, Attempt] = {}
        #: Their handlers were called and have not ended.
        self.running: dict[Fence, Attempt] = {}
        #: Ended although their handlers run on in a thread; those that keep their slot are in
        #: `running` too.
        self.lost: dict[Fence, Attempt] = {}
        #: Ended by another process or by the engine, and their handlers have stopped since. The
        #: next renewal reports them, which frees their keys and locks.
        self.stopped: list[Fence] = []

    def report_stopped(self, attempt: Attempt) -> None:
        """Report with the next renewal that the handler of an ended attempt does not run."""
        self.stopped.append(attempt.fence)

    def fences(self, session: SessionId) -> tuple[Fence, ...]:
        """Return the fences held under this session; safe from any thread."""
        return tuple(fence for fence in tuple(self.held) if fence.session == session)
