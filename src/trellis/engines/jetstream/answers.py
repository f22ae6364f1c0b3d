"""Messages as they are written and read, and what the answers of a NATS server mean."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from nats import errors as nats_errors
from nats.aio.msg import Msg

from trellis.core.durations import Instant, to_instant
from trellis.errors import DiskFull, EngineError, EngineUnavailable, NatsRefused, OutcomeUnknown

T = TypeVar("T")
#: Names one write: a message that took the place of another shows by it whose it is.
WRITE: Final = "Trellis-Write"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_OVER: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
#: Names what one message says: the server stores only the first one with it within two minutes.
MESSAGE_ID: Final = "Nats-Msg-Id"
#: Room for what the server adds to the headers of a message.
_MARGIN: Final = 512
WRONG_SEQUENCE: Final = 10071
NO_MESSAGE: Final = 10037
#: Something about the same subject is being stored: what it is will be known in a moment.
IN_FLIGHT: Final = 10164
#: A message of a batch has an id that is stored already, so the batch was stored before.
DUPLICATE: Final = 10201
#: A message with the same id is being stored.
_DUPLICATE_IN_FLIGHT: Final = 10158
#: Too many open batches; or one was dropped because of that.
TOO_MANY_BATCHES: Final = frozenset({10176, 10210})
#: The cluster, a stream or a consumer has no leader now, or the servers that keep it are down.
LEADERLESS: Final = frozenset({10006, 10007, 10008, 10009, 10118, 10119})
#: After these answers nothing is stored, and the same write may be stored a moment later.
PASSING: Final = TOO_MANY_BATCHES | LEADERLESS | {IN_FLIGHT, _DUPLICATE_IN_FLIGHT}
NO_STREAM: Final = 10059
_NOT_FOUND: Final = frozenset({10014, NO_STREAM})
#: The space of the account, or of the server, is used up.
_NO_SPACE: Final = frozenset({10002, 10023, 10028, 10047})
#: More than one replica was asked of one server.
_ONE_SERVER: Final = 10074
#: What the client raises while it has no connection.
_UNCONNECTED: Final = (
    nats_errors.NoServersError,
    nats_errors.OutboundBufferLimitError,
    nats_errors.ConnectionReconnectingError,
    nats_errors.StaleConnectionError,
    OSError,
)
#: The account, or the server, has no JetStream.
_NO_JETSTREAM: Final = frozenset({10039, 10076})


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
        headers = sum(len(f"{name}{value}".encode()) + 4 for name, value in self.headers.items())
        over = self.expect.over if self.expect is not None else None
        return len(self.subject) + headers + len(over or "") + len(self.body) + _MARGIN


class Written(NamedTuple):
    """All messages are stored, the last of them with this sequence, the others right before it.

    0: a repetition of a batch with a message id, which was stored before.
    """

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


async def heed(work: Awaitable[T]) -> T:
    """Await a call of the client; a cancel of the caller is heeded, even if the client loses it.

    The client uses `asyncio.wait_for`, which on Python 3.11 returns the answer of a caller that is
    cancelled at the same moment. A loop that runs until it is cancelled would then never end.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await work
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def refusal_of(subject: str, error: Mapping[str, Any]) -> EngineError:
    """Return that the server refused a request, with its reason and what to do."""
    number, reason = int(error.get("err_code", 0)), error.get("description")
    text = f"The NATS server refused {subject}: {reason} ({number})."
    if number in _NO_SPACE:
        return DiskFull(
            f"{text} The storage of the server or account is used up, and nothing was stored. "
            "Raise max_file of the server or account, or remove old jobs."
        )
    if number in _NO_JETSTREAM:
        return without_jetstream(text)
    if number == _ONE_SERVER:
        return NatsRefused(
            f"{text} One server cannot keep several replicas: leave out replicas= of the URL, or "
            "start a cluster.",
            number,
        )
    if number in LEADERLESS:
        return EngineUnavailable(
            f"{text} Too few servers of the cluster work together. Nothing was stored; start those "
            "that are down."
        )
    return NatsRefused(f"{text} Run `trellis migrate`." if number in _NOT_FOUND else text, number)


def without_jetstream(text: str) -> EngineUnavailable:
    """Return the error for a server or account that has no streams."""
    return EngineUnavailable(
        f"{text} Nothing was stored. Turn JetStream on in the configuration of the servers "
        '(jetstream { store_dir: "/var/lib/nats" }), and for the account of the user if there are '
        "accounts (jetstream: enabled)."
    )


def read_answer(body: bytes) -> dict[str, Any]:
    """Return an answer of the API."""
    answer: dict[str, Any] = json.loads(body)
    return answer


def read_headers(block: bytes) -> dict[str, str]:
    """Return the headers of a stored message; its first line is the version."""
    return read_lines(block.partition(b"\r\n")[2])


def read_lines(raw: bytes) -> dict[str, str]:
    """Return headers, one on each line."""
    pairs = (line.partition(":") for line in raw.decode("utf-8", "replace").split("\r\n"))
    return {name: value.strip() for name, colon, value in pairs if colon}


def read_instant(text: str) -> Instant:
    """Return a time of the server, which has nanoseconds."""
    moment, _, fraction = text.removesuffix("Z").partition(".")
    return _second(moment) + int(fraction[:6].ljust(6, "0"))


@lru_cache(maxsize=64)
def _second(moment: str) -> Instant:
    return to_instant(datetime.fromisoformat(moment + "+00:00"))


def number_in(error: Mapping[str, Any]) -> int | None:
    """Return the sequence that a refusal names, if it names one."""
    digits = str(error.get("description", "")).rpartition(" ")[2]
    return int(digits) if digits.isdecimal() else None


def pause(number: int) -> float:
    """Return how many seconds to wait before a write or request is repeated."""
    if number == IN_FLIGHT:
        return random.uniform(0.001, 0.02)  # noqa: S311 - no secret
    if number in TOO_MANY_BATCHES:
        return random.uniform(0.002, 0.05)  # noqa: S311
    return random.uniform(0.05, 0.25)  # noqa: S311


def refusal(subject: str, error: Mapping[str, Any]) -> EngineError:
    """Return the error for a write that was refused."""
    refused = refusal_of(subject, error)
    if isinstance(refused, NatsRefused) and refused.number in _NOT_FOUND:
        return EngineUnavailable(f"{refused} Nothing was stored.")
    return refused


def torn(subject: str) -> OutcomeUnknown:
    """Return the error for a batch of which only the beginning is stored.

    One server without replicas does that when its storage is used up in the middle of a batch.
    """
    return OutcomeUnknown(
        f"The NATS server stored only a part of a write ({subject}), because its storage was used "
        "up. Raise max_file of the server, then repeat the call."
    )


def no_stream(subject: str) -> EngineUnavailable:
    """Return the error for a subject that no stream stores."""
    return EngineUnavailable(
        f"No stream stores {subject}: it was deleted, or the prefix of the URL is wrong. Nothing "
        "was stored. Run `trellis migrate`, or correct the URL."
    )


def unanswered(what: str, error: Exception) -> EngineUnavailable:
    """Return the error for a request without an answer."""
    if isinstance(error, _UNCONNECTED) and not isinstance(error, TimeoutError):
        return EngineUnavailable(
            f"No NATS server answers, so a request for {what} failed. Start the servers; the "
            "connection is then made again."
        )
    reason = str(error) or type(error).__name__
    return EngineUnavailable(
        f"The NATS server did not answer a request for {what}: {reason}. In a cluster, a new "
        "leader is being chosen, or too few servers run. Try again in some seconds; start the "
        "servers that are down."
    )


def headers_of(message: Message, name: str) -> dict[str, str]:
    """Return the headers of a message as it is sent by the write with this name."""
    headers = {**message.headers, WRITE: name}
    if message.expect is not None:
        headers[_EXPECTED] = str(message.expect.sequence)
        if message.expect.over is not None:
            headers[_EXPECTED_OVER] = message.expect.over
    return headers


def expects(headers: Mapping[str, str]) -> Expect | None:
    """Return what a stored message expected, which the server has checked; None: nothing."""
    sequence = headers.get(_EXPECTED)
    return None if sequence is None else Expect(int(sequence), headers.get(_EXPECTED_OVER))


def answer_in(reply: Msg | None) -> dict[str, Any]:
    """Return what the server answers; raise an error of the client if it does not."""
    if reply is None:
        raise nats_errors.TimeoutError
    if not reply.data and (reply.headers or {}).get("Status") == "503":
        raise nats_errors.NoRespondersError
    return read_answer(reply.data)
