"""One run of the jobs of a sandbox: real workers run until no due job is left.

Each round starts a worker for the services that have due jobs. The run ends with a round that
claims nothing; jobs that cannot be claimed (a paused queue, a busy key) keep waiting.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from trellis import control
from trellis.config import WorkerSettings
from trellis.core.commands import Command
from trellis.core.job import JobRecord
from trellis.core.states import State
from trellis.core.timers import overdue
from trellis.schedules import fire_due
from trellis.testing.sandboxes.engine import SandboxEngine
from trellis.testing.sandboxes.handlers import CallersThread, Handlers
from trellis.testing.sandboxes.services import Selection, Services, TypeName
from trellis.worker.supervisor import Supervisor

#: More jobs than any test has.
_ALL: Final = 1_000_000


class Run:
    """The run of one call of `run_all`."""

    def __init__(
        self,
        engine: SandboxEngine,
        services: Services,
        handlers: Handlers,
        settings: WorkerSettings,
        thread: CallersThread | None,
    ) -> None:
        self._engine = engine
        self._services = services
        self._handlers = handlers
        self._settings = settings
        self._thread = thread
        #: The jobs that were running when the run was interrupted.
        self.interrupted: list[JobRecord] = []

    async def everything_due(self) -> None:
        """Run the due jobs, and the jobs these create, until none is left."""
        while True:
            await fire_due(self._engine)
            await self._apply_timers()
            selection = self._services.select(sorted(self._due_types()))
            claimed = self._engine.claimed
            if selection.types:
                await self._work(selection)
            if claimed == self._engine.claimed:
                return

    def unhandled(self) -> list[TypeName]:
        """Return the types of due jobs that have no handler in this program."""
        names = sorted(self._due_types())
        return [name for name in names if self._services.find(name, handled=True) is None]

    async def _apply_timers(self) -> None:
        """Apply expired timers, as maintenance does, and make jobs ready whose time has come."""
        engine = self._engine
        due = await engine.due("jobs", _ALL)
        changes: list[tuple[JobRecord, Command]] = []
        for record, seen_at in due.jobs:
            command = overdue(*record, seen_at, due.now, 0.0)
            if command is not None:
                changes.append((record, command))
        await control.apply_all(engine, changes, due.now)
        await engine.promote(_ALL)

    def _due_types(self) -> set[TypeName]:
        due = self._engine.due_jobs()
        return {(record.definition.service, record.definition.type) for record in due}

    async def _work(self, selection: Selection) -> None:
        lanes = frozenset((each.service, each.queue, each.name) for each in selection.types)
        types = [self._handlers.watched(each, self._thread) for each in selection.types]
        claimed_nothing = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, claimed_nothing.set)
        engine = self._engine
        async with AsyncExitStack() as stack:
            stack.enter_context(engine.on_empty_claim(wake))
            states: dict[str, Any] = {}
            for service in selection.services:
                if service.make_lifespan is not None:
                    states[service.name] = await stack.enter_async_context(service.make_lifespan())
            worker = Supervisor(engine, lambda: engine, types, self._settings, states=states)
            await stack.enter_async_context(worker)
            try:
                while not engine.is_quiet(lanes):
                    await claimed_nothing.wait()
                    claimed_nothing.clear()
            except asyncio.CancelledError:
                self.interrupted = [
                    record for record in engine.live_jobs() if record.head.state is State.ACTIVE
                ]
                raise
