"""Hints between processes: NOTIFY with or after a commit, LISTEN on the connection that claims.

Each process sends at most one notification per pause, because NOTIFY makes commits wait for each
other: the first after a silence goes with the statement that stores new jobs, the others after
their commits. LISTEN runs on the connection that claims, so that every poll shows whether it still
works; after each connect the process tests it with a notification to itself. Notifications are only
hints: a worker that gets none looks once per poll interval.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from trellis.engines.hints import Hints
from trellis.engines.postgres.connection import Connection, ServerConnection
from trellis.engines.postgres.statements import fragments
from trellis.engines.values import Topic
from trellis.errors import EngineError

#: Seconds between two notifications of one process.
_PAUSE: Final = 0.003
#: How long a notification to this process may take, and how often an idle connection is checked.
_ECHO: Final = 2.0
_CHECK: Final = 5.0


class Notifications:
    """The hints of one engine: published here, sent to and received from other processes."""

    def __init__(self, schema: str, hints: Hints, *, listens: bool) -> None:
        self._schema = schema
        self._fragments = fragments(schema)
        self._hints = hints
        self._listens = listens
        self._wanted: set[Topic] = set()
        self._unsent: set[Topic] = set()
        self._sending: asyncio.Task[None] | None = None
        self._sent_at = 0.0
        self._checking: asyncio.Task[None] | None = None
        self._echo: tuple[str, asyncio.Event] | None = None
        #: Whether a notification to this process arrived; None before the test.
        self.is_received: bool | None = None

    # -- sending -------------------------------------------------------------------------------

    def publish(self, topics: Iterable[Topic], sender: ServerConnection) -> None:
        """Wake the watchers of these topics: in this process at once, in others soon."""
        self._hints.publish(topics)
        self._unsent.update(topics)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(sender), name="trellis-notify")

    def channel_for(self, topic: Topic) -> str | None:
        """Return the channel that a statement may notify itself; None too soon after the last."""
        now = time.monotonic()
        if now < self._sent_at + _PAUSE or not (self._sending is None or self._sending.done()):
            return None
        self._sent_at = now
        return self.channel(topic)

    async def _send(self, sender: ServerConnection) -> None:
        while self._unsent:
            topics = sorted(self._unsent)
            self._unsent.clear()
            text = self._fragments["notify_many"]
            for topic in topics:
                text += self._fragments["notify_channel"].format(channel=self.channel(topic))
            with suppress(EngineError):  # other processes also look once per poll interval
                await sender.script(text)
            self._sent_at = time.monotonic()
            await asyncio.sleep(_PAUSE)

    def channel(self, topic: Topic) -> str:
        """Return the channel of a topic."""
        return f"{self._schema}_{topic}"

    # -- receiving -----------------------------------------------------------------------------

    async def watch(
        self, topics: Sequence[Topic], receiver: ServerConnection
    ) -> AsyncIterator[Topic]:
        """Yield hints from this and other processes."""
        if self._listens and not self._wanted.issuperset(topics):
            self._wanted.update(topics)
            with suppress(EngineError):
                await receiver.use(self.listen)
        if self._listens and self._checking is None:
            self._checking = asyncio.create_task(self._check(receiver), name="trellis-listen")
        async for topic in self._hints.watch(topics):
            yield topic

    async def listen(self, connection: Connection) -> None:
        """Listen on a connection, and test whether a notification to this process arrives."""
        if not self._wanted:
            return
        for topic in sorted(self._wanted):
            await connection.driver.add_listener(self.channel(topic), self._receive)
        topic = min(self._wanted)
        self._echo = payload, arrived = secrets.token_hex(8), asyncio.Event()
        await connection.rows("notify", self.channel(topic), payload)
        try:
            async with asyncio.timeout(_ECHO):
                await arrived.wait()
        except TimeoutError:
            self.is_received = False
        else:
            self.is_received = True
        # Notifications that were sent before this connection listened are lost.
        self._hints.publish(self._wanted)

    def _receive(self, _: Any, _pid: int, channel: str, payload: object) -> None:  # noqa: ANN401
        if self._echo is not None and payload == self._echo[0]:
            self._echo[1].set()
            return
        topic = channel.removeprefix(f"{self._schema}_")
        self._hints.publish([known for known in self._wanted if known == topic])

    async def _check(self, receiver: ServerConnection) -> None:
        """Listen again after the connection broke, also when it is not used otherwise."""
        while True:
            await asyncio.sleep(_CHECK)
            with suppress(EngineError):
                await receiver.value("clock")

    async def close(self) -> None:
        """Send what is unsent; stop listening."""
        if self._sending is not None:
            with suppress(Exception):
                await self._sending
        if self._checking is not None:
            self._checking.cancel()
            self._checking = None
        self._wanted.clear()
