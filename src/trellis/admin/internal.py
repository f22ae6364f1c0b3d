"""Answers of the projection to engines: verbs of the port as requests.

A request is answered when the projection has everything that was stored before the request came,
so an engine reads its own writes, and those of others. If it lags for longer than the limit, it
answers with what it has, as it does at once when it is asked for its lag or for what it knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from nats import errors as nats_errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from trellis.admin.projector import Projector
from trellis.engines.jetstream.link import PARTS, Link
from trellis.engines.jetstream.projection import KIND_HEADER, OWN_VERBS, projected_verbs
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.projection import Lag, Projection
from trellis.errors import DatabaseDamaged, DatabaseMissing, EngineError, TrellisError

#: What an engine may ask. It changes nothing but the projection: after `promote`, jobs whose time
#: has come count as claimable there, too.
ANSWERED: Final = (
    "activity", "ahead", "audit", "batch_statuses", "batches", "catch_up",
    "changes", "count", "facts", "find", "identify", "items", "journal", "logs", "members",
    "next_due", "outcomes", "rates", "slots", "lag", *OWN_VERBS,
)  # fmt: skip
#: What is answered without waiting for the projection.
_PRESENT: Final = frozenset({"known", "lag"})
#: How long a request waits for the projection, in seconds.
LAG_LIMIT: Final = 5.0
#: How many characters of an error a header has: the server counts headers as part of a message.
_SHOWN: Final = 500
#: Room for the headers of an answer.
_HEADERS: Final = 1024
QUEUE: Final = "trellis-admin"
#: How many requests are answered at once, of each kind.
_AT_ONCE: Final = 64
_logger = logging.getLogger(__name__)


class Calls:
    """Requests that are being answered: each in a task, so that none waits for the one before."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def begin(self, answer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin to answer, as soon as there is room."""
        await self._room.acquire()
        task = asyncio.create_task(answer())
        self.running.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        self._room.release()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.warning("A request was not answered: %s", error)

    async def finish(self, stop_taking: Callable[[], Awaitable[None]]) -> None:
        """Take no more requests, and answer those that are there, for a limited time."""
        with suppress(nats_errors.Error, OSError, TimeoutError):  # no server needs to be told
            async with asyncio.timeout(LAG_LIMIT):
                await stop_taking()
        if self.running:
            await asyncio.wait(self.running, timeout=2 * LAG_LIMIT)
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


class InternalAnswers:
    """Answers requests until closed."""

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        engine: Engine,
        projection: Projection,
        projectors: Sequence[Projector],
        *,
        give_up: Callable[[EngineError], None],
    ) -> None:
        self._give_up = give_up
        self._link, self._subjects = link, subjects
        self._engine, self._projection, self._projectors = engine, projection, projectors
        verbs = projected_verbs()
        self._verbs = {name: verbs[name] for name in ANSWERED}
        self._calls = Calls()
        self._subscription: Subscription | None = None

    async def listen(self) -> None:
        """Answer from now on; several runtimes share the requests."""
        subject = self._subjects.internal("*")
        self._subscription = await self._link.client.subscribe(subject, QUEUE, cb=self._hear)
        await self._link.flush()

    async def _hear(self, message: Msg) -> None:
        await self._calls.begin(partial(self._answer, message))

    async def _answer(self, message: Msg) -> None:
        if not message.reply:
            return
        name = message.subject.rpartition(".")[2]
        verb = self._verbs.get(name)
        if verb is None:
            await _refuse(message, "404", f"The projection does not answer {name}.")
            return
        try:
            positional, named = verb.positional(verb.read(message.data))
        except (ValueError, RecursionError) as error:
            await _refuse(message, "400", f"The arguments of {name} cannot be read: {error}")
            return
        try:
            if name not in _PRESENT:
                await self.catch_up()
            answer = await self._ask(name, *positional, **named)
            await self._respond(message, verb.write_answer(answer))
        except TrellisError as error:
            await _refuse(message, "503", str(error), error.code)
            if isinstance(error, DatabaseDamaged | DatabaseMissing):
                self._give_up(error)
        except Exception:
            _logger.exception("The projection could not answer %s", name)
            await _refuse(message, "500", f"The projection could not answer {name}.")

    async def _respond(self, message: Msg, body: bytes) -> None:
        """Send an answer, in parts if the server does not take it as one message."""
        size = self._link.max_payload - _HEADERS
        parts = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
        headers = {PARTS: str(len(parts))} if len(parts) > 1 else None
        for part in parts:
            await self._link.client.publish(message.reply, part, headers=headers)

    async def _ask(self, name: str, *positional: Any, **named: Any) -> object:  # noqa: ANN401
        if name == "catch_up":
            return None
        if name == "lag":
            return await self.lag()
        # `promote` of the engine would hand over slots, which is decided in the stream.
        asked = self._projection if name in OWN_VERBS else self._engine
        return await getattr(asked, name)(*positional, **named)

    async def catch_up(self) -> bool:
        """Wait until the projection has what the streams have now; False: it lags for longer."""
        return all(await asyncio.gather(*map(self._arrive, self._projectors)))

    @staticmethod
    async def _arrive(projector: Projector) -> bool:
        return await projector.until(await projector.last(), LAG_LIMIT)

    async def lag(self) -> list[Lag]:
        """Return how far the projection is behind each of its streams."""
        return [await projector.lag() for projector in self._projectors]

    async def close(self) -> None:
        """Take no more requests, and wait for the answers that are under way."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await self._calls.finish(subscription.drain)


async def _refuse(message: Msg, code: str, text: str, kind: str = "") -> None:
    headers = {ERROR_HEADER: header_text(text), ERROR_CODE_HEADER: code}
    if kind:
        headers[KIND_HEADER] = kind
    with suppress(nats_errors.Error, OSError):  # the caller learns of an outage by itself
        await message._client.publish(message.reply, b"", headers=headers)  # noqa: SLF001


def header_text(text: str) -> str:
    """Return a text as the value of a header: it may have parts of a request, of any size."""
    return " ".join(text.split()).encode("ascii", "replace").decode()[:_SHOWN]
