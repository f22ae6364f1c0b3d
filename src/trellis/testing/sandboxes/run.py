"""One run of a sandbox's jobs: real workers, until nothing is left that could be done now.

Each round starts a worker for the services that have due jobs. Only when a round finds nothing to
do is the run over; what cannot be claimed (a paused queue, a key that is held) stays where it is.
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
from trellis.testing.sandboxes.engine import SandboxEngine
from trellis.testing.sandboxes.handlers import CallersThread, Handlers
from trellis.testing.sandboxes.services import Crew, Place, Services
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
        #: The jobs that ran when the run was cut short.
        self.interrupted: list[JobRecord] = []

    async def everything_due(self) -> None:
        """Run what is due now, and what that creates, until nothing is left."""
        while True:
            await self._keep_up()
            crew = self._services.crew(sorted(self._due_places()))
            claimed = self._engine.claimed
            if crew.types:
                await self._work(crew)
            if claimed == self._engine.claimed:
                return

    def unhandled(self) -> list[Place]:
        """Return the types of due jobs that have no handler in this program."""
        places = sorted(self._due_places())
        return [place for place in places if self._services.find(place, handled=True) is None]

    async def _keep_up(self) -> None:
        """Do what the clock calls for, as maintenance does; other workers are left alone."""
        engine = self._engine
        due = await engine.due("jobs", _ALL)
        asked: list[tuple[JobRecord, Command]] = []
        for record, seen_at in due.jobs:
            command = overdue(*record, seen_at, due.now, 0.0)
            if command is not None:
                asked.append((record, command))
        await control.apply_all(engine, asked, due.now)
        await engine.promote(_ALL)

    def _due_places(self) -> set[Place]:
        due = self._engine.due_jobs()
        return {(record.definition.service, record.definition.type) for record in due}

    async def _work(self, crew: Crew) -> None:
        lanes = frozenset((each.service, each.queue, each.name) for each in crew.types)
        types = [self._handlers.watched(each, self._thread) for each in crew.types]
        asked_in_vain = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, asked_in_vain.set)
        engine = self._engine
        async with AsyncExitStack() as stack:
            stack.enter_context(engine.telling(wake))
            states: dict[str, Any] = {}
            for service in crew.services:
                if service.make_lifespan is not None:
                    states[service.name] = await stack.enter_async_context(service.make_lifespan())
            worker = Supervisor(engine, lambda: engine, types, self._settings, states=states)
            await stack.enter_async_context(worker)
            try:
                while not engine.is_quiet(lanes):
                    await asked_in_vain.wait()
                    asked_in_vain.clear()
            except asyncio.CancelledError:
                self.interrupted = [
                    record for record in engine.live_jobs() if record.head.state is State.ACTIVE
                ]
                raise
