"""Answers of the projection to engines: verbs of the port as requests.

A request is answered when the projection has everything that was stored before the request came,
so an engine reads its own writes, and those of others. If it lags for longer than the limit, it
answers with what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from nats.aio.msg import Msg
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from trellis.admin.projector import Projector
from trellis.engines.calls import port_verbs
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.projection import KIND_HEADER
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.errors import TrellisError

#: Verbs that an engine may ask of the projection. They change nothing but the projection: after
#: `promote`, jobs whose time has come count as claimable there, too.
ANSWERED: Final = (
    "activity", "ahead", "archivable", "audit", "batch_statuses", "batches", "catch_up",
    "changes", "count", "due", "facts", "find", "identify", "items", "journal", "logs", "members",
    "next_due", "outcomes", "promote", "rates", "slots",
)  # fmt: skip
#: How long a request waits for the projection, in seconds.
LAG_LIMIT: Final = 5.0
QUEUE: Final = "trellis-admin"
_logger = logging.getLogger(__name__)


class InternalAnswers:
    """Answers requests until closed."""

    def __init__(
        self, link: Link, subjects: Subjects, engine: Engine, projectors: Sequence[Projector]
    ) -> None:
        self._link, self._subjects = link, subjects
        self._engine, self._projectors = engine, projectors
        verbs = port_verbs("commit", "watch")
        self._verbs = {name: verbs[name] for name in ANSWERED}
        self._running: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Answer from now on; several runtimes share the requests."""
        subject = self._subjects.internal("*")
        await self._link.client.subscribe(subject, QUEUE, cb=self._hear)
        await self._link.flush()

    async def _hear(self, message: Msg) -> None:
        task = asyncio.create_task(self._answer(message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, message: Msg) -> None:
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
            await self.catch_up()
            answer = None
            if name != "catch_up":
                answer = await getattr(self._engine, name)(*positional, **named)
            await message.respond(verb.write_answer(answer))
        except TrellisError as error:
            await _refuse(message, "503", str(error), error.code)
        except Exception:
            _logger.exception("The projection could not answer %s", name)
            await _refuse(message, "500", f"The projection could not answer {name}.")

    async def catch_up(self) -> None:
        """Wait until the projection has what the streams have now."""
        for projector in self._projectors:
            await projector.until(await projector.last(), LAG_LIMIT)


async def _refuse(message: Msg, code: str, text: str, kind: str = "") -> None:
    headers = {ERROR_HEADER: " ".join(text.split()), ERROR_CODE_HEADER: code}
    if kind:
        headers[KIND_HEADER] = kind
    await message._client.publish(message.reply, b"", headers=headers)  # noqa: SLF001
