"""Answers to many messages at once, and deliveries: an inbox that lasts, a number for each request.

A subscription for each request would cost the server and this process more than the request does.
Both classes are told the connection at each call: after the engine was opened again they listen
again. The client itself listens again after it has lost a server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

GiveBack: TypeAlias = Callable[[list[Msg]], None]
_logger = logging.getLogger(__name__)
_NO_RESPONDERS: Final = "503"
#: The number of the pull that stands open.
_STANDING: Final = "0"
#: After how many seconds a delivery that no pull has taken is given back.
_OVERDUE: Final = 0.1
_SPACE: Final = re.compile(r"\s")
#: Of headers without a status.
_FIRST_LINE: Final = b"NATS/1.0\r\n"


class Connection(Client):
    """The client of nats-py, with a shorter way for headers and for answers.

    It checks each header of each message again, which takes longer than all else about a message;
    and it hands each message to a task of the subscription, and each write to a task that flushes.
    """

    def __init__(self) -> None:
        super().__init__()
        #: What is called with the messages of a subscription, by its number.
        self._hearers: dict[int, Callable[[Msg], None]] = {}

    async def send(self, subject: str, body: bytes, reply: str, headers: Mapping[str, str]) -> None:
        """Publish a message whose headers are printable text; a flush sends it."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        is_plain = lines.count("\n") == len(headers) and _SPACE.search(subject + reply) is None
        if not (is_plain and self.is_connected):
            # It refuses a subject with white space, after which another command could stand.
            await self.publish(subject, body, reply, dict(headers))
            return
        to = f"{subject} {reply}" if reply else subject
        if lines:
            block = _FIRST_LINE + f"{lines}\r\n".encode()
            size = len(block)
            start = f"HPUB {to} {size} {size + len(body)}\r\n".encode()
            await self._send_command(b"".join((start, block, body, b"\r\n")))
        else:
            await self._send_command(
                b"".join((f"PUB {to} {len(body)}\r\n".encode(), body, b"\r\n"))
            )

    async def flush_now(self) -> None:
        """Write what was sent; the client writes what this could not."""
        transport = self._transport
        if not self.is_connected or transport is None or self._is_closing:
            return
        if self._pending:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            transport.writelines(pending)
        await transport.drain()  # type: ignore[no-untyped-call] # of the client

    async def flush_soon(self) -> None:
        """Let the client write what was sent, together with what else is sent until then."""
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def close(self) -> None:
        """Write what was sent, and close. Without a server it is forgotten."""
        with suppress(OSError):
            await self.flush_now()
        self._pending, self._pending_data_size = [], 0  # the client would fail to write it
        await super().close()

    @property
    def _writer(self) -> asyncio.StreamWriter | None:
        return getattr(self._transport, "_io_writer", None)

    @property
    def _is_closing(self) -> bool:
        """Whether the server has gone, which the client may learn a little later."""
        return self._writer is not None and self._writer.is_closing()

    def abort(self) -> None:
        """Drop the connection at once; closing it waits until everything is written."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def _process_op_err(self, e: Exception) -> None:
        self.abort()  # a server that stands still reads nothing, and the client would wait for it
        await super()._process_op_err(e)

    async def hear(self, subject: str, heard: Callable[[Msg], None]) -> Subscription:
        """Call a function with every message on these subjects as soon as it is read."""
        subscription = await self.subscribe(subject, cb=_unheard)
        self._hearers[subscription._id] = heard  # noqa: SLF001 - the client has no other way
        return subscription

    async def unhear(self, subscription: Subscription) -> None:
        """Stop hearing."""
        del self._hearers[subscription._id]  # noqa: SLF001
        await subscription.unsubscribe()

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        heard = self._hearers.get(sid)
        if heard is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        found = await self._process_headers(headers)
        try:
            heard(Msg(self, subject.decode(), reply.decode(), data, found))
        except Exception:  # the connection would end with it
            _logger.exception("A message on %r was not understood", subject)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        if headers is None or not headers.startswith(_FIRST_LINE):
            found: dict[str, str] | None = await super()._process_headers(headers)
            return found
        lines = headers[len(_FIRST_LINE) : -4].decode("utf-8", "replace").split("\r\n")
        try:
            return dict([line.split(": ", 1) for line in lines])
        except ValueError:  # no blank after a colon
            pairs = [line.partition(":") for line in lines if line]
            return {name: value.strip() for name, _, value in pairs}


async def _unheard(_: Msg) -> None:
    """Nothing: the messages of this subscription are heard as they are read."""


class Sent(NamedTuple):
    """A message that is answered."""

    subject: str
    body: bytes
    headers: Mapping[str, str]


class _Round:
    """Messages that were sent together."""

    __slots__ = ("answers", "done", "missing")

    def __init__(self, size: int) -> None:
        self.answers: list[Msg | None] = [None] * size
        self.missing = size
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Replies:
    """Sends messages and collects their answers."""

    def __init__(self) -> None:
        self._client: Connection | None = None
        self._inbox = ""
        self._number = 0
        self._rounds: dict[str, _Round] = {}

    async def ask(
        self, client: Connection, messages: Sequence[Sent], wait: float
    ) -> list[Msg | None]:
        """Send messages; return the answers in their order, None for each that did not come."""
        if self._client is not client:
            self._client, self._inbox = client, client.new_inbox()
            await client.hear(f"{self._inbox}.*.*", self._heard)
        self._number += 1
        number = str(self._number)
        self._rounds[number] = current = _Round(len(messages))
        try:
            inbox = f"{self._inbox}.{number}."
            for place, (subject, body, headers) in enumerate(messages):
                await client.send(subject, body, inbox + str(place), headers)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await client.flush_now()
                    await current.done
        finally:
            del self._rounds[number]
        return current.answers

    def _heard(self, message: Msg) -> None:
        _, number, place = message.subject.rsplit(".", 2)
        current = self._rounds.get(number)
        if current is None or current.answers[int(place)] is not None:
            return
        current.answers[int(place)] = message
        current.missing -= 1
        if not current.missing and not current.done.done():
            current.done.set_result(None)

    def close(self) -> None:
        """Let those who wait know that no answer will come."""
        for current in self._rounds.values():
            if not current.done.done():
                current.done.set_exception(nats_errors.ConnectionClosedError())
        self._client = None


class Deliveries:
    """The pulls of one consumer, one at a time, and one that may stand open between them."""

    def __init__(self, client: Connection, subject: str) -> None:
        self._client, self._subject = client, subject
        #: Until when a pull stands open, by the monotonic clock; what returns its delivery.
        self._stands_until = 0.0
        self._give_back: GiveBack | None = None
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._number = 0
        self._limit = 0
        #: Deliveries that no pull has returned yet.
        self._taken: list[Msg] = []
        self._done: asyncio.Future[str] | None = None
        #: Gives back what no pull has taken.
        self._overdue: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()

    async def pull(
        self,
        wanted: Mapping[str, Any],
        limit: int,
        wait: float,
        first: float = 0.0,
        give_back: GiveBack | None = None,
    ) -> list[Msg]:
        """Return up to `limit` deliveries; raise an error of the client if no server answers.

        While a pull stands open, the delivery that is to come within `first` seconds is its own.
        `give_back` is called with deliveries that no pull has returned.
        """
        async with self._turn:
            self._give_back = give_back or self._give_back
            try:
                await self._listen()
                if not self._taken and first and self.stands:
                    await self._await_delivery(first)
                if not self._taken:  # no pull stands open, or it has ended with its server
                    await self._pull(wanted, limit, wait)
                taken, self._taken = self._taken[:limit], self._taken[limit:]
            finally:  # also if the caller is cancelled
                self._keep_for_a_moment()
            return taken

    async def stand(self, seconds: float, give_back: GiveBack) -> None:
        """Let the server deliver the next message at once, if it comes within these seconds.

        `give_back` is called with it if no pull takes it.
        """
        if self.stands:
            return
        await self._listen()
        self._stands_until, self._give_back = time.monotonic() + seconds, give_back
        body = json.dumps({"batch": 1, "expires": int(seconds * 1e9)}).encode()
        await self._send(body, _STANDING)
        await self._client.flush_soon()

    async def _send(self, body: bytes, number: str) -> None:
        await self._client.send(self._subject, body, f"{self._inbox}.{number}", {})

    async def _listen(self) -> None:
        if not self._inbox:
            inbox = self._client.new_inbox()
            self._subscription = await self._client.hear(f"{inbox}.*", self._heard)
            self._inbox = inbox

    async def _await_delivery(self, seconds: float) -> None:
        self._limit = 1
        self._done = asyncio.get_running_loop().create_future()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._done
        finally:
            self._done = None

    @property
    def stands(self) -> bool:
        """Whether a pull stands open."""
        return time.monotonic() < self._stands_until

    async def withdraw(self) -> None:
        """Let the server deliver nothing more; what it has sent before is still heard."""
        subscription, self._subscription, self._inbox = self._subscription, None, ""
        if subscription is not None:
            await subscription.unsubscribe()

    def close(self) -> None:
        """Give back what no pull has taken."""
        self._stands_until = 0.0
        if self._taken and self._give_back is not None:
            taken, self._taken = self._taken, []
            self._give_back(taken)

    def _keep_for_a_moment(self) -> None:
        """Let the next pull have what is left here; it is given back if none comes."""
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self._taken:
            loop = asyncio.get_running_loop()
            self._overdue = loop.call_later(_OVERDUE, self._return_overdue)

    def _return_overdue(self) -> None:
        if self._done is None:
            self.close()

    async def _pull(self, wanted: Mapping[str, Any], limit: int, wait: float) -> None:
        self._number += 1
        self._limit = limit
        self._done = done = asyncio.get_running_loop().create_future()
        body = json.dumps({**wanted, "batch": limit}).encode()
        try:
            await self._send(body, str(self._number))
            async with asyncio.timeout(wait):
                await self._client.flush_now()
                status = await done
        except TimeoutError as error:
            if not self._taken:
                raise nats_errors.TimeoutError from error
            return
        finally:
            self._done = None
        if status == _NO_RESPONDERS and not self._taken:
            raise nats_errors.NoRespondersError

    def _heard(self, message: Msg) -> None:
        done = self._done
        if message.reply:
            self._taken.append(message)
            self._stands_until = 0.0
            if done is None:
                self._keep_for_a_moment()
            if len(self._taken) < self._limit:
                return
        elif message.subject.endswith(f".{_STANDING}"):
            self._stands_until = 0.0
            return
        elif not message.subject.endswith(f".{self._number}"):
            return  # the end of an earlier pull
        if done is not None and not done.done():
            done.set_result("" if message.reply else (message.headers or {}).get("Status", ""))
