"""What is being said on one connection: which statement runs, and which answer belongs to what.

Answers are counted by ReadyForQuery: the start-up, each simple query and each Sync gets one. So
the answer to a statement is known to come after all answers before it, pipelined or not.
"""

from __future__ import annotations

from typing import Final

from tests.harness.servers.wire import Message

_ASK: Final = {b"Q", b"S", b"F"}  # simple query, Sync, function call: each gets one ReadyForQuery


class Conversation:
    """Listens to both sides of a connection whose start-up has been sent."""

    def __init__(self) -> None:
        self.asked = 1  # the start-up
        self.answered = 0
        self._statements: dict[str, str] = {}
        self._portals: dict[str, str] = {}

    def hear_request(self, message: Message) -> str | None:
        """Take note of a client's message; return the statement if it makes one run."""
        if message.kind in _ASK:
            self.asked += 1
        match message.kind:
            case b"Q":
                return message.words()[0]
            case b"P":
                name, text, *_ = message.words()
                self._statements[name] = text
            case b"B":
                portal, name, *_ = message.words()
                self._portals[portal] = self._statements.get(name, "")
            case b"E":
                return self._portals.get(message.words()[0], "")
            case _:
                pass
        return None

    def answer_to(self, message: Message) -> int:
        """Return the number of the answer that a message just heard will get."""
        return self.asked if message.kind in _ASK else self.asked + 1

    def hear_reply(self, message: Message) -> None:
        """Take note of a server's message."""
        if message.kind == b"Z":
            self.answered += 1
