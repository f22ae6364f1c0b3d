"""What is stored, as values: jobs from their first and last messages, and states by subject.

Jobs and the states that change together with them are in one stream; values that change alone
(sessions, claims, locks, declared types) are in another one that keeps the last message of each
subject. A value is read together with its sequence, which guards the next write of it.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from trellis.core.durations import Instant
from trellis.core.job import Definition, Head, JobId, JobRecord
from trellis.core.policy import before_claim, in_force
from trellis.engines.contracts import DeclaredType
from trellis.engines.jetstream.link import Expect, Got, Link, Message, Outdated, Written
from trellis.engines.jetstream.message import (
    Created,
    StoredEvent,
    StoredRemoval,
    decode,
    record_of,
)
from trellis.engines.jetstream.subjects import JobName, Subjects, is_token
from trellis.engines.jetstream.time import Time
from trellis.engines.wire import Codec, codec_of, dump
from trellis.errors import EngineError

T = TypeVar("T")
#: How many definitions, and how many sequences of jobs, are remembered.
_REMEMBERED: Final = 20_000
#: How many requests are on their way at once.
_AT_ONCE: Final = 64
_DECLARED: Final = codec_of(DeclaredType)


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


class Store:
    """The streams of one deployment."""

    def __init__(self, link: Link, subjects: Subjects, time: Time) -> None:
        self.link, self.subjects, self.time = link, subjects, time
        self._created: OrderedDict[int, Created] = OrderedDict()
        self._limit = asyncio.Semaphore(_AT_ONCE)

    # -- jobs ----------------------------------------------------------------------------------

    async def find(self, job_id: JobId) -> Current | StoredRemoval | None:
        """Return the job with this id, or that it was removed."""
        if not is_token(job_id):
            return None
        return await self._current(self.subjects.identity(job_id))

    async def find_many(self, ids: Sequence[JobId]) -> list[Current | StoredRemoval | None]:
        """Return the jobs with these ids, in that order."""
        return list(await asyncio.gather(*map(self.find, ids)))

    async def job(self, job_id: JobId) -> Current | None:
        """Return the job with this id, if it is there."""
        found = await self.find(job_id)
        return found if isinstance(found, Current) else None

    async def read(self, job: JobName) -> Current | StoredRemoval | None:
        """Return a job of which all names are known."""
        return await self._current(self.subjects.fence(job))

    async def at_row(self, row: int) -> Current | None:
        """Return the job whose first message has this sequence."""
        created = await self.created(row)
        if created is None:
            return None
        definition = created.definition
        found = await self.read(JobName(definition.service, definition.type, definition.id))
        is_same = isinstance(found, Current) and found.definition.row == row
        return found if isinstance(found, Current) and is_same else None

    async def _current(self, subject: str) -> Current | StoredRemoval | None:
        async with self._limit:
            got = await self.link.last(self.subjects.jobs, subject)
        if got is None:
            return None
        stored = self.decode(got)
        if isinstance(stored, StoredRemoval):
            self.time.saw(stored.at)
            return stored
        return await self.complete(stored)

    async def complete(self, latest: StoredEvent) -> Current | None:
        """Return the job that this is the last lifecycle message of."""
        created = latest.created or await self.created(latest.row)
        if created is None:
            return None  # removed since
        self._remember(latest.row, created)
        self.time.saw(latest.at)
        record = record_of(created, latest, await self._handed_on(created, latest))
        if not latest.head.claims:
            record = await self._unclaimed(created, record)
        return Current(latest.job, created, record, latest.sequence, latest.is_watched, latest.at)

    def decode(self, got: Got) -> StoredEvent | StoredRemoval:
        """Return a lifecycle message as a value."""
        job = self.subjects.job_of(got.subject)
        if job is None:
            raise EngineError(f"{got.subject} is no subject of a job.")
        try:
            return decode(job, got.sequence, got.headers, got.body)
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"Message {got.sequence} of {self.subjects.jobs} on {got.subject} is no event that "
                f"this version of Trellis can read: {error}"
            ) from error

    async def created(self, row: int) -> Created | None:
        """Return the definition at creation; None if the job was removed."""
        found = self._created.get(row)
        if found is not None:
            self._created.move_to_end(row)
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
        self._created[row] = created
        if len(self._created) > _REMEMBERED:
            self._created.popitem(last=False)

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
        """Return the last value of each subject that these filters match, in order of writing."""
        wanted = list(filters)
        if not wanted:
            return []
        found = await self.link.last_many(self.stream_of(wanted[0]), wanted)
        pairs = ((got.subject, Value(self.parse(got, codec), got.sequence)) for got in found)
        return [(subject, value) for subject, value in pairs if value.value is not None]

    @staticmethod
    def parse(got: Got, codec: Codec) -> Any:  # noqa: ANN401 - a value of the codec's type
        """Return the value that a message has; None: it was deleted."""
        return codec.decode(json.loads(got.body)) if got.body else None

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
