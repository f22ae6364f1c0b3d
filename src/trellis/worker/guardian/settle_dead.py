"""What becomes of the jobs of a process that is gone.

The process is dead before any of this, so it is certain that none of its handlers runs. What had
begun and what had not is in its shared status, which outlives it:

- an attempt that ran counts as a crash if it was alone in the process; otherwise it is a suspect,
  handed back uncounted, and runs alone next time;
- an attempt whose handler had ended, but not its settlement, has lost its lease, or was
  interrupted by a stop and is handed back;
- an attempt that had not begun is handed back as if it had never been claimed.

A handler can also end the loop under its neighbours: it cancels every task, stops the loop, or
closes the loop's files. Python then unwinds the process, and every handler ends in the same moment,
the guilty one first. There an attempt without a stored outcome is judged like one that ran.

Where the guardian ended the process itself, only an attempt over its timeout is to blame; its
neighbours are suspects, because one of them may have blocked the process.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, TypeAlias

from trellis import control
from trellis.control import Applied, Contended
from trellis.core.commands import Crash, Fail, FencedCommand, LoseLease, Release
from trellis.core.durations import in_words
from trellis.core.job import Failure, Fence, JobRecord
from trellis.engines.port import Engine
from trellis.engines.values import SessionLost
from trellis.errors import ConflictPersists
from trellis.worker.shared_status import Running, SharedStatus

_random = random.Random()  # noqa: S311 - jitter needs no cryptography

_BLOCKED: Final = "The process did not answer past the timeout of another job, and was ended."
#: Decides about an attempt that ran, among these that ran inside the process.
Judge: TypeAlias = Callable[[JobRecord, Running, frozenset[Fence]], FencedCommand]


def crashed(evidence: str) -> Judge:
    """Judge a process that died unasked: attempts in processes of their own did not do it."""

    def judge(_: JobRecord, running: Running, inside: frozenset[Fence]) -> FencedCommand:
        alone = inside == {running.fence}
        return Crash(running.fence, evidence, alone=alone, roll=_random.random())

    return judge


def stopped(_: JobRecord, running: Running, __: frozenset[Fence]) -> FencedCommand:
    """Judge a process that ended because it was told to."""
    return Release(running.fence, started_at=running.started_at)


def timed_out(overdue: frozenset[Fence]) -> Judge:
    """Judge a process that the guardian ended because these attempts blocked it for too long."""

    def judge(record: JobRecord, running: Running, _: frozenset[Fence]) -> FencedCommand:
        if running.fence not in overdue:
            return Crash(running.fence, _BLOCKED, alone=False, roll=_random.random())
        timeout = in_words(record.definition.policy.timeout or 0)
        message = f"The attempt took longer than {timeout} in a process that did not answer."
        failure = Failure("timeout", message)
        return Fail(running.fence, failure, roll=_random.random(), started_at=running.started_at)

    return judge


class Aftermath:
    """The claims of one dead process; what was found about them is kept from try to try."""

    def __init__(self, status: SharedStatus, judge: Judge) -> None:
        self._status = status
        self._judge = judge
        self._running = {each.fence: each for each in status.running()}

    async def settle(self, engine: Engine) -> Counter[str]:
        """Settle every claim the process held, end its session; count the states they are in."""
        session = self._status.session
        # None of them runs any more, so keys and locks kept for one are free.
        answer = await engine.renew(session, (), tuple(self._running))
        if not session or isinstance(answer, SessionLost):
            return Counter()
        left = [
            (record, record.head.fence)
            for record in answer.unknown
            if record.head.fence is not None and not record.head.blocked
        ]
        if self._status.is_unwinding:
            self._find_ended(left)
        inside = frozenset(each.fence for each in self._running.values() if not each.isolated)
        asked = [(record, self._command(record, fence, inside)) for record, fence in left]
        results = await control.apply_all(engine, asked, answer.now)
        if any(isinstance(each, Contended) for each in results):
            raise ConflictPersists(
                "Jobs of a dead process keep changing; they are looked at again."
            )
        await engine.close_session(session)
        return Counter(each.record.head.state for each in results if isinstance(each, Applied))

    def _find_ended(self, left: Sequence[tuple[JobRecord, Fence]]) -> None:
        """Count attempts whose handlers have ended among those that ran."""
        for record, fence in left:
            if fence not in self._running and self._status.has_begun(fence):
                self._running[fence] = Running(fence, 0.0, inf, None, record.definition.id)

    def _command(self, record: JobRecord, fence: Fence, inside: frozenset[Fence]) -> FencedCommand:
        running = self._running.get(fence)
        if running is not None:
            return self._judge(record, running, inside)
        if not self._status.has_begun(fence):
            return Release(fence, begun=False)
        if self._judge is stopped:
            return Release(fence)
        message = "The worker process ended before the outcome was stored."
        return LoseLease(fence, message, _random.random())
