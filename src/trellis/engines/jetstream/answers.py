"""Messages as they are written and read, and what the answers of a NATS server mean."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from trellis.core.durations import Instant, to_instant
from trellis.errors import EngineError, EngineUnavailable, NatsRefused

#: Room for what the server adds to the headers of a message.
_MARGIN: Final = 512
WRONG_SEQUENCE: Final = 10071
NO_MESSAGE: Final = 10037
#: Something about the same subject is being stored: what it is will be known in a moment.
_IN_FLIGHT: Final = 10164
#: Too many open batches; or one was dropped because of that.
_TOO_MANY_BATCHES: Final = frozenset({10176, 10210})
#: After these answers nothing is stored, and the same write may be stored a moment later.
PASSING: Final = _TOO_MANY_BATCHES | {_IN_FLIGHT}
_NOT_FOUND: Final = frozenset({10014, 10059})


class Expect(NamedTuple):
    """The sequence of the last message that must be there when a message is stored; 0: none."""

    sequence: int
    #: Over these subjects; None: over the subject of the message.
    over: str | None = None


class Message(NamedTuple):
    """A message to be stored."""

    subject: str
    body: bytes
    headers: Mapping[str, str] = {}
    expect: Expect | None = None

    @property
    def size(self) -> int:
        """About how many bytes it takes on the wire."""
        headers = sum(len(name) + len(value) + 4 for name, value in self.headers.items())
        return len(self.subject) + headers + len(self.body) + _MARGIN


class Written(NamedTuple):
    """All messages are stored, the last of them with this sequence, the others right before it."""

    sequence: int


class Outdated(NamedTuple):
    """Nothing is stored: another message is the last one now, with this sequence if it is known."""

    sequence: int | None


WriteResult: TypeAlias = Written | Outdated


class Got(NamedTuple):
    """A stored message."""

    subject: str
    sequence: int
    at: Instant
    headers: Mapping[str, str]
    body: bytes


def refusal_of(subject: str, error: Mapping[str, Any]) -> NatsRefused:
    """Return that the server refused a request, with its reason."""
    number = int(error.get("err_code", 0))
    return NatsRefused(
        f"The NATS server refused {subject}: {error.get('description')} ({number}).", number
    )


def read_answer(body: bytes) -> dict[str, Any]:
    """Return an answer of the API."""
    answer: dict[str, Any] = json.loads(body)
    return answer


def read_headers(block: bytes) -> dict[str, str]:
    """Return the headers of a stored message."""
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name: value.strip() for name, value in pairs}


def read_instant(text: str) -> Instant:
    """Return a time of the server, which has nanoseconds."""
    moment, _, fraction = text.removesuffix("Z").partition(".")
    return to_instant(datetime.fromisoformat(moment + "+00:00")) + int(fraction[:6].ljust(6, "0"))


def number_in(error: Mapping[str, Any]) -> int | None:
    """Return the sequence that a refusal names, if it names one."""
    digits = str(error.get("description", "")).rpartition(" ")[2]
    return int(digits) if digits.isdecimal() else None


def pause(number: int) -> float:
    """Return how many seconds to wait before a write or request is repeated."""
    if number == _IN_FLIGHT:
        return random.uniform(0.001, 0.02)  # noqa: S311 - no secret
    if number in _TOO_MANY_BATCHES:
        return random.uniform(0.002, 0.05)  # noqa: S311
    return random.uniform(0.05, 0.25)  # noqa: S311


def refusal(subject: str, error: Mapping[str, Any]) -> EngineError:
    """Return the error for a write that was refused."""
    refused = refusal_of(subject, error)
    if refused.number in _NOT_FOUND:
        return EngineUnavailable(f"{refused} Run `trellis migrate`.")
    return refused


def unanswered(what: str, error: Exception) -> EngineUnavailable:
    """Return the error for a request without an answer."""
    reason = str(error) or type(error).__name__
    return EngineUnavailable(f"The NATS server did not answer a request for {what}: {reason}.")
