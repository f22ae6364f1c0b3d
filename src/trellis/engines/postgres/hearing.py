"""Waking others, and being woken: NOTIFY with or after a commit, LISTEN beside the work.

At most one word goes out per pause and process, because NOTIFY makes commits wait for each other:
the first after a silence goes with the new jobs, the others after them. LISTEN stands on the
connection that claims, so every poll proves that it still hears; after each connect it is tested
with a word to itself. A hint is never the truth: who hears nothing looks once per poll interval.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from trellis.engines.hints import Hints
from trellis.engines.postgres.connection import Connection, Link
from trellis.engines.postgres.statements import fragments
from trellis.engines.values import Topic
from trellis.errors import EngineError

#: Seconds between two words of one process.
_PAUSE: Final = 0.003
#: How long our own word may take to come back, and how often an idle ear is looked at.
_ECHO: Final = 2.0
_LOOK: Final = 5.0


class Hearing:
    """The hints of one engine object, told to and heard from other processes."""

    def __init__(self, schema: str, hints: Hints, *, listens: bool) -> None:
        self._schema = schema
        self._fragments = fragments(schema)
        self._hints = hints
        self._listens = listens
        self._wanted: set[Topic] = set()
        self._untold: set[Topic] = set()
        self._telling: asyncio.Task[None] | None = None
        self._told_at = 0.0
        self._keeping: asyncio.Task[None] | None = None
        self._echo: tuple[str, asyncio.Event] | None = None
        #: Whether our own word came back; None before it was tried.
        self.can_hear: bool | None = None

    # -- telling -------------------------------------------------------------------------------

    def tell(self, topics: Iterable[Topic], mouth: Link) -> None:
        """Tell everybody who watches, here at once and elsewhere soon."""
        self._hints.publish(topics)
        self._untold.update(topics)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(mouth), name="trellis-notify")

    def carried(self, topic: Topic) -> str | None:
        """Return the channel on which a statement may tell its own news; None too soon after."""
        now = time.monotonic()
        if now < self._told_at + _PAUSE or not (self._telling is None or self._telling.done()):
            return None
        self._told_at = now
        return self.channel(topic)

    async def _tell(self, mouth: Link) -> None:
        while self._untold:
            topics = sorted(self._untold)
            self._untold.clear()
            text = self._fragments["notify_many"]
            for topic in topics:
                text += self._fragments["notify_channel"].format(channel=self.channel(topic))
            with suppress(EngineError):  # other processes also look once per poll interval
                await mouth.script(text)
            self._told_at = time.monotonic()
            await asyncio.sleep(_PAUSE)

    def channel(self, topic: Topic) -> str:
        """Return the channel of a topic."""
        return f"{self._schema}_{topic}"

    # -- hearing -------------------------------------------------------------------------------

    async def watch(self, topics: Sequence[Topic], ear: Link) -> AsyncIterator[Topic]:
        """Yield hints from this and other processes."""
        if self._listens and not self._wanted.issuperset(topics):
            self._wanted.update(topics)
            with suppress(EngineError):
                await ear.use(self.listen)
        if self._listens and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(ear), name="trellis-listen")
        async for topic in self._hints.watch(topics):
            yield topic

    async def listen(self, connection: Connection) -> None:
        """Listen on a connection, and see whether our own word comes back."""
        if not self._wanted:
            return
        for topic in sorted(self._wanted):
            await connection.driver.add_listener(self.channel(topic), self._hear)
        topic = min(self._wanted)
        self._echo = word, heard = secrets.token_hex(8), asyncio.Event()
        await connection.rows("notify", self.channel(topic), word)
        try:
            async with asyncio.timeout(_ECHO):
                await heard.wait()
        except TimeoutError:
            self.can_hear = False
        else:
            self.can_hear = True
        # Whatever was said while nobody listened was missed.
        self._hints.publish(self._wanted)

    def _hear(self, _connection: Any, _pid: int, channel: str, word: object) -> None:  # noqa: ANN401
        if self._echo is not None and word == self._echo[0]:
            self._echo[1].set()
            return
        topic = channel.removeprefix(f"{self._schema}_")
        self._hints.publish([known for known in self._wanted if known == topic])

    async def _keep(self, ear: Link) -> None:
        """Listen again after the connection broke, also when nobody else uses it."""
        while True:
            await asyncio.sleep(_LOOK)
            with suppress(EngineError):
                await ear.value("clock")

    async def close(self) -> None:
        """Tell what is untold; hear no more."""
        if self._telling is not None:
            with suppress(Exception):
                await self._telling
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        self._wanted.clear()
