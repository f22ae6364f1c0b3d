"""Writes over a connection to NATS, with expectations, and what their answers mean.

`write` stores one message, or several as one atomic batch. Its answer is `Written` or `Outdated`:
another write was first. Every other answer of the server is dealt with here. A write without an
answer may still be stored later, so it is repeated with the same expectation: at most one of the
two can be stored, and when the repetition is refused, the message that took the place shows by its
header `Trellis-Write` whether it is ours.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from nats import errors as nats_errors

from trellis.engines.jetstream.answers import (
    DUPLICATE,
    PASSING,
    TOO_MANY_BATCHES,
    WRITE,
    WRONG_SEQUENCE,
    Message,
    Outdated,
    WriteResult,
    Written,
    answer_in,
    headers_of,
    heed,
    no_stream,
    number_in,
    pause,
    refusal,
    torn,
)
from trellis.engines.jetstream.reading import Reads
from trellis.engines.jetstream.replies import Replies, Sent
from trellis.errors import (
    AccessDenied,
    CapabilityMissing,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    Unstorable,
)

#: The most messages of one atomic batch.
BATCH: Final = 1000
#: Seconds until a write counts as unanswered, and until it is given up.
ANSWER: Final = 5.0
PATIENCE: Final = 20.0
#: What the client raises while no server can be reached, or none answers for a subject.
UNREACHABLE: Final = (
    nats_errors.NoServersError,
    nats_errors.OutboundBufferLimitError,
    nats_errors.ConnectionReconnectingError,
    nats_errors.StaleConnectionError,
    nats_errors.NoRespondersError,
    OSError,
)


class Writes(Reads):
    """The part of a connection that writes."""

    def __init__(self) -> None:
        self._replies = Replies()
        self._latest_error = ""
        #: How often the server had too many open batches.
        self.crowded = 0
        #: Raises an error if there is a lasting reason why no stream takes a write.
        self.check_silence: Callable[[], Awaitable[None]] | None = None

    @property
    def max_payload(self) -> int:
        """The most bytes of a message that the server takes."""
        return self.client.max_payload

    @property
    def _has_jetstream(self) -> bool:
        return bool(self.client._server_info.get("jetstream"))  # noqa: SLF001

    def fits(self, message: Message) -> bool:
        """Return whether the server takes a message of this size.

        It drops the connection of a client that sends a larger one.
        """
        return message.size <= self.max_payload

    async def write(self, *messages: Message) -> WriteResult:
        """Store messages, all or none."""
        self._check(messages)
        if len(messages) > BATCH:
            raise CapabilityMissing(
                f"On NATS JetStream one write has at most {BATCH:,} messages, and this one needs "
                f"{len(messages):,}. Nothing was stored. Let fewer jobs or batches follow one job."
            )
        name = secrets.token_hex(12)
        return await self._stored(messages, name, await self._try(messages, name))

    async def write_each(self, messages: Sequence[Message]) -> list[WriteResult | EngineError]:
        """Store messages, each alone; all are sent before the first answer is awaited."""
        self._check(messages)
        name = secrets.token_hex(12)
        if len(messages) == 1:
            answers = [await self._try(messages, name)]
        else:
            answers = await self._try_each(messages, name)
        results: list[WriteResult | EngineError | None] = [
            Written(answer["seq"]) if answer and "error" not in answer else None
            for answer in answers
        ]
        left = [place for place, result in enumerate(results) if result is None]
        if left:
            works = (self._stored((messages[each],), name, answers[each]) for each in left)
            found = await asyncio.gather(*works, return_exceptions=True)
            for place, result in zip(left, found, strict=True):
                if isinstance(result, BaseException) and not isinstance(result, EngineError):
                    raise result
                results[place] = result
        return [each for each in results if each is not None]

    def _check(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if not self.fits(message):
                raise Unstorable(
                    f"A message of {message.size:,} bytes is over the limit of the NATS server "
                    f"(max_payload, {self.max_payload:,} bytes). Nothing was stored. Store the "
                    "data elsewhere and pass its name, or raise max_payload."
                )

    async def _stored(
        self, messages: Sequence[Message], name: str, answer: dict[str, Any] | None
    ) -> WriteResult:
        """Return what became of a write; repeat it as long as it is not known to be stored."""
        end, is_unanswered = time.monotonic() + PATIENCE, False
        while True:
            is_unanswered |= answer is None
            if answer and "error" not in answer:
                return Written(answer["seq"])
            error: dict[str, Any] = (answer or {}).get("error", {})
            number = error.get("err_code", 0)
            is_refused = bool(number) and number not in PASSING
            if number == DUPLICATE:
                return Written(0)
            found = await self._look_for(messages, name, answer, is_unanswered=is_unanswered)
            if is_refused:
                if found is None and number != WRONG_SEQUENCE:
                    if is_unanswered:
                        raise _unknown(messages[0].subject, error)
                    raise refusal(messages[0].subject, error)
                return found or Outdated(number_in(error))
            self.crowded += number in TOO_MANY_BATCHES
            if time.monotonic() > end:
                raise self._given_up(is_unanswered=is_unanswered)
            await asyncio.sleep(pause(number))
            try:
                answer = await self._try(messages, name)
            except AccessDenied as failure:
                if not is_unanswered:
                    raise
                raise self._given_up(is_unanswered=True, reason=str(failure)) from failure

    async def _look_for(
        self,
        messages: Sequence[Message],
        name: str,
        answer: dict[str, Any] | None,
        *,
        is_unanswered: bool,
    ) -> Written | None:
        """Return where a refused write is, if it was stored before; raise why no stream takes it.

        What keeps us from looking says nothing about an earlier try that had no answer.
        """
        try:
            if answer == {}:
                await self._check_streams(messages[-1].subject)
            number = (answer or {}).get("error", {}).get("err_code")
            if is_unanswered and number and number not in PASSING:
                return await self._taken_by(messages, name)
        except OutcomeUnknown:
            raise
        except EngineError as failure:
            if not is_unanswered:
                raise
            raise self._given_up(is_unanswered=True, reason=str(failure)) from failure
        return None

    async def _try(self, messages: Sequence[Message], name: str) -> dict[str, Any] | None:
        """Send messages once; return the answer, empty if no stream took them, None if unknown."""
        try:
            async with self.access.asking(*(message.subject for message in messages)):
                return await self._send(messages, name)
        except nats_errors.NoRespondersError:
            return {}
        except nats_errors.ConnectionClosedError as error:
            raise EngineClosed("The engine was closed during a write.") from error
        except (nats_errors.TimeoutError, *UNREACHABLE):
            # What was sent before the connection broke may be stored.
            return None

    async def _check_streams(self, subject: str) -> None:
        """Raise an error if no stream stores a subject for good; one may be without a leader."""
        try:
            if self.check_silence is not None:
                await self.check_silence()
            names = (await self.api("STREAM.NAMES", {"subject": subject})).get("streams")
        except EngineUnavailable:
            if self._has_jetstream:
                return
            raise
        if not names:
            raise no_stream(subject)

    def _given_up(self, *, is_unanswered: bool, reason: str = "") -> EngineError:
        if is_unanswered:
            return OutcomeUnknown(
                "The NATS server did not answer a write: it may be stored, now or later. Repeat "
                "the call: with the same ids it is stored once. "
                f"{reason or self._latest_error}"
            )
        return EngineUnavailable(
            "The NATS server accepted no write: a stream has no leader, or too many batches are "
            "open (raise limits.batch.max_inflight_per_stream of the servers). Nothing was stored; "
            f"try again later. {self._latest_error}"
        )

    async def _send(self, messages: Sequence[Message], name: str) -> dict[str, Any]:
        client, batch = self.client, secrets.token_hex(12)
        for number, message in enumerate(messages, 1):
            headers = headers_of(message, name)
            if len(messages) > 1:
                # A repetition is a batch of its own: the server may still know the first one.
                headers["Nats-Batch-Id"] = batch
                headers["Nats-Batch-Sequence"] = str(number)
            if number < len(messages):
                await heed(client.send(message.subject, message.body, "", headers))
                continue
            if len(messages) > 1:
                headers["Nats-Batch-Commit"] = "1"
            sent = Sent(message.subject, message.body, headers)
            (reply,) = await self._replies.ask(client, [sent], ANSWER)
            return answer_in(reply)
        raise ValueError("There is no message to write.")

    async def _try_each(
        self, messages: Sequence[Message], name: str
    ) -> list[dict[str, Any] | None]:
        """Send messages once, as `_try` does each of them."""
        sent = [Sent(each.subject, each.body, headers_of(each, name)) for each in messages]
        try:
            async with self.access.asking(*(each.subject for each in messages)):
                replies = await self._replies.ask(self.client, sent, ANSWER)
        except nats_errors.ConnectionClosedError as error:
            raise EngineClosed("The engine was closed during a write.") from error
        except UNREACHABLE:
            return [None] * len(messages)
        answers: list[dict[str, Any] | None] = []
        for reply in replies:
            try:
                answers.append(answer_in(reply))
            except nats_errors.NoRespondersError:
                answers.append({})
            except nats_errors.TimeoutError:
                answers.append(None)
        return answers

    async def _taken_by(self, messages: Sequence[Message], name: str) -> Written | None:
        """Return where our messages are, if an unanswered write of them was stored after all."""
        for number, message in enumerate(messages):
            if message.expect is None:
                continue
            over = message.expect.over or message.subject
            stream = await self.stream_of(message.subject)
            found = await self.next(stream, over, message.expect.sequence + 1)
            if found is None or found.headers.get(WRITE) != name:
                continue  # of a state, our version may have been replaced and deleted since
            last = found.sequence + len(messages) - 1 - number
            if not await self._has(stream, last, name):
                raise torn(message.subject)
            return Written(last)
        return None

    async def _has(self, stream: str, last: int, name: str) -> bool:
        """Return whether a write ends with this message, which may have been deleted since."""
        end = await self.get(stream, last)
        if end is not None:
            return end.headers.get(WRITE) == name
        newest = await self.last(stream, ">")
        return newest is not None and newest.sequence > last

    async def stream_of(self, subject: str) -> str:
        """Return the name of the stream that stores a subject."""
        answer = await self.api("STREAM.NAMES", {"subject": subject})
        names: list[str] = answer.get("streams") or []
        if not names:
            raise no_stream(subject)
        return names[0]


def _unknown(subject: str, error: Mapping[str, Any]) -> OutcomeUnknown:
    """Return the error for a write without an answer whose repetition was refused."""
    return OutcomeUnknown(
        f"The NATS server did not answer a write of {subject}, and refused its repetition: "
        f"{error.get('description')} ({error.get('err_code')}). It may be stored, now or "
        "later. Repeat the call: with the same ids it is stored once."
    )
