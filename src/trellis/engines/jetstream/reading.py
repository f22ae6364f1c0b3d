"""Reads over a connection to NATS: single messages from the leader, many from a replica."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nats import errors as nats_errors
from nats.aio.msg import Msg

from trellis.core.durations import Instant, to_datetime
from trellis.engines.jetstream.access import Access
from trellis.engines.jetstream.answers import (
    IN_FLIGHT,
    NO_MESSAGE,
    NO_STREAM,
    Got,
    no_stream,
    pause,
    read_headers,
    read_instant,
    refusal_of,
    unanswered,
)
from trellis.engines.jetstream.replies import Connection
from trellis.errors import EngineClosed, EngineUnavailable, NatsRefused

#: The most subjects of which one request is to return the last messages.
_MANY: Final = 1000
#: The server's refusal if there are more than 1,024.
_TOO_MANY_SUBJECTS: Final = 413
#: How many messages one request returns.
_PAGE: Final = 1024
#: Seconds until a request is sent again: while a stream or a consumer has no leader, no server
#: answers for it.
_AGAIN: Final = 2.0
#: Seconds until a request is given up, and until a replica must have caught up.
_PATIENCE: Final = 20.0


class Reads:
    """The part of a connection that reads."""

    access: Access

    @property
    def client(self) -> Connection:
        """The connection."""
        raise NotImplementedError

    async def api(
        self, verb: str, body: Mapping[str, Any] | None = None, *, wait: float = _PATIENCE
    ) -> dict[str, Any]:
        """Call the JetStream API."""
        raise NotImplementedError

    async def last(self, stream: str, subject: str) -> Got | None:
        """Return the last message on these subjects, as the leader of the stream has it."""
        return await self._get(stream, {"last_by_subj": subject})

    async def next(self, stream: str, subject: str, sequence: int) -> Got | None:
        """Return the first message on these subjects from this sequence on."""
        return await self._get(stream, {"next_by_subj": subject, "seq": sequence})

    async def after(self, stream: str, at: Instant) -> Got | None:
        """Return the first message of a stream that was stored after this moment."""
        moment = to_datetime(at + 1).isoformat(timespec="microseconds")
        return await self._get(stream, {"next_by_subj": ">", "start_time": moment})

    async def get(self, stream: str, sequence: int) -> Got | None:
        """Return the message with this sequence."""
        return await self._get(stream, {"seq": sequence})

    async def _get(self, stream: str, wanted: Mapping[str, Any]) -> Got | None:
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", wanted)
        except NatsRefused as error:
            if error.number == NO_MESSAGE:
                return None
            if error.number == NO_STREAM:
                raise no_stream(f"the messages of {stream}") from error
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
        self,
        stream: str,
        subject: str,
        sequence: int,
        limit: int = _MANY,
        *,
        end: int | None = None,
    ) -> list[Got]:
        """Return messages on these subjects from this sequence on, oldest first.

        Everything that was stored before the call is there: pages come from any replica, the leader
        says what the last message is, unless the caller knows the `end`. For all subjects of a
        stream, `>` is to be asked for: any other filter costs the server a look at every subject.
        """
        if end is None:
            newest = await self.last(stream, subject)
            end = 0 if newest is None else newest.sequence
        found: list[Got] = []
        while sequence <= end and len(found) < limit:
            size = min(limit - len(found), _PAGE)
            page = await self._direct(
                stream, {"seq": sequence, "batch": size, "next_by_subj": subject}
            )
            if not page:
                # The replica lags, or the rest was deleted: the leader knows.
                got = await self.next(stream, subject, sequence)
                page = [] if got is None else [got]
            if not page:
                break
            found += page
            sequence = page[-1].sequence + 1
        return found

    async def last_many(self, stream: str, subjects: Sequence[str]) -> list[Got]:
        """Return the last message of each subject that these filters match, by sequence.

        Everything that was stored before the call is there.
        """
        newest = await asyncio.gather(*(self.last(stream, each) for each in subjects))
        found = {got.sequence: got for got in newest if got is not None}
        for subject, got in zip(subjects, newest, strict=True):
            if got is not None and {"*", ">"} & set(subject.split(".")):
                found |= {each.sequence: each for each in await self._all(stream, subject, got)}
        # A message that was replaced between two of the reads is not the last one.
        last = {found[sequence].subject: found[sequence] for sequence in sorted(found)}
        return sorted(last.values(), key=lambda each: each.sequence)

    async def _all(self, stream: str, subject: str, newest: Got) -> list[Got]:
        """Return the last messages of a filter from replicas that have this one of the leader."""
        try:
            return await self._all_of(stream, subject, [subject], newest)
        except NatsRefused as error:
            if error.number != _TOO_MANY_SUBJECTS:
                raise
        names, found = list(await self.subjects_of(stream, subject)), list[Got]()
        for start in range(0, len(names), _MANY):
            part = names[start : start + _MANY]
            found += await self._all_of(stream, subject, part, newest)
        return found

    async def _all_of(
        self, stream: str, subject: str, filters: Sequence[str], newest: Got
    ) -> list[Got]:
        """Return the last messages of some of the subjects of a filter.

        The newest message of the whole filter is asked for, too: only a replica that has it is
        known to have all that the leader had.
        """
        end = time.monotonic() + _PATIENCE
        while True:
            found: list[Got] = []
            wanted = {"multi_last": list({*filters, newest.subject}), "batch": _PAGE}
            while True:
                after = found[-1].sequence if found else 0
                page = await self._direct(stream, wanted | {"seq": after + 1})
                found += page
                # A page ends after so many messages, or so many bytes.
                if not page or page[-1].sequence >= newest.sequence:
                    break
            if found and found[-1].sequence >= newest.sequence:
                return found
            if await self.get(stream, newest.sequence) is None:
                # It was replaced or deleted since: what is the newest now?
                latest = await self.last(stream, subject)
                if latest is None:
                    return found
                newest = latest
            if time.monotonic() > end:
                raise EngineUnavailable(
                    f"A replica of {stream} has lagged behind for {_PATIENCE:.0f} s."
                )
            await asyncio.sleep(pause(IN_FLIGHT))

    async def subjects_of(self, stream: str, subject: str) -> dict[str, int]:
        """Return the subjects that a filter matches, with how many messages each has."""
        found: dict[str, int] = {}
        while True:
            wanted = {"subjects_filter": subject, "offset": len(found)}
            answer = await self.api(f"STREAM.INFO.{stream}", wanted)
            page: dict[str, int] = answer["state"].get("subjects") or {}
            found |= page
            # The answer has the stream's own number of subjects; `total` counts those that match.
            if not page or len(found) >= int(answer.get("total", 0)):
                return found

    async def _direct(self, stream: str, wanted: Mapping[str, Any]) -> list[Got]:
        """Return the messages of a direct get of many."""
        subject, body = f"$JS.API.DIRECT.GET.{stream}", json.dumps(wanted).encode()
        end = time.monotonic() + _PATIENCE
        while True:
            client = self.client
            inbox, page = client.new_inbox(), _Page(subject)
            try:
                async with self.access.asking(subject, inbox):
                    subscription = await client.hear(inbox, page.hear)
                    try:
                        await client.send(subject, body, inbox, {})
                        await client.flush_soon()
                        return await page.complete()
                    finally:
                        await client.unhear(subscription)
            except nats_errors.ConnectionClosedError as error:
                raise EngineClosed("The engine was closed during a request.") from error
            except (nats_errors.Error, OSError) as error:
                if time.monotonic() > end:
                    raise unanswered(stream, error) from error
            await asyncio.sleep(pause(0))


class _Page:
    """The messages of a direct get of many, as they come."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._found: list[Got] = []
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(self, message: Msg) -> None:
        """Take a message, or the word that there are no more."""
        headers = message.headers or {}
        status = headers.get("Status")
        if status is None:
            got = Got(
                headers["Nats-Subject"],
                int(headers["Nats-Sequence"]),
                read_instant(headers["Nats-Time-Stamp"]),
                headers,
                message.data,
            )
            self._found.append(got)
        elif not self._end.done():
            if status in {"204", "404"}:
                self._end.set_result(None)
            elif status == "503":
                self._end.set_exception(nats_errors.NoRespondersError())
            else:
                reason = {"err_code": status, "description": headers.get("Description")}
                self._end.set_exception(refusal_of(self._subject, reason))

    async def complete(self) -> list[Got]:
        """Wait for all messages; raise `TimeoutError` of the client if none comes for long."""
        while True:
            before = len(self._found)
            await asyncio.wait((self._end,), timeout=_AGAIN)
            if self._end.done():
                self._end.result()
                return self._found
            if len(self._found) == before:
                raise nats_errors.TimeoutError
