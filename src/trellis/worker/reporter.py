"""What a worker process reports about itself with each renewal, and when it must report at once.

The lease thread makes the report, also while the worker's loop is blocked, from copies that the
interpreter makes in one step. The loop only notices when something has changed that operators ask
about, at most ten times a second for all jobs together: running a job costs nothing more.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Final, TypeAlias

from trellis.core.durations import SECOND, Instant
from trellis.core.job import Fence
from trellis.engines.worker_report import BlockedLoop, LockWait, LostThread, WorkerReport
from trellis.worker.attempt import Attempt, HeldAttempts
from trellis.worker.executor import Executor
from trellis.worker.guardian.stacks import Frame, is_user_code
from trellis.worker.local_type import LocalType
from trellis.worker.locks import EngineLocks
from trellis.worker.log import storable
from trellis.worker.lost_threads import lasting_threads
from trellis.worker.session import EngineTime
from trellis.worker.shared_status import SharedStatus

#: A change of what is full is reported once it has lasted for this long, in seconds: slots that
#: quick jobs take and free all the time are no news.
_LASTING: Final = 1.0

#: Whether all slots are taken, which types are full, and who waits for locks.
_Load: TypeAlias = tuple[bool, frozenset[str], frozenset[tuple[Fence, str]]]


class Reporter:
    """Makes the reports of one worker process."""

    def __init__(
        self,
        *,
        attempts: HeldAttempts,
        executor: Executor,
        types: Mapping[tuple[str, str], LocalType],
        locks: EngineLocks,
        engine_time: EngineTime,
        status: SharedStatus,
    ) -> None:
        self._attempts = attempts
        self._executor = executor
        self._types = tuple(types.values())
        self._locks = locks
        self._time = engine_time
        self._status = status
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._reported_load: _Load = (False, frozenset(), frozenset())
        self._load = self._reported_load
        self._load_since = 0.0
        self._reported_at_once = (0, False)

    # -- on the worker's loop ------------------------------------------------------------------

    def has_news(self, now: float) -> bool:
        """Return whether operators should not have to wait for the next renewal."""
        at_once = len(lasting_threads(self._attempts, self._time)), self._executor.is_stopping
        load = self._current_load()
        if load != self._load:
            self._load, self._load_since = load, now
        is_news = load != self._reported_load and now - self._load_since >= _LASTING
        if is_news or at_once != self._reported_at_once:
            self._reported_load, self._reported_at_once = load, at_once
            return True
        return False

    def _current_load(self) -> _Load:
        executor = self._executor
        full = frozenset(each.name for each in self._full_types())
        waits = frozenset((fence, lock) for fence, lock, _ in self._locks.waits())
        return executor.load >= executor.slots, full, waits

    def _full_types(self) -> list[LocalType]:
        limited = [each for each in self._types if each.limit is not None]
        return [each for each in limited if not each.capacity(self._executor.slots)]

    # -- in the lease thread -------------------------------------------------------------------

    def report(self, *, is_blocked: bool) -> WorkerReport:
        """Return what there is to report now, with where the loop is blocked if it is."""
        executor = self._executor
        running = [each for each in tuple(self._attempts.running.values()) if each.lost_at is None]
        lost = lasting_threads(self._attempts, self._time)
        return WorkerReport(
            len(running),
            Counter(each.type.name for each in running),
            {each.name: each.limit or 0 for each in self._full_types()},
            tuple(
                LostThread(each.record.definition.id, each.type.name, each.lost_at or 0)
                for each in lost
            ),
            self._blocked_loop() if is_blocked else None,
            self._lock_waits(),
            executor.is_stopping,
            executor.alone,
            tuple(each.name for each in self._full_types() if each.is_apart),
        )

    def _lock_waits(self) -> tuple[LockWait, ...]:
        running = self._attempts.running
        found = []
        for fence, lock, since in self._locks.waits():
            attempt = running.get(fence)
            if attempt is not None:
                job_id = attempt.record.definition.id
                found.append(LockWait(job_id, storable(lock), self._instant(since)))
        return tuple(found)

    def _blocked_loop(self) -> BlockedLoop:
        attempt = self._blocking_attempt()
        return BlockedLoop(
            self._instant(self._status.loop_moved),
            storable(str(_where(sys._current_frames().get(self._loop_thread)) or "")),  # noqa: SLF001 - the documented way to see another thread
            None if attempt is None else attempt.record.definition.id,
        )

    def _instant(self, moment: float) -> Instant:
        """Return a moment of the monotonic clock in engine time."""
        return self._time.now() - round((time.monotonic() - moment) * SECOND)

    def write_blocking(self) -> None:
        """Write for the guardian which attempt blocks the loop."""
        loop_moved, attempt = self._status.loop_moved, self._blocking_attempt()
        self._status.set_blocking(0 if attempt is None else attempt.fence.token, loop_moved)

    def _blocking_attempt(self) -> Attempt | None:
        """Return the attempt in whose slot the loop is blocked."""
        task = asyncio.current_task(self._loop)
        for attempt in tuple(self._attempts.running.values()):
            if attempt.task is task and task is not None:
                return attempt
        return None


def _where(frame: FrameType | None) -> Frame | None:
    """Return the innermost frame that belongs to the program."""
    while frame is not None:
        code = frame.f_code
        found = Frame(code.co_filename, str(frame.f_lineno), code.co_name)
        if is_user_code(found):
            return found
        frame = frame.f_back
    return None
