"""The bare loop: the least that nats-py costs with a fence and with events, and no Trellis at all.

Fetch 100 work messages; publish `started` of each and remember its sequence; call the handler;
publish `completed` of each, which the server refuses unless that `started` is still the last event
of the job; acknowledge, and wait for the answers. Publishes are pipelined: one inbox, a number per
answer, one future per batch. The streams are those of a deployment of Trellis, so that the server
does the same work; nothing else of Trellis is used.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NoMessage

from bench.peers.protocol import Order, stamped, started

#: The first token of all subjects, and the beginning of the names of the streams.
PREFIX: Final = "bare"
CONSUMER: Final = "bench=noop"
_STREAM: Final = f"{PREFIX}_JOBS_WORK"
_BATCH: Final = 100
_PAGE: Final = 1000
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"

#: Subject, body and headers.
Publish = tuple[str, bytes, dict[str, str] | None]


class Publisher:
    """Publishes many messages at once and waits for all answers."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._answers: list[bytes] = []
        self._missing = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        """Listen for answers."""
        await self._client.subscribe(f"{self._inbox}.*", cb=self._heard)

    async def _heard(self, message: Msg) -> None:
        self._answers[int(message.subject.rpartition(".")[2])] = message.data
        self._missing -= 1
        if not self._missing:
            self._done.set_result(None)

    async def publish(self, messages: Sequence[Publish]) -> list[bytes]:
        """Publish messages; return the answers in their order."""
        self._answers, self._missing = [b""] * len(messages), len(messages)
        self._done = asyncio.get_running_loop().create_future()
        for number, (subject, body, headers) in enumerate(messages):
            await self._client.publish(subject, body, f"{self._inbox}.{number}", headers)
        await self._done
        return self._answers

    async def store(self, messages: Sequence[Publish]) -> list[int]:
        """Publish messages to a stream; return their sequences."""
        answers = [json.loads(answer) for answer in await self.publish(messages)]
        for answer in answers:
            if "error" in answer:
                raise RuntimeError(f"A message was refused: {answer['error']}")
        return [answer["seq"] for answer in answers]


def _event(job: str, kind: str) -> str:
    return f"{PREFIX}.jobs.bench.noop.{job}.{kind}"


class Jobs:
    """Creates jobs."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    async def create(self, order: Order) -> None:
        await self.create_many([order])

    async def create_many(self, orders: Sequence[Order]) -> None:
        for start in range(0, len(orders), _PAGE):
            page = orders[start : start + _PAGE]
            messages: list[Publish] = [
                (_event(secrets.token_hex(12), "created"), json.dumps(order).encode(), None)
                for order in page
            ]
            await self._publisher.store(messages)

    async def stamp(self, sent: int) -> None:
        await self.create({"sent": sent})


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Jobs]:
    connection = await nats.connect(url)
    publisher = Publisher(connection)
    await publisher.open()
    try:
        yield Jobs(publisher)
    finally:
        await connection.close()


async def work(url: str) -> None:
    """Work until the process is asked to end."""
    connection = await nats.connect(url)
    stream = connection.jetstream()
    events = Publisher(connection)
    await events.open()
    subject = f"{PREFIX}.work.bench.noop"
    pulled = await stream.pull_subscribe(subject, CONSUMER, _STREAM)
    while True:
        try:
            messages = await pulled.fetch(_BATCH, timeout=1)
        except NoMessage:
            continue
        jobs = [_job_of(message) for message in messages]
        begun: list[Publish] = [
            (_event(job, "started"), b'{"attempt":1,"worker":"bare"}', None) for job in jobs
        ]
        sequences = await events.store(begun)
        for message in messages:
            _handle(json.loads(message.data))
        ended: list[Publish] = [
            (
                _event(job, "completed"),
                b'{"attempt":1,"result":null}',
                {_EXPECTED: str(sequence), f"{_EXPECTED}-Subject": _event(job, "*")},
            )
            for job, sequence in zip(jobs, sequences, strict=True)
        ]
        await events.store(ended)
        await events.publish([(message.reply, b"+ACK", None) for message in messages])


def _job_of(message: Msg) -> str:
    source = (message.headers or {})["Nats-Stream-Source"].split(" ")[4]
    return source.split(".")[4]


def _handle(order: dict[str, Any]) -> None:
    if "sent" in order:
        stamped(order["sent"])
    else:
        started()
