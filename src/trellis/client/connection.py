"""The engine behind a service: found at first use, one per process and event loop.

Nothing is opened at import. A stand-in (`stand_in.py`) that is entered around a program takes the
place of all engines; afterwards every service is bound as before.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from trellis.client.outbox import Outbox
from trellis.client.source import Borrowed, Source
from trellis.client.stand_in import current_stand_in
from trellis.contract.home import within_reach
from trellis.contract.settings import DEFAULT_URL
from trellis.contract.settings_file import environment, sources
from trellis.engines import make_engine
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError
from trellis.insight.following import Follower

_numbers: Final = count()
_living: Final[WeakSet[Connection]] = WeakSet()


class Connection:
    """Where a service's jobs are kept."""

    def __init__(self, url: str | None = None, owner: object = None) -> None:
        #: The service whose connection this is.
        self.owner = owner
        self._number = next(_numbers)
        self._url = url
        self._own = Source(self._make_own)
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Source]] = WeakKeyDictionary()
        _living.add(self)

    @property
    def url(self) -> str:
        """The engine's URL: as given, else `TRELLIS_URL`, else a file beside the program."""
        stand_in = current_stand_in()
        return self._own_url if stand_in is None else stand_in.url

    @property
    def _own_url(self) -> str:
        return self._url or environment().get("TRELLIS_URL") or DEFAULT_URL

    def _make_own(self) -> Engine:
        url = self._own_url
        try:
            return make_engine(within_reach(url))
        except ConfigurationError as error:
            setting = None if self._url else sources().get("TRELLIS_URL")
            if setting is None:
                raise
            raise type(error)(f"{setting.origin}: {error}") from None

    def point_at(self, url: str) -> None:
        """Use another engine from now on; what is open stays as it is."""
        self._url = url

    def make(self) -> Engine:
        """Return a further engine object for the same jobs, for another thread's loop."""
        return self._source().make()

    async def engine(self) -> Engine:
        """Return this loop's engine, opened."""
        return await self._source().engine()

    async def follower(self) -> Follower:
        """Return what follows jobs for everything on this loop."""
        return await self._source().follower()

    async def outbox(self) -> Outbox:
        """Return the way of this loop's single jobs into the engine."""
        return await self._source().outbox()

    async def close(self) -> None:
        """Close this loop's engine; the next use opens it again."""
        await self._source().close()

    async def hold(self) -> Engine:
        """Return this loop's engine, opened; it stays open until the last who holds it lets go."""
        source = self._source()
        engine = await source.hold()
        self._held.setdefault(asyncio.get_running_loop(), []).append(source)
        return engine

    async def let_go(self) -> None:
        """Say that the last holder no longer needs the engine it got, whatever stands in now."""
        await self._held[asyncio.get_running_loop()].pop().let_go()

    def borrowed(self) -> AbstractAsyncContextManager[Borrowed]:
        """Have this loop's engine for a while, and leave it to whoever else has used it."""
        return self._source().borrowed()

    def _source(self) -> Source:
        stand_in = current_stand_in()
        return self._own if stand_in is None else stand_in.source_for(self.owner)


def living_connections() -> list[Connection]:
    """Return every connection of this process, the oldest first."""
    return sorted(_living, key=lambda connection: connection._number)  # noqa: SLF001 - its module
