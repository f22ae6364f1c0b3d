"""One attempt in this process: from the claim until its settlement is stored.

An attempt is stopped at most once per reason, and only while its handler runs; whoever stops it
says why, because the reason decides what is recorded.

Every attempt this process holds, from claim to stored settlement: what a renewal must name.

An attempt leaves only when its settlement is stored (or refused), so a claim that is still ours is
never called unknown by our own renewals. Only the worker's loop changes the roster; the lease
thread takes copies, which the interpreter makes in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from math import inf

from trellis.core.durations import SECOND, Instant
from trellis.core.job import Fence, JobRecord, SessionId
from trellis.worker.local_type import LocalType


class Stop(Enum):
    """Why a handler was stopped from outside."""

    #: It took longer than its timeout.
    TIMEOUT = "timeout"
    #: The engine says that the attempt is no longer ours.
    LOST = "lost"
    #: The engine has answered its handler that the attempt is over; no renewal has reported it yet.
    OVER = "over"
    #: The worker stops and the grace is over.
    SHUTDOWN = "shutdown"
    #: It holds a key, and the lease that protects the key can no longer be renewed.
    UNREACHABLE = "unreachable"


class Attempt:
    """A claimed job in this worker."""

    __slots__ = (
        "_cancel_requested",
        "arrived",
        "began",
        "begun_noted",
        "closed",
        "fence",
        "item_errors",
        "log_lines",
        "on_cancel_requested",
        "record",
        "running",
        "started_at",
        "stop_reason",
        "task",
        "timeout_at",
        "type",
    )

    def __init__(self, record: JobRecord, fence: Fence, kind: LocalType, arrived: float) -> None:
        #: The job as claimed.
        self.record = record
        self.fence = fence
        self.type = kind
        #: When it came and when its handler was called, by the monotonic clock.
        self.arrived = arrived
        self.began = 0.0
        self.timeout_at = inf
        #: When its handler was called, by the engine's clock; None before.
        self.started_at: Instant | None = None
        self.running = False
        #: Its settlement was handed over, or there is none to make.
        self.closed = False
        self._cancel_requested = record.head.asked_at is not None
        #: Called when somebody wants it cancelled.
        self.on_cancel_requested: Callable[[], None] | None = None
        self.stop_reason: Stop | None = None
        self.task: asyncio.Task[None] | None = None
        self.begun_noted = False
        self.item_errors: set[str] | None = None
        self.log_lines = 0

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
        """Whether a process died with the job in it, be it among others or alone."""
        head = self.record.head
        return head.suspect or head.crashes > 0

    @property
    def is_isolated(self) -> bool:
        """Whether its handler runs in a process of its own: by its type, or as a suspect."""
        return self.type.in_process or (self.is_suspect and self.type.handler_name is not None)

    def begin(self, task: asyncio.Task[None] | None, began: float, started_at: Instant) -> None:
        """Note that the handler is called now."""
        self.task = task
        self.running = True
        self.enter(began, started_at)

    def wait_for_handler(self) -> None:
        """Note that the handler is not called yet after all: its place is still being made."""
        self.began = self.timeout_at = inf
        self.started_at = None

    def enter(self, began: float, started_at: Instant) -> None:
        """Note that the handler is called now: from here on its time counts."""
        self.began = began
        self.started_at = started_at
        timeout = self.record.definition.policy.timeout
        if timeout is not None:
            self.timeout_at = began + timeout / SECOND

    def stop(self, reason: Stop) -> None:
        """Interrupt the handler; the slot that runs it settles by this reason."""
        if not self.running or self.stop_reason is reason or self.task is None:
            return
        if self.stop_reason is Stop.LOST:
            return
        self.stop_reason = reason
        self.task.cancel()

    def mark_over(self) -> None:
        """Note, from any thread, that the engine counts this attempt no more: it settles nothing.

        The handler is not interrupted: it is the one that asked. One that runs on all the same can
        still be stopped for every other reason.
        """
        if self.stop_reason is None:
            self.stop_reason = Stop.OVER


class HeldAttempts:
    """The attempts of one worker process."""

    def __init__(self) -> None:
        #: Claimed and not settled.
        self.held: dict[Fence, Attempt] = {}
        #: Handler called and not ended.
        self.running: dict[Fence, Attempt] = {}
        #: Ended from outside, and their handlers have stopped since: what they held is free.
        self.stopped: list[Fence] = []

    def report_stopped(self, attempt: Attempt) -> None:
        """Have the engine told that an ended attempt's handler does not run (any more).

        It may have held a key, and any handler may have held locks.
        """
        self.stopped.append(attempt.fence)

    def fences(self, session: SessionId) -> tuple[Fence, ...]:
        """Return what is held under this session; safe from any thread."""
        return tuple(fence for fence in tuple(self.held) if fence.session == session)
