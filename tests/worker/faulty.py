"""An engine that can be made to fail from outside, and waiting for things to come true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from trellis.core.job import Fence, SessionId
from trellis.core.lifecycle import Transition
from trellis.engines.clock import Clock
from trellis.engines.demand import Demand
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import (
    Claimed,
    CommitResult,
    Note,
    NoteResult,
    Renewed,
    SessionLost,
)
from trellis.engines.worker_report import NO_REPORT, WorkerReport
from trellis.errors import EngineUnavailable, Unstorable


class FaultyEngine(MemoryEngine):
    """A memory engine that can be switched off, raises given faults and refuses one result."""

    down = False
    refused_result: str | None = None
    refused_writes = 0
    #: A result that makes every commit with it raise this.
    breaking: tuple[str, Exception] | None = None
    #: Raised by the next commits and notes, one each.
    commit_faults: Sequence[Exception] = ()
    note_faults: Sequence[Exception] = ()
    #: What ending a session raises.
    closing_fault: Exception | None = None
    #: Commits wait for it.
    gate: asyncio.Event | None = None
    renewals = 0

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        #: Handlers that were reported as stopped.
        self.reported: list[Fence] = []

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        self._check()
        return await super().claim(session, demands, limit)

    async def renew(
        self,
        session: SessionId,
        held: Sequence[Fence],
        stopped: Sequence[Fence] = (),
        report: WorkerReport = NO_REPORT,
    ) -> Renewed | SessionLost:
        self._check()
        self.renewals += 1
        self.reported += stopped
        return await super().renew(session, held, stopped, report)

    async def close_session(self, session: SessionId) -> None:
        if self.closing_fault is not None:
            raise self.closing_fault
        await super().close_session(session)

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        self.refused_writes += self.down
        self._check()
        if self.note_faults:
            fault, *self.note_faults = self.note_faults
            raise fault
        return await super().note(notes)

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        self.refused_writes += self.down
        self._check()
        if self.gate is not None:
            await self.gate.wait()
        if self.commit_faults:
            fault, *self.commit_faults = self.commit_faults
            raise fault
        for transition in transitions:
            result = getattr(transition.command, "result", None)
            if self.refused_result is not None and result == self.refused_result:
                raise Unstorable(f"cannot store {result}")
            if self.breaking is not None and result == self.breaking[0]:
                raise self.breaking[1]
        return await super().commit(transitions)

    def _check(self) -> None:
        if self.down:
            raise EngineUnavailable("The engine is down for a test.")


async def eventually(holds: Callable[[], Awaitable[bool] | bool], seconds: float = 20) -> None:
    """Wait until something is true; fail if it is not in time."""
    async with asyncio.timeout(seconds):
        while True:
            answer = holds()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)
