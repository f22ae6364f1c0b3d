"""What becomes of the jobs of a process that is gone.

The process is dead before any of this, so it is certain that none of its handlers runs. What had
begun and what had not is on its board, which outlives it:

- an attempt that ran counts as a crash if it was alone in the process; otherwise it is a suspect,
  handed back uncounted, and runs alone next time;
- an attempt whose handler had ended, but not its settlement, has lost its lease, or was
  interrupted by a stop and is handed back;
- an attempt that had not begun is handed back as if it had never been claimed.

Where the guardian ended the process itself, nobody is to blame but an attempt over its timeout;
its neighbours are suspects, because one of them may have blocked the process.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

from trellis import control
from trellis.control import Applied, Contended
from trellis.core.commands import Crash, Fail, FencedCommand, LoseLease, Release
from trellis.core.job import Failure, Fence, JobRecord
from trellis.core.spans import in_words
from trellis.engines.port import Engine
from trellis.engines.values import SessionLost
from trellis.errors import ConflictPersists
from trellis.worker.board import Board, Running

_random = random.Random()  # noqa: S311 - jitter needs no cryptography

_BLOCKED: Final = "The process did not answer past the timeout of another job, and was ended."
#: Decides about an attempt whose handler was running.
Judge: TypeAlias = Callable[[JobRecord, Running], FencedCommand]


def crashed(evidence: str, board: Board) -> Judge:
    """Judge a process that died by itself: attempts in processes of their own did not do it."""
    inside = [each for each in board.running() if not each.isolated]

    def judge(_: JobRecord, running: Running) -> FencedCommand:
        alone = [running] == inside
        return Crash(running.fence, evidence, alone=alone, roll=_random.random())

    return judge


def stopped(_: JobRecord, running: Running) -> FencedCommand:
    """Judge a process that ended because it was told to."""
    return Release(running.fence, started_at=running.started_at)


def timed_out(overdue: frozenset[Fence]) -> Judge:
    """Judge a process that the guardian ended because these attempts blocked it for too long."""

    def judge(record: JobRecord, running: Running) -> FencedCommand:
        if running.fence not in overdue:
            return Crash(running.fence, _BLOCKED, alone=False, roll=_random.random())
        timeout = in_words(record.definition.policy.timeout or 0)
        message = f"The attempt took longer than {timeout} in a process that did not answer."
        failure = Failure("timeout", message)
        return Fail(running.fence, failure, roll=_random.random(), started_at=running.started_at)

    return judge


async def settle_what_is_left(engine: Engine, board: Board, judge: Judge) -> Counter[str]:
    """Settle every claim the dead process held, end its session; count the states they are in."""
    session = board.session
    running = {each.fence: each for each in board.running()}
    # None of them runs any more, so keys and locks kept for one are free.
    answer = await engine.renew(session, (), tuple(running))
    if not session or isinstance(answer, SessionLost):
        return Counter()
    asked = [
        (record, _command(record, record.head.fence, board, running, judge))
        for record in answer.unknown
        if record.head.fence is not None and not record.head.blocked
    ]
    results = await control.apply_all(engine, asked, answer.now)
    if any(isinstance(each, Contended) for each in results):
        raise ConflictPersists("Jobs of a dead process keep changing; they are looked at again.")
    await engine.close_session(session)
    return Counter(each.record.head.state for each in results if isinstance(each, Applied))


def _command(
    record: JobRecord, fence: Fence, board: Board, running: dict[Fence, Running], judge: Judge
) -> FencedCommand:
    if fence in running:
        return judge(record, running[fence])
    if board.has_begun(fence):
        if judge is stopped:
            return Release(fence)
        message = "The worker process ended before the outcome was stored."
        return LoseLease(fence, message, _random.random())
    return Release(fence, begun=False)
