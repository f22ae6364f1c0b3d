"""One sweep over all running attempts instead of a timer for each.

Ends what takes too long, tells the engine about handlers that have been running for a while, stops
keyed jobs whose lease can no longer be protected, and hands back claims that wait here in vain.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from trellis.engines.values import Begun
from trellis.worker.attempt import Attempt, HeldAttempts, Stop
from trellis.worker.executor import Executor
from trellis.worker.lease import LeaseKeeper
from trellis.worker.notes import NoteWriter
from trellis.worker.session import RenewalHealth
from trellis.worker.shared_status import SharedStatus

_TICK: Final = 0.1
_BEGUN_AFTER: Final = 0.25
_WAITED_IN_VAIN: Final = 0.5


class Sweeper:
    """Looks at every attempt ten times a second."""

    def __init__(
        self,
        *,
        attempts: HeldAttempts,
        executor: Executor,
        notes: NoteWriter,
        keeper: LeaseKeeper,
        health: RenewalHealth,
        status: SharedStatus,
    ) -> None:
        self._attempts = attempts
        self._executor = executor
        self._notes = notes
        self._keeper = keeper
        self._health = health
        self._status = status

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(_TICK)
            self.sweep(time.monotonic())

    def sweep(self, now: float) -> None:
        """Look at everything once."""
        self._status.set_loop_moved(now)
        out_of_reach = self._health.lease_may_have_expired
        for attempt in list(self._attempts.running.values()):
            if now >= attempt.timeout_at:
                attempt.stop(Stop.TIMEOUT)
            elif out_of_reach and attempt.record.definition.key is not None:
                attempt.stop(Stop.UNREACHABLE)
            if not attempt.begun_noted and now - attempt.began > _BEGUN_AFTER:
                self._note_begun(attempt)
        if self._attempts.stopped:
            self._keeper.wake()
        line = self._executor.line
        if line and now - line[0].arrived > _WAITED_IN_VAIN:
            for attempt in line:
                # Else it would be claimed ahead again at once, by us, who have no room for it.
                attempt.type.forget_pace()
            self._executor.hand_back()

    def _note_begun(self, attempt: Attempt) -> None:
        attempt.begun_noted = True
        if attempt.started_at is not None:
            self._notes.add(attempt, Begun(attempt.started_at))
