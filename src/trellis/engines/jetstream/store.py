"""What is stored, as values: jobs from their first and last messages, and states by subject.

Jobs and the states that change together with them are in one stream; values that change alone
(sessions, claims, locks, declared types) are in another one that keeps the last message of each
subject. A value is read together with its sequence, which guards the next write of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, NamedTuple, TypeVar

from trellis.core.durations import Instant
from trellis.core.job import Definition, Head, JobId, JobRecord
from trellis.core.policy import before_claim, in_force
from trellis.engines.contracts import DeclaredType
from trellis.engines.jetstream.answers import expects
from trellis.engines.jetstream.link import Expect, Got, Link, Message, Outdated, Written
from trellis.engines.jetstream.message import (
    UNREADABLE,
    Created,
    StoredEvent,
    StoredRemoval,
    Wire,
    decode,
    name_of,
    record_of,
)
from trellis.engines.jetstream.subjects import JobName, Subjects, is_token
from trellis.engines.jetstream.time import Time
from trellis.engines.wire import Codec, codec_of, dump
from trellis.errors import Unreadable

T = TypeVar("T")
#: How many definitions, and how many sequences of jobs, are remembered.
_REMEMBERED: Final = 20_000
#: How many characters the payloads of the remembered jobs may have.
_ROOM: Final = 64_000_000
#: How many requests are on their way at once.
_AT_ONCE: Final = 64
_DECLARED: Final = codec_of(DeclaredType)
_logger = logging.getLogger(__name__)


class Current(NamedTuple):
    """A job as it is now."""

    job: JobName
    created: Created
    record: JobRecord
    #: Of its last lifecycle message: what the next one expects.
    sequence: int
    is_watched: bool
    #: When its journal last changed.
    at: Instant

    @property
    def head(self) -> Head:
        """The head of the job."""
        return self.record.head

    @property
    def definition(self) -> Definition:
        """The definition of the job."""
        return self.record.definition


class Value(NamedTuple, Generic[T]):
    """A last value, and the sequence that the next write of it expects."""

    value: T | None
    sequence: int


class Remembered(Generic[T]):
    """The values of jobs that were used last, as many as their texts leave room for."""

    def __init__(self, most: int = _REMEMBERED, room: int = _ROOM) -> None:
        self._most, self._room = most, room
        self._values: OrderedDict[int, tuple[T, int]] = OrderedDict()

    def get(self, row: int) -> T | None:
        """Return the value of a job, if it is remembered."""
        found = self._values.get(row)
        if found is None:
            return None
        self._values.move_to_end(row)
        return found[0]

    def put(self, row: int, value: T, size: int) -> None:
        """Remember a value with so many characters."""
        self.drop(row)
        self._values[row] = value, size
        self._room -= size
        while len(self._values) > self._most or (self._room < 0 and len(self._values) > 1):
            self.drop(next(iter(self._values)))

    def drop(self, row: int) -> None:
        """Forget a job."""
        _, size = self._values.pop(row, (None, 0))
        self._room += size


class Store:
    """The streams of one deployment."""

    def __init__(self, link: Link, subjects: Subjects, time: Time) -> None:
        self.link, self.subjects, self.time = link, subjects, time
        self._created = Remembered[Created]()
        self._limit = asyncio.Semaphore(_AT_ONCE)
        #: The errors about messages that were passed over.
        self._passed_over: set[str] = set()
        #: How many servers keep each message.
        self.replicas = 1
        #: How many changes of settings this process has made or heard of.
        self.setting_changes = 0

    def hear(self) -> None:
        """Settings have changed, or may have: this process reads them again."""
        self.setting_changes += 1

    async def refresh_time(self) -> None:
        """Look at the server's clock if the last look is old; see `Time.refresh`."""
        await self.time.refresh(self.link, self.subjects.state)

    async def learn_time(self) -> None:
        """Look at the server's clock."""
        await self.time.learn(self.link, self.subjects.state)

    # -- jobs ----------------------------------------------------------------------------------

    async def find(self, job_id: JobId) -> Current | StoredRemoval | None:
        """Return the job with this id, or that it was removed."""
        if not is_token(job_id):
            return None
        got = await self._last(self.subjects.identity(job_id))
        if got is None:
            return None
        stored = self._readable(got)
        if stored is None or not await self._is_alone(stored):
            job = await self._named(job_id, got)
            if job is not None and job != self.subjects.job_of(got.subject):
                return await self.read(job)
        return await self._current(stored or self.decode(got))

    async def find_many(self, ids: Sequence[JobId]) -> list[Current | StoredRemoval | None]:
        """Return the jobs with these ids, in that order."""
        return list(await asyncio.gather(*map(self.find, ids)))

    async def job(self, job_id: JobId) -> Current | None:
        """Return the job with this id, if it is there."""
        found = await self.find(job_id)
        return found if isinstance(found, Current) else None

    async def read(self, job: JobName) -> Current | StoredRemoval | None:
        """Return a job of which all names are known."""
        got = await self._last(self.subjects.fence(job))
        return None if got is None else await self._current(self.decode(got))

    async def at_row(self, row: int) -> Current | None:
        """Return the job whose first message has this sequence."""
        created = await self.created(row)
        if created is None:
            return None
        definition = created.definition
        found = await self.read(JobName(definition.service, definition.type, definition.id))
        is_same = isinstance(found, Current) and found.definition.row == row
        return found if isinstance(found, Current) and is_same else None

    async def _last(self, subject: str) -> Got | None:
        async with self._limit:
            return await self.link.last(self.subjects.jobs, subject)

    def _readable(self, got: Got) -> StoredEvent | StoredRemoval | None:
        """Return a lifecycle message as a value; None if this version cannot read it."""
        try:
            return self.decode(got)
        except Unreadable:
            return None

    async def _is_alone(self, stored: StoredEvent | StoredRemoval) -> bool:
        """Return whether nothing but the job of this message has its id.

        Who may write the messages of one service can use the id of another service's job in them.
        But the server has checked of most first messages that nothing had the id. So that first
        message is read and no other, and it is needed anyway.
        """
        if isinstance(stored, StoredRemoval):
            return False
        created = stored.created or self._created.get(stored.row)
        if created is None or not created.is_sole:
            async with self._limit:
                got = await self.link.get(self.subjects.jobs, stored.row)
            first = None if got is None else self._readable(got)
            created = first.created if isinstance(first, StoredEvent) else None
            if created is not None:
                self._remember(stored.row, created)
        return created is not None and created.is_sole and name_of(created.definition) == stored.job

    async def _named(self, job_id: JobId, last: Got) -> JobName | None:
        """Return which job an id names, whose messages end with this one: the first not removed."""
        start = 1
        while True:
            filters = self.subjects.identity(job_id)
            first = await self.link.next(self.subjects.jobs, filters, start) or last
            job = self.subjects.job_of(first.subject)
            if job is None or job == self.subjects.job_of(last.subject):
                return job
            newest = await self._last(self.subjects.fence(job))
            if newest is None or self.subjects.event_of(newest.subject) != "removed":
                return job
            start = newest.sequence + 1

    async def _current(self, stored: StoredEvent | StoredRemoval) -> Current | StoredRemoval | None:
        if isinstance(stored, StoredRemoval):
            self.time.saw(stored.at)
            return stored
        return await self.complete(stored)

    async def complete(self, latest: StoredEvent, *, declared: bool = True) -> Current | None:
        """Return the job that this is the last lifecycle message of.

        Unless `declared`, an unclaimed job has the policy of its creator alone.
        """
        created = latest.created or await self.created(latest.row)
        if created is None:
            return None  # removed since
        if name_of(created.definition) != latest.job:
            # Its writer may write the messages of this job, and not those of the other.
            raise Unreadable(
                f"Message {latest.sequence} of {self.subjects.jobs} is no event of a job that this "
                f"version of Trellis can read: {latest.row} is the first message of another job."
            )
        self._remember(latest.row, created)
        self.time.saw(latest.at)
        record = record_of(created, latest, await self._handed_on(created, latest))
        if declared and not latest.head.claims:
            record = await self._unclaimed(created, record)
        return Current(latest.job, created, record, latest.sequence, latest.is_watched, latest.at)

    def decode(self, got: Got) -> StoredEvent | StoredRemoval:
        """Return a lifecycle message as a value."""
        job = self.subjects.job_of(got.subject)
        if job is None:
            raise Unreadable(f"{got.subject} is no subject of a job.")
        try:
            stored = decode(job, got.sequence, got.headers, got.body)
            expected = expects(got.headers)
        except UNREADABLE as error:
            raise Unreadable(
                f"Message {got.sequence} of {self.subjects.jobs} on {got.subject} is no event that "
                f"this version of Trellis can read: {error}."
            ) from error
        if not isinstance(stored, StoredEvent) or stored.created is None:
            return stored
        is_sole = expected == Expect(0, self.subjects.identity(job.id))
        return stored._replace(created=stored.created._replace(is_sole=is_sole))

    async def created(self, row: int) -> Created | None:
        """Return the definition at creation; None if the job was removed."""
        found = self._created.get(row)
        if found is not None:
            return found
        async with self._limit:
            got = await self.link.get(self.subjects.jobs, row)
        if got is None or self.subjects.event_of(got.subject) != "created":
            return None
        stored = self.decode(got)
        if isinstance(stored, StoredEvent) and stored.created is not None:
            self._remember(row, stored.created)
            return stored.created
        return None

    def _remember(self, row: int, created: Created) -> None:
        self._created.put(row, created, len(created.definition.payload))

    async def _handed_on(self, created: Created, latest: StoredEvent) -> str | None:
        """Return the payload that another job has handed on, if one has."""
        relations = created.definition.relations
        if relations is None or relations.payload_from is None or latest.head.version == 1:
            return None
        subject = self.subjects.event(latest.job, "resolved")
        got = await self.link.last(self.subjects.jobs, subject)
        stored = None if got is None else self.decode(got)
        return stored.raw if isinstance(stored, StoredEvent) else None

    async def _unclaimed(self, created: Created, record: JobRecord) -> JobRecord:
        """Return the job with the hooks and secrets that workers declare for its type."""
        definition = record.definition
        declared = await self.declared(definition.service, definition.type)
        if declared is None:
            return record
        policy = in_force(
            before_claim(created.request.policy, declared.policy),
            None,
            definition.attempts,
            definition.timeout,
        )
        return record._replace(definition=definition._replace(policy=policy))

    async def declared(self, service: str, job_type: str) -> DeclaredType | None:
        """Return what workers declare about a type."""
        subject = self.subjects.value("type", service, job_type)
        return (await self.value(subject, _DECLARED)).value

    async def journal(self, row: int) -> list[Got]:
        """Return all messages about the job whose first message has this sequence."""
        created = await self.created(row)
        if created is None:
            return []
        definition = created.definition
        job = JobName(definition.service, definition.type, definition.id)
        stream, wanted = self.subjects.jobs, self.subjects.whole(job)
        return await self.link.following(stream, wanted, row, 1_000_000)

    def lifecycle_message(self, current: Current, kind: str, wire: Wire) -> Message:
        """Return the next lifecycle message of a job: refused unless the job is as it is here."""
        expect = Expect(current.sequence, self.subjects.fence(current.job))
        return Message(self.subjects.event(current.job, kind), wire.body, wire.headers, expect)

    # -- values --------------------------------------------------------------------------------

    def stream_of(self, subject: str) -> str:
        """Return the stream that stores a subject."""
        is_value = subject.startswith(self.subjects.value(""))
        return self.subjects.state if is_value else self.subjects.jobs

    async def value(self, subject: str, codec: Codec) -> Value[Any]:
        """Return a last value."""
        async with self._limit:
            got = await self.link.last(self.stream_of(subject), subject)
        if got is None:
            return Value(None, 0)
        return Value(self.parse(got, codec), got.sequence)

    async def values(self, filters: Iterable[str], codec: Codec) -> list[tuple[str, Value[Any]]]:
        """Return the last value of each subject that these filters match, in order of writing.

        One that cannot be read is passed over: a user of any service may have written it.
        """
        wanted = list(filters)
        if not wanted:
            return []
        values: list[tuple[str, Value[Any]]] = []
        for got in await self.link.last_many(self.stream_of(wanted[0]), wanted):
            with self.passing_over():
                value = self.parse(got, codec)
                if value is not None:
                    values.append((got.subject, Value(value, got.sequence)))
        return values

    async def subjects_of(self, subject: str) -> dict[str, int]:
        """Return the subjects that a filter matches, with the number of messages of each."""
        return await self.link.subjects_of(self.stream_of(subject), subject)

    async def events_of(self, job_id: JobId) -> Counter[str]:
        """Return how many lifecycle messages of each kind have this id, by their subjects alone."""
        async with self._limit:
            found = await self.subjects_of(self.subjects.identity(job_id))
        kinds = Counter[str]()
        for subject, number in found.items():
            kinds[self.subjects.event_of(subject) or ""] += number
        return kinds

    @staticmethod
    def parse(got: Got, codec: Codec) -> Any:  # noqa: ANN401 - a value of the codec's type
        """Return the value that a message has; None: it was deleted."""
        try:
            return codec.decode(json.loads(got.body)) if got.body else None
        except UNREADABLE as error:
            raise Unreadable(
                f"Message {got.sequence} on {got.subject} has no value that this version of "
                f"Trellis can read: {error}."
            ) from error

    @contextmanager
    def passing_over(self) -> Iterator[None]:
        """Leave out what cannot be read, and log that once."""
        try:
            yield
        except Unreadable as error:
            if str(error) not in self._passed_over:
                if len(self._passed_over) >= _REMEMBERED:
                    self._passed_over.clear()
                self._passed_over.add(str(error))
                _logger.warning("%s It is passed over.", error)

    async def put(
        self, subject: str, codec: Codec, value: object, expect: int | None
    ) -> Written | Outdated:
        """Write a last value; None deletes it."""
        body = b"" if value is None else dump(codec.write(value))
        expected = None if expect is None else Expect(expect)
        return await self.link.write(Message(subject, body, {}, expected))

    async def forget(self, subject: str) -> None:
        """Delete what these subjects have; only for values that nothing writes any more."""
        stream = self.stream_of(subject)
        await self.link.api(f"STREAM.PURGE.{stream}", {"filter": subject})
