"""Every attempt this process holds, from claim to stored settlement: what a renewal must name.

An attempt leaves only when its settlement is stored (or refused), so a claim that is still ours is
never called unknown by our own renewals. Only the worker's loop changes the roster; the lease
thread takes copies, which the interpreter makes in one step.
"""

from __future__ import annotations

from trellis.core.job import Fence, SessionId
from trellis.worker.attempt import Attempt


class Roster:
    """The attempts of one worker process."""

    def __init__(self) -> None:
        #: Claimed and not settled.
        self.held: dict[Fence, Attempt] = {}
        #: Handler called and not ended.
        self.running: dict[Fence, Attempt] = {}
        #: Ended from outside, and their handlers have stopped since: what they held is free.
        self.stopped: list[Fence] = []

    def has_stopped(self, attempt: Attempt) -> None:
        """Have the engine told that an ended attempt's handler does not run (any more).

        It may have held a key, and any handler may have held locks.
        """
        self.stopped.append(attempt.fence)

    def fences(self, session: SessionId) -> tuple[Fence, ...]:
        """Return what is held under this session; safe from any thread."""
        return tuple(fence for fence in tuple(self.held) if fence.session == session)
