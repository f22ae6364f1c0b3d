"""One periodic check of all attempts, instead of a timer for each.

It stops attempts that take too long and keyed attempts whose lease may have expired, reports to the
engine which handlers have been running for a while, and hands back claims that found no slot here.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from trellis.engines.values import Begun
from trellis.worker.attempt import Attempt, HeldAttempts, Stop
from trellis.worker.executor import Executor
from trellis.worker.lease import LeaseKeeper
from trellis.worker.loop import TaskLoop
from trellis.worker.lost_threads import LostThreads
from trellis.worker.metrics import WorkerMetrics
from trellis.worker.notes import NoteWriter
from trellis.worker.reporter import Reporter
from trellis.worker.session import RenewalHealth
from trellis.worker.shared_status import SharedStatus

#: All in seconds.
_INTERVAL: Final = 0.1
_REPORT_BEGUN_AFTER: Final = 0.25
_LONGEST_WAIT: Final = 0.5
_REPORT_INTERVAL: Final = 1.0


class AttemptWatch(TaskLoop):
    """Checks every attempt ten times a second."""

    def __init__(
        self,
        *,
        attempts: HeldAttempts,
        executor: Executor,
        notes: NoteWriter,
        keeper: LeaseKeeper,
        health: RenewalHealth,
        status: SharedStatus,
        reporter: Reporter,
        lost_threads: LostThreads,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._attempts = attempts
        self._executor = executor
        self._notes = notes
        self._keeper = keeper
        self._health = health
        self._status = status
        self._reporter = reporter
        self._lost_threads = lost_threads
        self._metrics = metrics
        self._report_again = 0.0

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            self.sweep(time.monotonic())

    def sweep(self, now: float) -> None:
        """Check everything once."""
        self._status.set_loop_moved(now)
        if self._metrics is not None:
            self._metrics.sweep(now)
        lease_may_have_expired = self._health.lease_may_have_expired()
        for attempt in list(self._attempts.running.values()):
            if now >= attempt.timeout_at:
                attempt.stop(Stop.TIMEOUT)
            elif lease_may_have_expired and attempt.record.definition.key is not None:
                attempt.stop(Stop.UNREACHABLE)
            if not attempt.begun_noted and now - attempt.began > _REPORT_BEGUN_AFTER:
                self._report_begun(attempt)
        if self._attempts.lost:
            self._lost_threads.check()
        if self._attempts.stopped or self._has_news(now):
            self._keeper.wake()
        waiting = self._executor.waiting
        if waiting and now - waiting[0].arrived > _LONGEST_WAIT:
            for attempt in waiting:
                # Otherwise this worker, which has no room for it, would claim it ahead again.
                attempt.type.forget_pace()
            self._executor.release_waiting()

    def _has_news(self, now: float) -> bool:
        """Return whether something has to be reported before the next renewal."""
        if now < self._report_again or not self._reporter.has_news(now):
            return False
        self._report_again = now + _REPORT_INTERVAL
        return True

    def _report_begun(self, attempt: Attempt) -> None:
        attempt.begun_noted = True
        if attempt.started_at is not None:
            self._notes.add(attempt, Begun(attempt.started_at))
