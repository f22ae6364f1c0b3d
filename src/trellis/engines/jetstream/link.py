"""The connection to NATS: writes with expectations, fresh reads, and what their answers mean.

`write` stores one message, or several as one atomic batch. Its answer is `Written` or `Outdated`:
another write was first. Every other answer of the server is dealt with here. A write without an
answer may still be stored later, so it is repeated with the same expectation: at most one of the
two can be stored, and when the repetition is refused, the message that took the place shows by its
header `Trellis-Write` whether it is ours.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from trellis.core.durations import Instant
from trellis.engines.jetstream.answers import (
    NO_MESSAGE,
    PASSING,
    WRONG_SEQUENCE,
    Expect,
    Got,
    Message,
    Outdated,
    WriteResult,
    Written,
    number_in,
    pause,
    read_answer,
    read_headers,
    read_instant,
    refusal,
    refusal_of,
    unanswered,
)
from trellis.errors import (
    AccessDenied,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    NatsRefused,
    OutcomeUnknown,
    Unstorable,
)

WRITE: Final = "Trellis-Write"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_OVER: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
#: The most messages of one atomic batch.
BATCH: Final = 1000
#: The most subjects of which one request returns the last messages.
_MANY: Final = 1000
#: How many messages one request returns.
_PAGE: Final = 256
#: Seconds until a request counts as unanswered, and until a write is given up.
_ANSWER: Final = 5.0
_PATIENCE: Final = 20.0
_UNREACHABLE: Final = (
    nats_errors.NoServersError,
    nats_errors.OutboundBufferLimitError,
    nats_errors.ConnectionReconnectingError,
    nats_errors.StaleConnectionError,
    nats_errors.NoRespondersError,
    OSError,
)


class Link:
    """One connection."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        name: str = "trellis",
        patience: float = _ANSWER,
        **options: Any,  # noqa: ANN401 - those of the client
    ) -> None:
        self._servers, self._name, self._options = list(servers), name, options
        self._patience = patience
        self._client: Client | None = None
        self._latest_error = ""

    async def open(self) -> None:
        """Connect; doing it twice is fine."""
        if self._client is not None:
            return
        client = Client()
        try:
            # Without this limit the client tries until a server is there.
            async with asyncio.timeout(self._patience):
                await client.connect(
                    self._servers,
                    name=self._name,
                    error_cb=self._remember,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    pending_size=0,
                    **self._options,
                )
        except nats_errors.AuthorizationError as error:
            raise AccessDenied(f"The NATS server denies access: {error}") from error
        except (nats_errors.Error, OSError) as error:
            await client.close()
            reason = str(error) or self._latest_error or type(error).__name__
            raise EngineUnavailable(
                f"No NATS server answers at {', '.join(self._servers)}: {reason}. Nothing was lost."
            ) from error
        self._client = client

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _remember(self, error: Exception) -> None:
        self._latest_error = str(error) or type(error).__name__

    @property
    def client(self) -> Client:
        """The connection; raises `EngineClosed` when there is none."""
        if self._client is None or self._client.is_closed:
            raise EngineClosed("The engine is closed. Open it again.")
        return self._client

    @property
    def max_payload(self) -> int:
        """The most bytes of a message that the server takes."""
        return self.client.max_payload

    @property
    def version(self) -> tuple[int, int]:
        """The version of the server: major and minor."""
        found = self.client.connected_server_version
        return found.major, found.minor

    # -- writing -------------------------------------------------------------------------------

    def fits(self, message: Message) -> bool:
        """Return whether the server takes a message of this size.

        It drops the connection of a client that sends a larger one.
        """
        return message.size <= self.max_payload

    async def write(self, *messages: Message) -> WriteResult:
        """Store messages, all or none."""
        for message in messages:
            if not self.fits(message):
                raise Unstorable(
                    f"A message of {message.size:,} bytes is over the limit of the NATS server "
                    f"(max_payload, {self.max_payload:,} bytes). Nothing was stored. Store the "
                    "data elsewhere and pass its name, or raise max_payload."
                )
        if len(messages) > BATCH:
            raise ValueError(f"A batch has at most {BATCH} messages, not {len(messages)}.")
        name = secrets.token_hex(12)
        end, is_unanswered = time.monotonic() + _PATIENCE, False
        while True:
            answer = await self._try(messages, name)
            is_unanswered |= answer is None
            if answer and "error" not in answer:
                return Written(answer["seq"])
            error: dict[str, Any] = (answer or {}).get("error", {})
            number = error.get("err_code", 0)
            if number == WRONG_SEQUENCE:
                found = await self._taken_by(messages, name) if is_unanswered else None
                return found or Outdated(number_in(error))
            if number and number not in PASSING:
                raise refusal(messages[0].subject, error)
            if time.monotonic() > end:
                raise self._given_up(is_unanswered=is_unanswered)
            await asyncio.sleep(pause(number))

    async def _try(self, messages: Sequence[Message], name: str) -> dict[str, Any] | None:
        """Send messages once; return the answer, empty if no stream took them, None if unknown."""
        try:
            return await self._send(messages, name)
        except nats_errors.NoRespondersError:
            return {}
        except nats_errors.ConnectionClosedError as error:
            raise EngineClosed("The engine was closed during a write.") from error
        except (nats_errors.TimeoutError, *_UNREACHABLE):
            # What was sent before the connection broke may be stored.
            return None

    def _given_up(self, *, is_unanswered: bool) -> EngineError:
        if is_unanswered:
            return OutcomeUnknown(
                f"The NATS server did not answer a write within {_PATIENCE:.0f} s: it may be "
                f"stored, now or later. {self._latest_error}"
            )
        return EngineUnavailable(
            "The NATS server accepted no write: no stream answers, or too many writes are open. "
            f"Nothing was stored; try again later. {self._latest_error}"
        )

    async def _send(self, messages: Sequence[Message], name: str) -> dict[str, Any]:
        client, batch = self.client, secrets.token_hex(12)
        for number, message in enumerate(messages, 1):
            headers = dict(message.headers) | {WRITE: name}
            if message.expect is not None:
                headers[_EXPECTED] = str(message.expect.sequence)
                if message.expect.over is not None:
                    headers[_EXPECTED_OVER] = message.expect.over
            if len(messages) > 1:
                # A repetition is a batch of its own: the server may still know the first one.
                headers["Nats-Batch-Id"] = batch
                headers["Nats-Batch-Sequence"] = str(number)
            if number < len(messages):
                await client.publish(message.subject, message.body, headers=headers)
                continue
            if len(messages) > 1:
                headers["Nats-Batch-Commit"] = "1"
            reply = await client.request(message.subject, message.body, _ANSWER, headers=headers)
            return read_answer(reply.data)
        raise ValueError("There is no message to write.")

    async def _taken_by(self, messages: Sequence[Message], name: str) -> Written | None:
        """Return where our messages are, if an unanswered write of them was stored after all."""
        for number, message in enumerate(messages):
            if message.expect is None:
                continue
            over = message.expect.over or message.subject
            stream = await self.stream_of(message.subject)
            found = await self.next(stream, over, message.expect.sequence + 1)
            if found is None or found.headers.get(WRITE) != name:
                return None
            return Written(found.sequence + len(messages) - 1 - number)
        return None

    async def stream_of(self, subject: str) -> str:
        """Return the name of the stream that stores a subject."""
        answer = await self.api("STREAM.NAMES", {"subject": subject})
        names: list[str] = answer.get("streams") or []
        if not names:
            raise EngineUnavailable(f"No stream stores {subject}. Run `trellis migrate`.")
        return names[0]

    async def tell(self, subject: str, body: bytes = b"", **headers: str) -> None:
        """Publish without an answer: a hint, or the acknowledgement of a delivery."""
        try:
            await self.client.publish(subject, body, headers=dict(headers) or None)
        except nats_errors.Error as error:
            raise EngineUnavailable(f"The NATS server cannot be reached: {error}") from error

    async def flush(self) -> None:
        """Wait until the server has everything that was published."""
        try:
            await self.client.flush()
        except nats_errors.Error as error:
            raise EngineUnavailable(f"The NATS server cannot be reached: {error}") from error

    # -- reading -------------------------------------------------------------------------------

    async def last(self, stream: str, subject: str) -> Got | None:
        """Return the last message on these subjects, as the leader of the stream has it."""
        return await self._get(stream, {"last_by_subj": subject})

    async def next(self, stream: str, subject: str, sequence: int) -> Got | None:
        """Return the first message on these subjects from this sequence on."""
        return await self._get(stream, {"next_by_subj": subject, "seq": sequence})

    async def get(self, stream: str, sequence: int) -> Got | None:
        """Return the message with this sequence."""
        return await self._get(stream, {"seq": sequence})

    async def _get(self, stream: str, wanted: Mapping[str, Any]) -> Got | None:
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", wanted)
        except NatsRefused as error:
            if error.number == NO_MESSAGE:
                return None
            raise
        found = answer["message"]
        return Got(
            found["subject"],
            found["seq"],
            read_instant(found["time"]),
            read_headers(base64.b64decode(found.get("hdrs", ""))),
            base64.b64decode(found.get("data", "")),
        )

    async def following(
        self, stream: str, subject: str, sequence: int, limit: int = _MANY
    ) -> list[Got]:
        """Return messages on these subjects from this sequence on, oldest first.

        A replica may answer that has not seen the latest messages yet.
        """
        found: list[Got] = []
        while len(found) < limit:
            size = min(limit - len(found), _PAGE)
            page = await self._direct(
                stream, {"seq": sequence, "batch": size, "next_by_subj": subject}
            )
            found += page
            if len(page) < size:
                break
            sequence = page[-1].sequence + 1
        return found

    async def last_many(self, stream: str, subjects: Sequence[str]) -> list[Got]:
        """Return the last message of each subject that these filters match, by sequence.

        A replica may answer that has not seen the latest messages yet.
        """
        found: dict[int, Got] = {}
        for start in range(0, len(subjects), 100):
            part = list(subjects[start : start + 100])
            after = 0
            while True:
                wanted = {"multi_last": part, "batch": _PAGE, "seq": after + 1}
                page = await self._direct(stream, wanted)
                found |= {each.sequence: each for each in page}
                if len(page) < _PAGE:
                    break
                after = page[-1].sequence
        return [found[sequence] for sequence in sorted(found)]

    async def _direct(self, stream: str, wanted: Mapping[str, Any]) -> list[Got]:
        """Return the messages of a direct get of many."""
        inbox = self.client.new_inbox()
        try:
            subscription = await self.client.subscribe(inbox)
            try:
                body = json.dumps(wanted).encode()
                subject = f"$JS.API.DIRECT.GET.{stream}"
                await self.client.publish(subject, body, reply=inbox)
                return [each async for each in _collect(subscription, subject)]
            finally:
                await subscription.unsubscribe()
        except (nats_errors.Error, OSError) as error:
            raise unanswered(stream, error) from error

    # -- everything else -----------------------------------------------------------------------

    async def api(
        self, verb: str, body: Mapping[str, Any] | None = None, *, wait: float = _ANSWER
    ) -> dict[str, Any]:
        """Call the JetStream API; raise `NatsRefused` if the server refuses."""
        end = time.monotonic() + max(wait, _ANSWER)
        subject, data = f"$JS.API.{verb}", b"" if body is None else json.dumps(body).encode()
        while True:
            try:
                reply = await self.client.request(subject, data, wait)
                break
            except nats_errors.ConnectionClosedError as error:
                raise EngineClosed("The engine was closed during a request.") from error
            except (*_UNREACHABLE, nats_errors.TimeoutError) as error:
                if time.monotonic() > end:
                    raise unanswered(verb, error) from error
                await asyncio.sleep(pause(0))
        answer = read_answer(reply.data)
        if "error" in answer:
            raise refusal_of(verb, answer["error"])
        return answer

    async def ask(self, subject: str, body: bytes, wait: float) -> Msg:
        """Send a request to another program; raises the errors of the client."""
        return await self.client.request(subject, body, wait)

    async def listen(self, subject: str, heard: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Call a function with every message on these subjects, until it is unsubscribed."""
        return await self.client.subscribe(subject, cb=heard)

    async def pull(self, stream: str, consumer: str, limit: int, wait: float = 0.0) -> list[Msg]:
        """Return up to `limit` messages that a consumer has; wait so long for the first."""
        wanted: dict[str, Any] = {"batch": limit, "no_wait": True}
        if wait:
            wanted = {"batch": limit, "expires": int(wait * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        end = time.monotonic() + _ANSWER
        while True:
            try:
                return await self._pull(subject, wanted, limit, _ANSWER + wait)
            except (nats_errors.Error, OSError) as error:
                # In a cluster a new consumer has no leader for a moment, and leaders change.
                is_leaderless = isinstance(error, nats_errors.NoRespondersError)
                if not is_leaderless or time.monotonic() > end:
                    raise unanswered(consumer, error) from error
            await asyncio.sleep(pause(0))

    async def _pull(
        self, subject: str, wanted: Mapping[str, Any], limit: int, wait: float
    ) -> list[Msg]:
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        try:
            await self.client.publish(subject, json.dumps(wanted).encode(), reply=inbox)
            taken: list[Msg] = []
            while len(taken) < limit:
                message = await subscription.next_msg(wait)
                if not message.reply:
                    if (message.headers or {}).get("Status") == "503":
                        raise nats_errors.NoRespondersError
                    break
                taken.append(message)
            return taken
        finally:
            await subscription.unsubscribe()

    async def server_time(self, stream: str) -> tuple[Instant, float, float]:
        """Return the server's time, and our monotonic clock before and after it was read."""
        before = time.monotonic()
        answer = await self.api(f"STREAM.INFO.{stream}")
        return read_instant(answer["ts"]), before, time.monotonic()


async def _collect(subscription: Subscription, subject: str) -> AsyncIterator[Got]:
    while True:
        message = await subscription.next_msg(_ANSWER)
        headers = message.headers or {}
        status = headers.get("Status")
        if status in {"204", "404"}:
            return
        if status == "503":
            raise nats_errors.NoRespondersError
        if status is not None:
            reason = {"err_code": status, "description": headers.get("Description")}
            raise refusal_of(subject, reason)
        yield Got(
            headers["Nats-Subject"],
            int(headers["Nats-Sequence"]),
            read_instant(headers["Nats-Time-Stamp"]),
            headers,
            message.data,
        )


__all__ = ["Expect", "Got", "Link", "Message", "Outdated", "Written"]
