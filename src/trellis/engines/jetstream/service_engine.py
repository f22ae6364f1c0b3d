"""The engine of a user who may write the jobs of one service only (`?service=NAME` in the URL).

Its workers maintain their own service: each service has a leader of its own. What needs the
permissions of an operator, such as retention, is left to the admin runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trellis.core.durations import Micros
from trellis.core.job import SessionId
from trellis.core.names import check_service
from trellis.engines.clock import Clock
from trellis.engines.contracts import DeclaredType
from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.schedules import DueSchedules
from trellis.engines.values import Due, DueKind, LockHolder
from trellis.errors import ConfigurationError

#: The lock of the worker that does the maintenance.
_LEADER: Final = "trellis/leader"
#: So many times more is looked at than is returned: what is due may be of other services.
_MORE: Final = 10


class ServiceEngine(JetStreamEngine):
    """Jobs in streams of NATS, for a program of one service."""

    def __init__(
        self, url: str, service: str, *, prefix: str = "trellis", clock: Clock | None = None
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._service = self._limits.maintained = check_service(service)
        self._lines = self._lines_of(service)

    async def declare_types(self, types: Sequence[DeclaredType]) -> None:
        """Store what workers declare; refuse workers of other services, which none would lead."""
        others = sorted({each.service for each in types} - {self._service})
        if others:
            raise ConfigurationError(
                f"The URL is for service {self._service} (service=), and this worker runs jobs of "
                f"{', '.join(others)}: nothing would take them over from a lost worker. Correct "
                "the URL; a worker of several services needs one without service=. Nothing was "
                "stored."
            )
        await super().declare_types(types)

    async def take_lock(self, name: str, session: SessionId, token: int = 0) -> LockHolder | None:
        """Take a lock; the lead is that of the service."""
        return await super().take_lock(self._led(name), session, token)

    async def free_lock(self, name: str, session: SessionId, token: int = 0) -> bool:
        """Release a lock."""
        return await super().free_lock(self._led(name), session, token)

    def _led(self, name: str) -> str:
        return f"{_LEADER}/{self._service}" if name == _LEADER else name

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance of the service must look at."""
        found = await super().due(kind, _MORE * limit)
        own = (each for each in found.jobs if each.record.definition.service == self._service)
        return found._replace(jobs=tuple(own)[:limit])

    async def due_schedules(self, limit: int) -> DueSchedules:
        """Return the due schedules of the service."""
        found = await super().due_schedules(_MORE * limit)
        own = (each for each in found.schedules if each.service == self._service)
        return found._replace(schedules=tuple(own)[:limit])

    async def prune(self, limit: int) -> int:  # noqa: ARG002 - as in the port
        """Leave retention to the admin runtime."""
        return 0

    async def prune_audit(self, keep: Micros, limit: int) -> int:  # noqa: ARG002
        """Leave retention to the admin runtime."""
        return 0
