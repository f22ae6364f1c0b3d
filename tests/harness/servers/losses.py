"""Orders to lose one message, and how whoever gave one learns that it was carried out."""

from __future__ import annotations

import threading
from enum import Enum, auto

from tests.harness.servers.wire import Message


class Part(Enum):
    """What gets lost: the statement before it runs, or the answer after it ran."""

    REQUEST = auto()
    REPLY = auto()


class Loss:
    """One order: the first connection that runs a matching statement carries it out."""

    def __init__(self, part: Part, to: str, *, whole: bool = False) -> None:
        self.part = part
        self.to = to
        self._text = to.casefold()
        self._whole = whole
        self._happened = threading.Event()

    def matches(self, statement: str) -> bool:
        """Tell whether a statement is the one."""
        text = statement.casefold()
        return self._text == text if self._whole else self._text in text

    def matches_tag(self, reply: Message) -> bool:
        """Tell whether a server's message says that such a command is complete."""
        return reply.kind == b"C" and reply.words()[0].casefold() == self._text

    @property
    def happened(self) -> bool:
        """Whether it has been carried out."""
        return self._happened.is_set()

    def carried_out(self) -> None:
        """Called by the connection that lost it, when the server is done with it."""
        self._happened.set()

    def wait(self, patience: float = 60) -> None:
        """Wait until it has happened; the server has then finished what it did or will do."""
        if not self._happened.wait(patience):
            raise TimeoutError(f"Nothing that contains {self.to!r} went through the proxy.")
