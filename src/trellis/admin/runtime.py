"""The admin runtime: its parts, opened and closed together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Self

from nats.aio.msg import Msg

from trellis.admin.internal import InternalAnswers
from trellis.admin.janitor import Advisories, Janitor
from trellis.admin.jobs_rpc import JobsRpc
from trellis.admin.messages import Messages
from trellis.admin.projector import Projector
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.port import Engine
from trellis.engines.projection import CanProject
from trellis.errors import CapabilityMissing

_CANCEL_AGAIN: Final = 0.2


class AdminRuntime:
    """Projects the streams of one deployment into a SQL engine, and answers from it.

    `tables` is that SQL engine and `engine` the JetStream engine, both opened; the caller closes
    them. Without `engine` nothing is changed: no RPC, no janitor.
    """

    def __init__(
        self, link: Link, subjects: Subjects, tables: Engine, engine: Engine | None = None
    ) -> None:
        if not isinstance(tables, CanProject):
            raise CapabilityMissing(
                "This engine cannot be a projection of JetStream. Use sqlite:///path/to/jobs.db."
            )
        self._link, self._subjects = link, subjects
        self.store = Store(link, subjects, Time(None))
        projection, messages = tables.projection(), Messages(self.store)
        self.projection = projection
        prefix = subjects.prefix
        self.jobs = Projector(link, subjects.jobs, f"{prefix}.jobs.>", projection, messages)
        self.state = Projector(link, subjects.state, f"{prefix}.state.>", projection, messages)
        self.answers = InternalAnswers(link, subjects, tables, (self.jobs, self.state))
        self.rpc: JobsRpc | None = None
        self.janitor: Janitor | None = None
        self.advisories: Advisories | None = None
        if engine is not None:
            self.janitor = Janitor(engine)
            self.advisories = Advisories(link, subjects, engine)
            self.rpc = JobsRpc(
                link, subjects, tables=tables, projection=projection, engine=engine,
                answers=self.answers,
            )  # fmt: skip
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start projecting and answering."""
        await self._link.open()
        await self.store.time.learn(self._link, self._subjects.state)
        await self._link.listen(f"{self._subjects.prefix}.feed.>", self._hear)
        self._start(self.jobs.run())
        self._start(self.state.run())
        await self.answers.listen()
        if self.janitor is not None and self.advisories is not None and self.rpc is not None:
            self._start(self.janitor.run())
            self._start(self.advisories.run())
            await self.rpc.listen()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _hear(self, _: Msg) -> None:
        self.jobs.wake()

    async def close(self) -> None:
        """Stop; what is stored stays, and the next runtime continues from there."""
        if self.rpc is not None:
            await self.rpc.close()
        # `asyncio.wait_for` of Python 3.11, which the NATS client uses, may swallow a cancel.
        while alive := [task for task in self._tasks if not task.done()]:
            for task in alive:
                task.cancel()
            await asyncio.wait(alive, timeout=_CANCEL_AGAIN)
        self._tasks.clear()
        await self._link.close()
