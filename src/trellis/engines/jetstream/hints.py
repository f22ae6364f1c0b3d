"""Hints through NATS: work messages that say which job to look at, and what `watch` yields.

Every event after which a job may start is a work message by itself: the feed of the work queue
takes it from the stream of the jobs. A job that is looked at before its time is scheduled: the
server publishes the next work message about it when its time has come. A hint proves nothing; the
fence decides what starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from trellis.core.durations import Instant
from trellis.engines.hints import Hints
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.message import StoredEvent, decode
from trellis.engines.jetstream.subjects import JobName, Subjects, schedule_time
from trellis.engines.values import Topic
from trellis.engines.wire import dump

_SOURCE: Final = "Nats-Stream-Source"
#: The queue for which a job is parked, as a header of its schedule.
QUEUE: Final = "Trellis-Queue"
#: How long a hint that the server has published may wait to be looked at.
_KEPT: Final = "1h"
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
    #: How often it was delivered, this time included.
    deliveries: int
    #: The event that it is, with which the job can be started at once; None: it only names a job.
    event: StoredEvent | None
    #: The run time that has come, if it says so.
    run_at: Instant | None


def read_work(subjects: Subjects, message: Msg) -> Work | None:
    """Return what a work message says; None if it names no job."""
    headers: Mapping[str, str] = message.headers or {}
    # "<stream> <sequence> <filters> <transforms> <subject> <token>": filters have form feeds.
    parts = headers.get(_SOURCE, "").split(" ")
    if len(parts) < 5 or not parts[1].isdecimal():  # noqa: PLR2004
        return None
    subject, answer = parts[4], message.reply.split(".")
    # "$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<deliveries>...": the first form has nine.
    deliveries = int(answer[4 if len(answer) == 9 else 6])  # noqa: PLR2004
    tokens = subject.split(".")
    if tokens[1] == "due":
        job = JobName(tokens[2], tokens[3], tokens[4])  # type: ignore[arg-type] # an id
        return Work(job, message.reply, deliveries, None, _run_at(message.data))
    named = subjects.job_of(subject)
    if named is None:
        return None
    if subjects.event_of(subject) is None:
        return Work(named, message.reply, deliveries, None, _run_at(message.data))
    stored = decode(named, int(parts[1]), headers, message.data)
    event = stored if isinstance(stored, StoredEvent) else None
    return Work(named, message.reply, deliveries, event, None)


def _run_at(body: bytes) -> Instant | None:
    return json.loads(body).get("runAt") if body else None


def schedule(subjects: Subjects, job: JobName, at: Instant, run_at: Instant, queue: str) -> Message:
    """Return the message that makes the server hint at a job at a moment; it replaces another one.

    With a queue, the job is parked because of that queue, and is hinted at when the queue opens.
    """
    headers = {
        "Nats-Schedule": schedule_time(at),
        "Nats-Schedule-Target": subjects.due(job),
        "Nats-Schedule-TTL": _KEPT,
    }
    if queue:
        headers[QUEUE] = queue
    return Message(subjects.scheduled(job), dump({"runAt": run_at}), headers)


async def open_parked(link: Link, subjects: Subjects, service: str, queue: str) -> None:
    """Hint at the jobs that were parked because of a queue, now that it is open.

    Without this, the server hints at each of them a little later.
    """
    wanted = f"{subjects.prefix}.later.{service}.*.*"
    for got in await link.last_many(subjects.later, [wanted]):
        if got.headers.get(QUEUE) == queue:
            await link.write(Message(got.headers["Nats-Schedule-Target"], got.body))


class Listener:
    """Turns the live feed into hints for the watchers of this process."""

    def __init__(self, link: Link, subjects: Subjects, hints: Hints) -> None:
        self._link, self._subjects, self._hints = link, subjects, hints
        self._listens = False

    async def listen(self) -> None:
        """Begin, once."""
        if self._listens:
            return
        self._listens = True
        feed = self._subjects.feed
        subjects: dict[str, Topic] = {
            **{feed("*", "*", "*", kind): "ready" for kind in STARTABLE},
            **{feed("*", "*", "*", kind): "settled" for kind in ENDS},
            feed("*", "*", "*", "ready", "*"): "ready",
            feed("trellis", "setting", ">"): "ready",
            f"{self._subjects.prefix}.woken.>": "ready",
        }
        for subject, topic in subjects.items():
            await self._listen(subject, topic)

    async def _listen(self, subject: str, topic: Topic) -> None:
        async def heard(_: Msg) -> None:
            self._hints.publish((topic,))

        await self._link.listen(subject, heard)
