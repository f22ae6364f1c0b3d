"""One attempt in one handler process: what its handler says there, and how that ends.

Notes are passed on in the order in which they were made, and all of them before the verdict, since
they come over the same line. What an earlier attempt's leftovers say carries another token and is
dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

from trellis.core.commands import FencedCommand
from trellis.worker.active import Surroundings
from trellis.worker.attempt import Attempt
from trellis.worker.isolation import records, wire
from trellis.worker.isolation.asking import ask_for
from trellis.worker.isolation.death import Death
from trellis.worker.isolation.frames import BadMessage, Message
from trellis.worker.isolation.process import HandlerProcess


class Visit:
    """An attempt's time in a process."""

    def __init__(
        self,
        process: HandlerProcess,
        attempt: Attempt,
        *,
        surroundings: Surroundings,
        context: Context,
        on_begun: Callable[[], None],
    ) -> None:
        self.process = process
        self.attempt = attempt
        #: Done when there is a verdict, or the process has died.
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: What settles the attempt, if its handler came to an end.
        self.command: FencedCommand | None = None
        #: How the process ended, if it did.
        self.death: Death | None = None
        #: Whether the process has taken the job; before that, its death is not the job's doing.
        self.is_taken = False
        #: Whether the next attempt had better get another process.
        self.is_worn = False
        self._surroundings = surroundings
        self._context = context
        self._on_begun = on_begun

    def begin(self, order: dict[str, Any]) -> None:
        """Give the job to the process."""
        self.process.hear = self._hear
        self.process.ended.add_done_callback(self._died)
        self.attempt.on_asked = self._ask
        fence = self.attempt.fence
        record = wire.write_record(self.attempt.record)
        self.process.say("job", record=record, fence=fence, **order)
        if self.attempt.asked:
            self._ask()

    def end(self) -> None:
        """Hear no more."""
        self.attempt.on_asked = None
        self.process.hear = self.process.hear_nobody
        self.process.ended.remove_done_callback(self._died)

    def _ask(self) -> None:
        self.process.say("asked")

    def _died(self, ended: asyncio.Future[Death]) -> None:
        self.death = ended.result()
        if not self.over.done():
            self.over.set_result(None)

    def _hear(self, message: Message) -> None:
        is_ours = message.get("token") == self.attempt.fence.token and not self.over.done()
        if is_ours:
            self._act_on(message["word"], message)
        else:
            self.process.hear_nobody(message)

    def _act_on(self, word: str, message: Message) -> None:
        match word:
            case "taken":
                self.is_taken = True
            case "begun":
                self._on_begun()
            case "note":
                self._surroundings.notes.add(self.attempt, wire.read_note(message))
            case "record":
                records.emit(message, self._context)
            case "ask":
                desk = self._surroundings.locks
                ask_for(message, self.attempt.fence, desk, self.process.answer)
            case "ended":
                self.command = wire.read_verdict(message, self.attempt)
                if self.command is None:
                    self.attempt.found_over()
                self.is_worn = bool(message.get("worn"))
                self.over.set_result(None)
            case _:
                raise BadMessage(f"an unknown word, {word!r}")
