"""The connection to NATS: requests, deliveries of consumers, and live messages.

How it writes is in `writing.py`, how it reads messages of streams in `reading.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from nats import errors as nats_errors
from nats.aio.msg import Msg

from trellis.core.durations import Instant, Micros
from trellis.engines.clock import uptime
from trellis.engines.jetstream.access import Access, check_login
from trellis.engines.jetstream.answers import (
    LEADERLESS,
    Expect,
    Got,
    Message,
    Outdated,
    WriteResult,
    Written,
    answer_in,
    heed,
    pause,
    read_instant,
    refusal_of,
    unanswered,
    without_jetstream,
)
from trellis.engines.jetstream.replies import Connection, Deliveries, GiveBack, Sent
from trellis.engines.jetstream.url import servers_of
from trellis.engines.jetstream.writing import ANSWER, PATIENCE, UNREACHABLE, Writes
from trellis.errors import AccessDenied, EngineClosed, EngineError, EngineUnavailable

#: How many messages an answer has, if it has more than one.
PARTS: Final = "Trellis-Parts"
#: Seconds until a connection is dropped that cannot be closed.
_CLOSING: Final = 2.0
#: How often the server is asked whether it is there, in seconds: a node that stands still, or whose
#: machine is gone, closes no connection. The second question without an answer breaks it.
_PING_EVERY: Final = 3


class Link(Writes):
    """One connection."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        name: str = "trellis",
        patience: float = ANSWER,
        **options: Any,  # noqa: ANN401 - those of the client
    ) -> None:
        super().__init__()
        self._servers, login = servers_of(servers)
        self._name, self._options = name, login | options
        self._patience = patience
        self._client: Connection | None = None
        #: What the server denies to the user.
        self.access = Access()
        #: By the subject on which the deliveries of a consumer are asked for.
        self._deliveries: dict[str, Deliveries] = {}

    async def open(self) -> None:
        """Connect; doing it twice is fine."""
        if self.is_open:
            return
        self._client, client = None, Connection()
        try:
            # Without this limit the client tries until a server is there.
            async with asyncio.timeout(self._patience):
                await client.connect(
                    self._servers,
                    name=self._name,
                    error_cb=self._remember,
                    reconnected_cb=self.access.begin_again,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    ping_interval=_PING_EVERY,
                    pending_size=0,
                    **self._options,
                )
        except AccessDenied:
            await client.close()
            raise
        except (nats_errors.Error, OSError) as error:
            await client.close()
            reason = str(error) or self._latest_error or type(error).__name__
            raise EngineUnavailable(
                f"No NATS server answers at {', '.join(self._servers)}: {reason}. Nothing was "
                "stored. Start the server, or correct the URL."
            ) from error
        self._client = client

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        self._replies.close()
        self._deliveries.clear()
        if client is not None:
            try:
                async with asyncio.timeout(_CLOSING):
                    await client.close()
            except TimeoutError:  # the server reads nothing
                client.abort()
                await client.close()

    async def _remember(self, error: Exception) -> None:
        self._latest_error = str(error) or type(error).__name__
        if self._client is None:
            check_login(self._latest_error, self._servers)
        self.access.hear(self._latest_error)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection; it may be about to be made again."""
        return self._client is not None and not self._client.is_closed

    @property
    def client(self) -> Connection:
        """The connection; raises `EngineClosed` when there is none."""
        if self._client is None or self._client.is_closed:
            raise EngineClosed("The engine is closed. Open it again.")
        return self._client

    @property
    def server(self) -> Mapping[str, Any]:
        """What the server said about itself when the connection began."""
        return self.client._server_info  # noqa: SLF001 - the client has no other way

    @property
    def version(self) -> tuple[int, int]:
        """The version of the server: major and minor."""
        found = self.client.connected_server_version
        return found.major, found.minor

    async def tell(self, subject: str, body: bytes = b"", **headers: str) -> None:
        """Publish without an answer: a hint, or the acknowledgement of a delivery.

        One that is lost costs time only, so an error here would hide that what it is about is
        stored: no hint comes, or a delivery is repeated and then found to be over.
        """
        with suppress(nats_errors.Error):
            await self.client.send(subject, body, "", headers)
            await self.client.flush_soon()

    async def flush(self) -> None:
        """Wait until the server has everything that was published."""
        try:
            # The ping of the client overtakes what it has not written yet; the second one does not.
            await heed(self.client.flush())
            await heed(self.client.flush())
        except nats_errors.Error as error:
            raise EngineUnavailable(f"The NATS server cannot be reached: {error}") from error

    async def api(
        self, verb: str, body: Mapping[str, Any] | None = None, *, wait: float = PATIENCE
    ) -> dict[str, Any]:
        """Call the JetStream API; raise `NatsRefused` if the server refuses."""
        end = time.monotonic() + wait
        subject, data = f"$JS.API.{verb}", b"" if body is None else json.dumps(body).encode()
        # A stream or a consumer without a leader does not answer, so the first tries are short.
        patience = min(wait, 1.0)
        while True:
            try:
                async with self.access.asking(subject):
                    (reply,) = await self._replies.ask(
                        self.client, [Sent(subject, data, {})], patience
                    )
                answer = answer_in(reply)
                if "error" not in answer:
                    return answer
                is_passing = answer["error"].get("err_code") in LEADERLESS
                if not is_passing or time.monotonic() > end:
                    raise refusal_of(verb, answer["error"])
            except nats_errors.ConnectionClosedError as error:
                raise EngineClosed("The engine was closed during a request.") from error
            except (*UNREACHABLE, nats_errors.TimeoutError) as error:
                if isinstance(error, nats_errors.NoRespondersError) and not self._has_jetstream:
                    text = f"The NATS server at {', '.join(self._servers)} has no JetStream."
                    raise without_jetstream(text) from error
                if time.monotonic() > end:
                    raise unanswered(verb, error) from error
            patience = min(2 * patience, ANSWER)
            await asyncio.sleep(pause(0))

    async def ask(self, subject: str, body: bytes, wait: float) -> Msg:
        """Send a request to another program; raises the errors of the client."""
        async with self.access.asking(subject):
            return await heed(self.client.request(subject, body, wait))

    async def ask_in_parts(self, subject: str, body: bytes, wait: float) -> list[Msg]:
        """Send a request to another program, whose answer may be more than one message."""
        inbox, found = self.client.new_inbox(), list[Msg]()
        async with self.access.asking(subject, inbox):
            subscription = await self.client.subscribe(inbox)
            try:
                await heed(self.client.publish(subject, body, reply=inbox))
                while not found or len(found) < int((found[0].headers or {}).get(PARTS, 1)):
                    found.append(await heed(subscription.next_msg(wait)))
                    if (found[0].headers or {}).get("Status") == "503":
                        raise nats_errors.NoRespondersError
            finally:
                await subscription.unsubscribe()
        return found

    async def listen(self, subject: str, heard: Callable[[Msg], None]) -> None:
        """Call a function with every message on these subjects from now on."""
        await self.client.hear(subject, heard)

    async def pull(
        self,
        stream: str,
        consumer: str,
        limit: int,
        wait: float = 0.0,
        *,
        patience: float = PATIENCE,
        give_back: GiveBack | None = None,
    ) -> list[Msg]:
        """Return up to `limit` messages that a consumer has; wait so long for the first.

        `patience`: for how many seconds it is asked again if no server answers for it. `give_back`
        is called with messages that come after the caller was cancelled.
        """
        wanted: dict[str, Any] = {"no_wait": True}
        if wait:
            wanted["expires"] = int(wait * 1e9)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        end = time.monotonic() + patience
        while True:
            try:
                deliveries = self._deliveries_of(subject)
                async with self.access.asking(subject):
                    return await deliveries.pull(wanted, limit, ANSWER + wait, wait, give_back)
            except (nats_errors.Error, OSError) as error:
                # In a cluster a new consumer has no leader for a moment, and leaders change.
                is_leaderless = isinstance(error, nats_errors.NoRespondersError)
                if not is_leaderless or time.monotonic() >= end:
                    raise unanswered(consumer, error) from error
            await asyncio.sleep(pause(0))

    async def stand(self, stream: str, consumer: str, seconds: float, give_back: GiveBack) -> None:
        """Have the next message of a consumer delivered at once; see `Deliveries.stand`."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        with suppress(nats_errors.Error, OSError, EngineError):  # the next pull says what is wrong
            await self._deliveries_of(subject).stand(seconds, give_back)

    async def give_back(self) -> None:
        """Take no more deliveries, and give back those that no pull has taken."""
        with suppress(nats_errors.Error, OSError, EngineError, TimeoutError):
            async with asyncio.timeout(_CLOSING):
                for deliveries in self._deliveries.values():
                    await deliveries.withdraw()
                if self._deliveries:  # what the server has sent until then is here afterwards
                    await self.flush()
        for deliveries in self._deliveries.values():
            deliveries.close()

    def _deliveries_of(self, subject: str) -> Deliveries:
        client = self.client
        if subject not in self._deliveries:
            self._deliveries[subject] = Deliveries(client, subject)
        return self._deliveries[subject]

    async def server_time(
        self, stream: str, *, wait: float = PATIENCE
    ) -> tuple[Instant, Micros, Micros]:
        """Return the server's time, and our uptime before and after it was read."""
        before = uptime()
        answer = await self.api(f"STREAM.INFO.{stream}", wait=wait)
        return read_instant(answer["ts"]), before, uptime()


__all__ = [
    "PARTS",
    "Expect",
    "Got",
    "Link",
    "Message",
    "Outdated",
    "WriteResult",
    "Written",
]
