"""The admin runtime: its parts, opened and closed together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Self

from nats.aio.msg import Msg

from trellis.admin.internal import InternalAnswers
from trellis.admin.janitor import KEEP_AUDIT, Advisories, Janitor
from trellis.admin.jobs_rpc import JobsRpc
from trellis.admin.messages import Messages
from trellis.admin.projector import Projector
from trellis.core.durations import Micros
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.port import Engine
from trellis.engines.projection import CanProject
from trellis.errors import CapabilityMissing

#: Seconds in which a page is stored, else the projector is cancelled.
_PAGE_LIMIT: Final = 5.0
_logger = logging.getLogger(__name__)


class AdminRuntime:
    """Projects the streams of one deployment into a SQL engine, and answers from it.

    `tables` is that SQL engine and `engine` the JetStream engine, both opened; the caller closes
    them. Without `engine` nothing is changed: no RPC, no janitor.
    """

    def __init__(
        self, link: Link, subjects: Subjects, tables: Engine, engine: Engine | None = None,
        *, keep_audit: Micros = KEEP_AUDIT,
    ) -> None:  # fmt: skip
        if not isinstance(tables, CanProject):
            raise CapabilityMissing(
                "This engine cannot be a projection of JetStream. Use a SQLite file or PostgreSQL."
            )
        self._link, self._subjects = link, subjects
        self.store = Store(link, subjects, Time(None))
        projection, messages = tables.projection(), Messages(self.store)
        self.projection = projection
        #: Why this runtime cannot go on, such as a damaged database: open it again.
        self.failure: BaseException | None = None
        self._failed = asyncio.Event()
        parts: dict[str, Any] = {
            "projection": projection,
            "messages": messages,
            "give_up": self._give_up,
        }
        self.jobs = Projector(link, subjects.jobs, **parts)
        self.state = Projector(link, subjects.state, **parts)
        self.answers = InternalAnswers(
            link, subjects, tables, projection, (self.jobs, self.state), give_up=self._give_up
        )
        self.rpc: JobsRpc | None = None
        self.janitor: Janitor | None = None
        self.advisories: Advisories | None = None
        if engine is not None:
            self.janitor = Janitor(engine, self.store, keep_audit=keep_audit)
            self.advisories = Advisories(self.store, engine)
            self.rpc = JobsRpc(
                self.store, tables=tables, projection=projection, engine=engine,
                answers=self.answers,
            )  # fmt: skip
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()  # what was begun would answer from tables that are closed
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start projecting and answering."""
        await self.projection.prepare((self._subjects.jobs, self._subjects.state))
        await self._link.open()
        await self.store.learn_time()
        await self._link.listen(f"{self._subjects.prefix}.feed.>", self._hear)
        self._start("projection of the jobs", self.jobs.run())
        self._start("projection of states", self.state.run())
        await self.answers.listen()
        if self.janitor is not None and self.advisories is not None and self.rpc is not None:
            self._start("janitor", self.janitor.run())
            self._start("reader of advisories", self.advisories.run())
            await self.rpc.listen()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._end)
        self._tasks.append(task)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Give up if a part has failed: each runs until the runtime is closed."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.error(
                "The %s has failed; the admin runtime gives up.", task.get_name(), exc_info=error
            )
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._failed.set()

    async def failed(self) -> None:
        """Wait until this runtime cannot go on; `failure` says why."""
        await self._failed.wait()

    def _hear(self, _: Msg) -> None:
        self.jobs.wake()

    async def close(self) -> None:
        """Stop; what is stored stays, and the next runtime continues from there."""
        if self.rpc is not None:
            await self.rpc.close()
        await self.answers.close()
        # A page that is being stored is finished: a cancelled call would cost the connection.
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAGE_LIMIT):
                await asyncio.gather(self.jobs.stop(), self.state.stop())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._link.close()
