"""Lanes: the work messages of each job type, pulled for all demanded types at the same time.

Each type has a consumer of the work queue, made by the first worker that claims it. A type is asked
when there was a hint at work of it, when it had more than the last pull took, and otherwise
twice a second: a repeated delivery has no hint.

A worker that has room for more than there is lets the server deliver the next job at once: a pull
stands open for each type that has just had work. What it delivers while this worker has become busy
is given back after a moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from nats.aio.msg import Msg

from trellis.core.durations import SECOND, Micros
from trellis.core.names import check_service, check_type
from trellis.core.policy import Policy
from trellis.engines.demand import Demand
from trellis.engines.jetstream.claim_limits import ClaimLimits
from trellis.engines.jetstream.hints import Listener, Work, hint, read_work
from trellis.engines.jetstream.message import UNREADABLE
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import consumer_of
from trellis.errors import EngineError, EngineUnavailable

T = TypeVar("T")
_logger = logging.getLogger(__name__)
#: How long a delivery may go without a sign of its worker, unless its type has a longer
#: `activity_timeout` (`ackWaitMs` of a contract); and how often it is repeated.
ACK_WAIT: Final = 30 * SECOND
MAX_DELIVERIES: Final = 5
#: After how many seconds a type is asked although there was no hint.
_ASK_AGAIN: Final = 0.5
#: How many seconds a pull stands open, of types that had work within so many seconds.
_STANDS: Final = 1.0
_ACTIVE: Final = 10.0
#: After how many seconds a pull is sent that is to stand open: the jobs of a claim start first.
_SOON: Final = 0.002
#: How many seconds after its hint a work message is there at the latest, as a rule.
_VISIBLE: Final = 0.005


class Lane:
    """One type of one demand."""

    def __init__(self, demand: int, service: str, job_type: str, policy: Policy | None) -> None:
        self.demand, self.service, self.type = demand, service, job_type
        self.policy = policy
        #: Whether the last pull of this claim took all that was there.
        self.is_empty = False


class Lanes:
    """The lanes of this process."""

    def __init__(self, store: Store, listener: Listener) -> None:
        self._store, self._listener = store, listener
        #: Consumers that this process has made, and how long each waits for an acknowledgement.
        self._consumers: dict[tuple[str, str], Micros] = {}
        #: When each type was last asked and had no more, by the monotonic clock.
        self._emptied: dict[tuple[str, str], float] = {}
        self._turn = 0
        #: When each type last had work, by the monotonic clock.
        self._active: dict[tuple[str, str], float] = {}
        #: Pulls that are about to be sent and to stand open, by their consumers.
        self._standing: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, demands: Sequence[Demand]) -> list[Lane]:
        """Return the lanes that may have work, in the order in which they share a claim."""
        now, is_heard = time.monotonic(), self._listener.hears_work
        lanes = []
        for index, demand in enumerate(demands):
            for job_type in demand.types:
                name = (demand.service, job_type)
                is_hinted = self._listener.is_ready(*name)
                is_due = now - self._emptied.get(name, 0.0) >= _ASK_AGAIN
                if is_hinted or is_due or not is_heard:
                    lanes.append(Lane(index, *name, demand.policy_of(job_type)))
        self._turn += 1
        start = self._turn % len(lanes) if lanes else 0
        return lanes[start:] + lanes[:start]

    async def pull(
        self, lanes: Sequence[Lane], left: Sequence[int], limit: int, limits: ClaimLimits | None
    ) -> list[tuple[Work, int]]:
        """Return work messages, with the index of their demand: at most `limit` in all."""
        room, of_demand = limit, list(left)
        found: list[tuple[Work, int]] = []
        while room > 0:
            sizes = _sizes([each for each in lanes if not each.is_empty], of_demand, room, limits)
            if not sizes:
                break
            answers = await _each(self._pull(lane, size) for lane, size in sizes.items())
            for lane, works in zip(sizes, answers, strict=True):
                taken = [] if isinstance(works, BaseException) else works
                if limits is not None:
                    limits.pull(lane.service, lane.type, len(taken) - sizes[lane])
                room -= len(taken)
                of_demand[lane.demand] -= len(taken)
                found += [(work, lane.demand) for work in taken]
            failed = [each for each in answers if isinstance(each, BaseException)]
            # What was delivered is not delivered again soon: it is returned in spite of an error.
            if failed and (not found or not isinstance(failed[0], EngineError)):
                raise failed[0]
            if failed:
                break
        return found

    async def _pull(self, lane: Lane, limit: int) -> list[Work]:
        link, stream = self._store.link, self._store.subjects.work
        await self.provide_consumer(lane.service, lane.type, lane.policy)
        # A hint may come a moment before the consumer knows of the message.
        wait = _VISIBLE if self._listener.is_ready(lane.service, lane.type) else 0.0
        self._listener.ask(lane.service, lane.type)
        consumer = consumer_of(lane.service, lane.type)
        try:
            messages = await link.pull(
                stream, consumer, limit, wait, patience=0, give_back=self._give_back
            )
        except EngineUnavailable:
            # It may have been deleted, alone or with its stream.
            self._consumers.pop((lane.service, lane.type), None)
            await self.provide_consumer(lane.service, lane.type, lane.policy)
            messages = await link.pull(stream, consumer, limit, wait, give_back=self._give_back)
        lane.is_empty = len(messages) < limit
        name = (lane.service, lane.type)
        if messages:
            self._active[name] = time.monotonic()
        if lane.is_empty:
            self._emptied[name] = time.monotonic()
        else:
            self._emptied.pop(name, None)
        return [work for message in messages if (work := await self._read(message)) is not None]

    async def _read(self, message: Msg) -> Work | None:
        """Return what a work message says, if this version can read it.

        One that it cannot read is delivered again, perhaps to a newer version.
        """
        try:
            work = read_work(self._store.subjects, message)
        except UNREADABLE:
            _logger.exception("A work message on %s cannot be read", message.subject)
            return None
        if work is None:
            await self._store.link.tell(message.reply, b"+TERM")
        return work

    def stand_soon(self, lanes: Sequence[Lane]) -> None:
        """Let the server deliver the next job of types that have just had some, without a pull.

        This is sent a moment later, so that no handler waits for it.
        """
        if not self._listener.hears_work:
            return
        now, loop = time.monotonic(), asyncio.get_running_loop()
        for lane in lanes:
            last = self._active.get((lane.service, lane.type), -_ACTIVE)
            if lane.is_empty and now - last < _ACTIVE:
                consumer = consumer_of(lane.service, lane.type)
                if consumer not in self._standing:
                    self._standing[consumer] = loop.call_later(_SOON, self._stand, consumer)

    def _stand(self, consumer: str) -> None:
        del self._standing[consumer]
        link, stream = self._store.link, self._store.subjects.work
        self._go_on(link.stand(stream, consumer, _STANDS, self._give_back))

    def _give_back(self, messages: list[Msg]) -> None:
        """Let other workers have messages that this one does not claim."""
        self._go_on(self._return(messages))

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _return(self, messages: list[Msg]) -> None:
        with suppress(EngineError):  # the server repeats the delivery a little later
            for message in messages:
                work = await self._read(message)
                if work is not None:
                    await self._store.link.write(hint(self._store.subjects.due(work.job)))
                await self._store.link.tell(message.reply, b"+ACK")

    async def close(self) -> None:
        """Give back what was delivered and is not claimed; the connection closes afterwards."""
        for timer in self._standing.values():
            timer.cancel()
        self._standing.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.link.give_back()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def provide_consumer(
        self, service: str, job_type: str, policy: Policy | None = None
    ) -> None:
        """Make the consumer of a type, or change it to what the worker declares."""
        silence = None if policy is None else policy.activity_timeout
        ack_wait = max(ACK_WAIT, silence or 0)
        known = self._consumers.get((service, job_type))
        if known == ack_wait or (known is not None and policy is None):
            return
        check_service(service)  # names come from programs over HTTP, too
        check_type(job_type)
        name, stream = consumer_of(service, job_type), self._store.subjects.work
        subject = self._store.subjects.work_of(service, job_type)
        await self._store.link.api(
            f"CONSUMER.CREATE.{stream}.{name}.{subject}",
            {
                "stream_name": stream,
                "config": {
                    "name": name,
                    "durable_name": name,
                    "filter_subject": subject,
                    "ack_policy": "explicit",
                    "ack_wait": ack_wait * 1000,
                    "max_deliver": MAX_DELIVERIES,
                    "max_ack_pending": -1,
                },
            },
        )
        self._consumers[service, job_type] = ack_wait


async def _each(pulls: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """Return the answers or errors of pulls that run at the same time; one needs no task."""
    first, *others = pulls
    if others:
        return await asyncio.gather(first, *others, return_exceptions=True)
    try:
        return [await first]
    except EngineError as error:
        return [error]


def _sizes(
    lanes: Sequence[Lane], left: Sequence[int], room: int, limits: ClaimLimits | None
) -> dict[Lane, int]:
    """Return how many messages to ask each lane for: all share the room, in their order."""
    sizes: dict[Lane, int] = {}
    of_demand = list(left)
    for place, lane in enumerate(lanes):
        share = -(-room // (len(lanes) - place))
        size = min(share, of_demand[lane.demand])
        allowed = None if limits is None else limits.room(lane.service, lane.type)
        if allowed is not None:
            size = min(size, -(-allowed // (len(lanes) - place)))
        if size > 0:
            sizes[lane] = size
            if limits is not None:
                limits.pull(lane.service, lane.type, size)
            room -= size
            of_demand[lane.demand] -= size
    return sizes
