"""How the attempts of a dead worker process are settled.

The process has ended before, so none of its handlers runs any more. Its shared status, which
outlives it, shows which attempts had begun:

- An attempt that ran counts as a crash if it was alone in the process. Otherwise it is a suspect:
  it is handed back uncounted and runs alone next time.
- An attempt whose handler had ended without a stored outcome is a suspect too; with another
  `on_lost` than `retry` it has lost its lease. After a stop it is handed back.
- An attempt that had not begun is handed back as if it had never been claimed.

A handler can also end the event loop under other handlers: it cancels every task, stops the loop or
closes the files of the loop. Python then unwinds the process and all handlers end at the same time.
In that case an attempt without a stored outcome is settled like one that ran.

If the guardian killed the process because of a timeout, the overdue attempts fail. If it is known
which attempt blocked the process, the others are handed back, uncounted; if not, they are suspects.
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
from trellis.worker.log import log_settlement, storable
from trellis.worker.shared_status import Running, SharedStatus

_random = random.Random()  # noqa: S311 - jitter needs no cryptography

_BLOCKED: Final = "The process was blocked past the timeout of another job and was killed."
_NOT_STORED: Final = "The worker process ended before the outcome was stored."
#: Returns the command for an attempt that ran; the fences are those of all that ran in the process.
CommandFor: TypeAlias = Callable[[JobRecord, Running, frozenset[Fence]], FencedCommand]


def crash_commands(evidence: str, culprit: Fence | None = None) -> CommandFor:
    """Settle attempts of a process that crashed; the culprit, or the only one, counts a crash."""
    evidence = storable(evidence, 4096)

    def crash_command(_: JobRecord, running: Running, inside: frozenset[Fence]) -> FencedCommand:
        if culprit is not None and culprit != running.fence:
            return _hand_back(running)
        alone = culprit is not None or inside == {running.fence}
        return Crash(running.fence, evidence, alone=alone, roll=_random.random())

    return crash_command


def timeout_commands(overdue: frozenset[Fence], culprit: Fence | None = None) -> CommandFor:
    """Settle attempts of a process that was killed because these were overdue in it."""

    def timeout_command(record: JobRecord, running: Running, _: frozenset[Fence]) -> FencedCommand:
        if running.fence not in overdue:
            if culprit is not None and culprit != running.fence:
                return _hand_back(running)
            return Crash(running.fence, _BLOCKED, alone=False, roll=_random.random())
        timeout = in_words(record.definition.policy.timeout or 0)
        message = f"The attempt took longer than {timeout} in a process that did not answer."
        failure = Failure("timeout", message)
        return Fail(running.fence, failure, roll=_random.random(), started_at=running.started_at)

    return timeout_command


def release_command(_: JobRecord, running: Running, __: frozenset[Fence]) -> FencedCommand:
    """Hand back an attempt of a process that was stopped."""
    return Release(running.fence, started_at=running.started_at)


def hand_back_command(_: JobRecord, running: Running, __: frozenset[Fence]) -> FencedCommand:
    """Hand back an attempt of a process that was replaced while its worker works on."""
    return _hand_back(running)


#: The commands for a process that was stopped.
STOPPED: Final = frozenset({release_command, hand_back_command})


def _hand_back(running: Running) -> FencedCommand:
    """Hand back an attempt, uncounted by any policy, that did not cause the end of its process."""
    return Release(running.fence, begun=False, started_at=running.started_at)


class DeadProcess:
    """The attempts that a dead process held; `settle` can be called again after an error."""

    def __init__(self, status: SharedStatus, command_for: CommandFor) -> None:
        self._status = status
        self._command_for = command_for
        self._running = {each.fence: each for each in status.running()}
        #: The types (service/type) of the attempts whose handlers ran in the process itself.
        self.types_inside: dict[Fence, str] = {}

    async def settle(self, engine: Engine) -> Counter[str]:
        """Settle every attempt and close the session; return how many jobs are in which state."""
        session = self._status.session
        # None of the handlers runs any more, so the keys and locks of their attempts are free.
        answer = await engine.renew(session, (), tuple(self._running))
        if not session or isinstance(answer, SessionLost):
            return Counter()
        left = [
            (record, record.head.fence)
            for record in answer.unknown
            if record.head.fence is not None and not record.head.blocked
        ]
        if self._status.is_unwinding:
            self._add_ended(left)
        inside = frozenset(each.fence for each in self._running.values() if not each.isolated)
        self.types_inside = {fence: _type_of(record) for record, fence in left if fence in inside}
        commands = [(record, self._command(record, fence, inside)) for record, fence in left]
        results = await control.apply_all(engine, commands, answer.now)
        if any(isinstance(each, Contended) for each in results):
            raise ConflictPersists("The jobs keep changing; settling them is tried again.")
        for (record, fence), result in zip(left, results, strict=True):
            if isinstance(result, Applied):
                log_settlement(record, fence, result)
        await engine.close_session(session)
        return Counter(each.record.head.state for each in results if isinstance(each, Applied))

    def _add_ended(self, left: Sequence[tuple[JobRecord, Fence]]) -> None:
        """Add attempts whose handlers have ended to those that ran."""
        for record, fence in left:
            if fence not in self._running and self._status.has_begun(fence):
                self._running[fence] = Running(fence, 0.0, inf, None, record.definition.id)

    def _command(self, record: JobRecord, fence: Fence, inside: frozenset[Fence]) -> FencedCommand:
        running = self._running.get(fence)
        if running is not None:
            return self._command_for(record, running, inside)
        if not self._status.has_begun(fence):
            return Release(fence, begun=False)
        if self._command_for in STOPPED:
            return Release(fence, begun=self._command_for is release_command)
        if record.definition.policy.on_lost != "retry":
            return LoseLease(fence, _NOT_STORED, _random.random())
        return Crash(fence, _NOT_STORED, alone=False, roll=_random.random())


def _type_of(record: JobRecord) -> str:
    return f"{record.definition.service}/{record.definition.type}"
