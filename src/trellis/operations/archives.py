"""The archives of services, for operators: list them, and switch them on or off."""

from __future__ import annotations

from abc import abstractmethod

from trellis.core.audit import By
from trellis.engines.port import Engine
from trellis.errors import NotFound
from trellis.insight.archived import ArchiveView, archive_view
from trellis.portal import synced


class ArchiveOperations:
    """The part of the operator's API about archives."""

    _actor: str

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine that has the jobs."""

    async def archives(self) -> list[ArchiveView]:
        """Return the services whose expired jobs are archived, and how their archivers do."""
        return [archive_view(each) for each in await self.engine.archives()]

    async def archive_off(self, service: str, reason: str = "") -> ArchiveView:
        """Remove expired jobs of a service without archiving them, those that wait, too."""
        return await self._switch_archive(service, reason, on=False)

    async def archive_on(self, service: str, reason: str = "") -> ArchiveView:
        """Archive expired jobs of a service again before they are removed."""
        return await self._switch_archive(service, reason, on=True)

    async def _switch_archive(self, service: str, reason: str, *, on: bool) -> ArchiveView:
        known = {each.service: each for each in await self.archives()}
        if service not in known:
            names = ", ".join(known) or "none"
            raise NotFound(f"Service {service!r} has no archive. Services with one: {names}.")
        await self.engine.set_archive(service, on=on, by=By(self._actor, reason))
        return {each.service: each for each in await self.archives()}[service]

    archives_sync = synced(archives)
    archive_off_sync = synced(archive_off)
    archive_on_sync = synced(archive_on)
