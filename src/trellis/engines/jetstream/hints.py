"""Hints through NATS: work messages that say which job to look at, and what `watch` yields.

Every event after which a job may start is a work message by itself: the feed of the work queue
takes it from the stream of the jobs. A job that is looked at before its time is scheduled: the
server publishes the next work message about it when its time has come. A hint proves nothing; the
fence decides what starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.core.states import WAITING
from trellis.engines.hints import Hints
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.message import StoredEvent, decode
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import JobName, Subjects, schedule_time
from trellis.engines.values import Topic
from trellis.engines.wire import dump

_SOURCE: Final = "Nats-Stream-Source"
#: The header of a message that the server has published by a schedule.
_SCHEDULER: Final = "Nats-Scheduler"
#: The queue for which a job is parked, as a header of its schedule.
QUEUE: Final = "Trellis-Queue"
#: How many work messages of the job the server has given up before this hint.
GIVEN_UP: Final = "Trellis-Given-Up"
#: How long a hint that the server has published may wait to be looked at.
_KEPT: Final = "1h"
#: The same of a parked job, which comes again and again.
_KEPT_PARKED: Final = "10m"
#: Events after which a job may start, and events that end one.
STARTABLE: Final = ("created", "retry", "retried", "adjusted", "resolved")
ENDS: Final = (
    "completed", "failed", "cancelled", "expired", "skipped", "stale", "dead", "dismissed",
)  # fmt: skip


class Work(NamedTuple):
    """A delivered work message."""

    job: JobName
    #: Where it is acknowledged.
    ack: str
    #: The event that it is, with which the job can be started at once; None: it only names a job.
    event: StoredEvent | None
    #: The run time that has come, if it says so.
    run_at: Instant | None


def read_work(subjects: Subjects, message: Msg) -> Work | None:
    """Return what a work message says; None if it names no job."""
    headers: Mapping[str, str] = message.headers or {}
    sequence, subject = _origin_of(headers)
    named = None if sequence is None else _job_in(subjects, subject)
    if sequence is None or named is None:
        return None
    if subjects.event_of(subject) is None:
        return Work(named, message.reply, None, _run_at(message.data))
    stored = decode(named, sequence, headers, message.data)
    event = stored if isinstance(stored, StoredEvent) else None
    return Work(named, message.reply, event, None)


def job_of_work(subjects: Subjects, headers: Mapping[str, str]) -> JobName | None:
    """Return which job a work message is about, with all its names; None: it names no job."""
    return _job_in(subjects, _origin_of(headers)[1])


def times_given_up(subjects: Subjects, headers: Mapping[str, str]) -> int:
    """Return how many work messages of the job were given up before this hint.

    Only hints of the admin runtime count them. A user of a service can write events and hints of
    its own jobs, and schedules of hints about any job: the server adds a header to those.
    """
    is_hint = _origin_of(headers)[1].startswith(f"{subjects.prefix}.due.")
    return int(headers.get(GIVEN_UP, "0")) if is_hint and _SCHEDULER not in headers else 0


def _origin_of(headers: Mapping[str, str]) -> tuple[int | None, str]:
    """Return the sequence and the subject of the message from which a work message was made."""
    # "<stream> <sequence> <filters> <transforms> <subject> <token>": filters have form feeds.
    parts = headers.get(_SOURCE, "").split(" ")
    if len(parts) < 5 or not parts[1].isdecimal():  # noqa: PLR2004
        return None, ""
    return int(parts[1]), parts[4]


def _job_in(subjects: Subjects, subject: str) -> JobName | None:
    tokens = subject.split(".")
    if tokens[1:2] == ["due"]:
        return JobName(tokens[2], tokens[3], JobId(tokens[4]))
    return subjects.job_of(subject)


def message_of(ack: str) -> str:
    """Return which work message is acknowledged here: its sequence, the same in each delivery.

    "$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<deliveries>.<sequence>...": the first form
    has nine tokens.
    """
    tokens = ack.split(".")
    return tokens[5 if len(tokens) == 9 else 7]  # noqa: PLR2004


def _run_at(body: bytes) -> Instant | None:
    return json.loads(body).get("runAt") if body else None


def schedule(subjects: Subjects, job: JobName, at: Instant, run_at: Instant, queue: str) -> Message:
    """Return the message that makes the server hint at a job at a moment; it replaces another one.

    With a queue, the job is parked because of that queue, and is hinted at when the queue opens.
    """
    headers = {
        "Nats-Schedule": schedule_time(at),
        "Nats-Schedule-Target": subjects.due(job),
        "Nats-Schedule-TTL": _KEPT_PARKED if queue else _KEPT,
    }
    if queue:
        headers[QUEUE] = queue
    return Message(subjects.scheduled(job), dump({"runAt": run_at}), headers)


async def hint_later(store: Store, current: Current, at: Instant, queue: str = "") -> None:
    """Schedule a hint at a waiting job, at a moment or at its run time if that is later.

    This replaces any other schedule of the job, also a newer one: a work message can be old when it
    is delivered, and two workers may schedule at the same time. So the job is read afterwards. If
    its run time is another one, it is scheduled again; the last of all writers does this, too.
    """
    while True:
        run_at = current.head.run_at
        await store.link.write(
            schedule(store.subjects, current.job, max(at, run_at), run_at, queue)
        )
        found = await store.read(current.job)
        if not isinstance(found, Current) or found.head.state not in WAITING:
            return
        if found.head.run_at == run_at:
            return
        current, at, queue = found, found.head.run_at, ""


async def open_parked(link: Link, subjects: Subjects, service: str, queue: str) -> None:
    """Hint at the jobs that were parked because of a queue, now that it is open.

    Without this, the server hints at each of them a little later.
    """
    wanted = f"{subjects.prefix}.later.{service}.*.*"
    for got in await link.last_many(subjects.later, [wanted]):
        if got.headers.get(QUEUE) == queue:
            await link.write(hint(got.headers["Nats-Schedule-Target"], got.body))


def hint(due: str, body: bytes = b"", given_up: int = 0) -> Message:
    """Return a hint at a job, as a schedule would publish it; it is kept as long.

    `given_up`: how many work messages of the job the server has given up before.
    """
    return Message(due, body, {"Nats-TTL": _KEPT, GIVEN_UP: str(given_up)})


class Listener:
    """Turns what the server publishes by itself into hints for this process."""

    def __init__(self, store: Store, hints: Hints) -> None:
        self._store, self._hints = store, hints
        self._topics: set[Topic] = set()
        #: The types that have work since they were last asked, by service and name.
        self._ready: set[tuple[str, str]] = set()

    @property
    def hears_work(self) -> bool:
        """Whether this process hears of all work from now on."""
        return "ready" in self._topics

    def is_ready(self, service: str, job_type: str) -> bool:
        """Return whether there was a hint at work of this type since it was last asked."""
        return (service, job_type) in self._ready

    def ask(self, service: str, job_type: str) -> None:
        """Forget the hints at this type: it is asked now."""
        self._ready.discard((service, job_type))

    async def open(self) -> None:
        """Listen for changes of settings."""

        def heard(_: Msg) -> None:
            self._store.hear()
            self._hints.publish(("ready",))

        await self._store.link.listen(self._store.subjects.feed("trellis", "setting", ">"), heard)

    async def listen(self, topics: Iterable[Topic]) -> None:
        """Listen for these topics from now on."""
        if "ready" in topics and "ready" not in self._topics:
            await self._store.link.listen(self._store.subjects.woken(">"), self._hear_work)
            self._topics.add("ready")
        if "settled" in topics and "settled" not in self._topics:
            self._topics.add("settled")
            for kind in ENDS:
                await self._hear_of(kind, "settled")
        if "asked" in topics and "asked" not in self._topics:
            self._topics.add("asked")
            for kind in ("cancelRequested", "cancelled"):
                await self._hear_of(kind, "asked")

    def _hear_work(self, message: Msg) -> None:
        service, _, job_type = message.subject.partition(".woken.")[2].partition(".")
        if job_type:
            self._ready.add((service, job_type))
        self._hints.publish(("ready",))

    async def _hear_of(self, kind: str, topic: Topic) -> None:
        def heard(_: Msg) -> None:
            self._hints.publish((topic,))

        await self._store.link.listen(self._store.subjects.feed("*", "*", "*", kind), heard)

    def close(self) -> None:
        """The connection is closed: listen again after the next opening."""
        self._topics.clear()
        self._ready.clear()
