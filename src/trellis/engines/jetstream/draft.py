"""A draft: what is to be stored together, and what it was decided from.

A verb reads jobs and states through the draft, decides, and stages events and states in it; reading
again gives what was staged. `write` stores all of it as one atomic batch, if nothing that was
staged has changed since it was read; otherwise nothing is stored, and the verb starts again with a
new draft. A state that only guards a decision is staged unchanged.

One server whose storage is used up within a batch keeps the first messages of it. So the order
matters: a state comes before the events if it does no harm without them, otherwise after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trellis.core.audit import By, Change
from trellis.core.durations import Instant
from trellis.core.job import JobId, JobRecord, NewJob, define
from trellis.core.lifecycle import Transition, creation, first_run_at
from trellis.engines.audit import storable, storable_by
from trellis.engines.jetstream.link import Expect, Message, Outdated, Written
from trellis.engines.jetstream.message import (
    Created,
    StoredRemoval,
    Wire,
    encode_created,
    encode_removal,
    encode_transition,
    encode_watch,
    name_of,
    request_of,
)
from trellis.engines.jetstream.store import Current, Store, Value
from trellis.engines.jetstream.subjects import JobName, check_id
from trellis.engines.jetstream.writing import BATCH
from trellis.engines.wire import Codec, codec_of, dump

#: About what a message takes beside its payload and configuration, or its result and error.
OVERHEAD: Final = 8 * 1024
#: Messages of a batch that are left for what follows from others.
_RESERVE: Final = 200
_CHANGE = codec_of(Change)
_BY = codec_of(By)


class Draft:
    """One write, before it is made."""

    def __init__(self, store: Store, now: Instant | None = None) -> None:
        self.store = store
        self.now = store.time.now() if now is None else now
        self._jobs: dict[JobId, Current | StoredRemoval | None] = {}
        self._values: dict[str, Value[Any]] = {}
        self._codecs: dict[str, Codec] = {}
        #: The states that are staged; and those of them that come before the events.
        self._staged: set[str] = set()
        self._first: dict[str, None] = {}
        #: Lifecycle events, notes and hints in their order.
        self._messages: list[Message] = []
        self._guarded: set[JobId] = set()
        #: Where `created` of each new job is among the messages.
        self._new: dict[JobId, int] = {}
        #: Where the event of each job is among the messages: the last one of each.
        self._places: dict[JobId, int] = {}

    # -- reading -------------------------------------------------------------------------------

    async def find(self, job_id: JobId) -> Current | StoredRemoval | None:
        """Return a job as it is, or will be."""
        if job_id not in self._jobs:
            self._jobs[job_id] = await self.store.find(job_id)
        return self._jobs[job_id]

    async def job(self, job_id: JobId) -> Current | None:
        """Return a job as it is, or will be; None if it is not there."""
        found = await self.find(job_id)
        return found if isinstance(found, Current) else None

    def know(self, current: Current) -> None:
        """Use a job that was read before."""
        self._jobs.setdefault(current.record.definition.id, current)

    def know_removal(self, removal: StoredRemoval) -> None:
        """Use that the job with this id was removed: another one may take its place."""
        self._jobs[removal.job.id] = removal

    async def value(self, subject: str, codec: Codec) -> Any:  # noqa: ANN401 - as the codec
        """Return a state as it is, or will be."""
        if subject not in self._values:
            self._values[subject] = await self.store.value(subject, codec)
            self._codecs[subject] = codec
        return self._values[subject].value

    def sequence(self, subject: str) -> int:
        """Return the sequence of a state that was read; 0: it was not there."""
        return self._values[subject].sequence

    # -- staging -------------------------------------------------------------------------------

    def create(self, new: NewJob, order: int = 0, replaced: JobId | None = None) -> Current:
        """Stage the first event of an admitted job; its row is known only afterwards.

        `order`: its place among the jobs of its key; `replaced`: the job whose place it takes.
        """
        job = name_of(new)
        check_id(new.id)
        definition = define(new, 0, self.now)
        event, head = creation(self.now, first_run_at(new, self.now))
        before = self._jobs.get(new.id)
        expect = before.sequence if isinstance(before, StoredRemoval) else 0
        wire = encode_created(new, definition, event, head, order, replaced=replaced)
        subjects = self.store.subjects
        guard = Expect(expect, subjects.identity(new.id))
        subject = subjects.event(job, "created")
        self._event(new.id, Message(subject, wire.body, wire.headers, guard))
        created = Created(definition, request_of(new, order))
        current = Current(
            job, created, JobRecord(definition, head), 0, is_watched=False, at=self.now
        )
        self._jobs[new.id] = current
        self._new[new.id] = self._places[new.id]
        return current

    def adopt(self, current: Current, messages: Sequence[Message]) -> None:
        """Stage a job of another store with all its messages, of which the first is `created`."""
        job_id, before = current.job.id, self._jobs.get(current.job.id)
        expect = before.sequence if isinstance(before, StoredRemoval) else 0
        self._guarded.add(job_id)
        self._new[job_id] = len(self._messages)
        for message in messages:
            if self.store.subjects.event_of(message.subject) is not None:
                self._places[job_id] = len(self._messages)
            self._messages.append(message)
        guard = Expect(expect, self.store.subjects.identity(job_id))
        first = self._new[job_id]
        self._messages[first] = self._messages[first]._replace(expect=guard)
        self._jobs[job_id] = current

    def append(self, messages: Sequence[Message]) -> None:
        """Stage more notes of a job of another store, which is here."""
        self._messages += messages

    def is_new(self, job_id: JobId) -> bool:
        """Return whether the draft creates this job."""
        return job_id in self._new

    def place(self, current: Current) -> tuple[int, int]:
        """Return by what jobs are sorted in the order of creation: new ones come last."""
        number = self._new.get(current.job.id)
        return (0, current.definition.row) if number is None else (1, number)

    def count_new(self) -> int:
        """Return how many jobs the draft creates."""
        return len(self._new)

    def transition(self, current: Current, transition: Transition) -> Current:
        """Stage a decision about a job that was read through the draft."""
        first = current.created.definition
        wire = encode_transition(
            transition, first, is_watched=current.is_watched, back=self._back(current)
        )
        kind = transition.event.kind.value
        after = current._replace(
            record=JobRecord(transition.definition, transition.head), at=transition.event.at
        )
        self._fenced(current, kind, wire)
        self._jobs[current.job.id] = after
        return after

    def watch(self, current: Current) -> Current:
        """Stage that others wait for the end of this job."""
        if current.is_watched:
            return current
        wire = encode_watch(
            current.record, current.created.definition, current.at, back=self._back(current)
        )
        self._fenced(current, "watched", wire)
        after = current._replace(is_watched=True)
        self._jobs[current.job.id] = after
        return after

    def _back(self, current: Current) -> int:
        """Return how many messages before the next one the job is created; 0: it is not new."""
        place = self._new.get(current.job.id)
        return 0 if place is None else len(self._messages) - place

    def remove(self, current: Current) -> None:
        """Stage the last event of a job."""
        self._fenced(current, "removed", encode_removal(current.record, self.now))

    def _fenced(self, current: Current, kind: str, wire: Wire) -> None:
        self._event(current.job.id, self.store.lifecycle_message(current, kind, wire))

    def _event(self, job_id: JobId, message: Message) -> None:
        # The first event of a job in a batch guards those after it, which are stored only if it is.
        if job_id in self._guarded:
            message = message._replace(expect=None)
        self._guarded.add(job_id)
        self._places[job_id] = len(self._messages)
        self._messages.append(message)

    def hint(self, current: Current) -> None:
        """Stage the hint that a waiting job may start, now or at its run time.

        It names the run time only if that has come: then the job is due, even if the clock of its
        worker is behind. Otherwise the worker schedules it, once the state that lets it start is
        stored.
        """
        subject = self.store.subjects.ready(current.job, current.head.version)
        is_due = current.head.run_at <= self.now
        body = dump({"runAt": current.head.run_at}) if is_due else b""
        if all(message.subject != subject for message in self._messages):
            self._messages.append(Message(subject, body))

    def guard(self, job: JobName, sequence: int, version: int = 0) -> None:
        """Stage a hint at a job that is stored only if its last event is still this one."""
        expect = Expect(sequence, self.store.subjects.fence(job))
        subject = self.store.subjects.ready(job, version)
        if job.id not in self._guarded:
            self._guarded.add(job.id)
            self._messages.append(Message(subject, dump({"runAt": self.now}), {}, expect))

    def put(self, subject: str, value: object, *, first: bool = False) -> None:
        """Stage a state that was read through the draft.

        `first`: before the events, unless it was staged to come after them.
        """
        known = self._values[subject]
        self._values[subject] = Value(value, known.sequence)
        if not first:
            self._first.pop(subject, None)
        elif subject not in self._staged:
            self._first[subject] = None
        self._staged.add(subject)

    def record(self, change: Change, by: By, at: Instant | None = None) -> None:
        """Stage an entry of the audit."""
        change = change._replace(target=storable(change.target))
        body = {
            "at": self.now if at is None else at,
            "change": _CHANGE.write(change),
            "by": _BY.write(storable_by(by)),
        }
        self._messages.append(Message(self.store.subjects.own("audit"), dump(body)))

    # -- writing -------------------------------------------------------------------------------

    @property
    def messages(self) -> list[Message]:
        """Everything that is staged."""
        last = sorted(self._staged - self._first.keys())
        return [*map(self._state, self._first), *self._messages, *map(self._state, last)]

    def _state(self, subject: str) -> Message:
        value, sequence = self._values[subject]
        body = b"" if value is None else dump(self._codecs[subject].write(value))
        return Message(subject, body, {}, Expect(sequence))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is staged."""
        return not self._messages and not self._staged

    @property
    def size(self) -> int:
        """How many messages are staged."""
        return len(self._messages) + len(self._staged)

    @property
    def room(self) -> int:
        """How many more messages can be staged, with some left for what follows from them."""
        return max(0, BATCH - _RESERVE - self.size)

    async def write(self) -> Written | Outdated:
        """Store everything that is staged, or nothing."""
        messages = self.messages
        if not messages:
            return Written(0)
        answer = await self.store.link.write(*messages)
        if isinstance(answer, Written):
            self._settle(answer.sequence - len(messages) + 1 + len(self._first))
            settings = self.store.subjects.own("setting")
            if any(each.startswith(settings) for each in self._staged):
                self.store.hear()
        return answer

    def _settle(self, first: int) -> None:
        """Give the jobs the sequences of their last events, and the new ones their rows.

        `first`: the sequence of the first of the messages that are no states.
        """
        for job_id, place in self._places.items():
            current = self._jobs[job_id]
            if not isinstance(current, Current):
                continue
            if job_id in self._new:
                current = _at_row(current, first + self._new[job_id])
            self._jobs[job_id] = current._replace(sequence=first + place)

    def written(self, job_id: JobId) -> Current:
        """Return a job after the draft was written."""
        current = self._jobs[job_id]
        if not isinstance(current, Current):
            raise KeyError(job_id)
        return current


def _at_row(current: Current, row: int) -> Current:
    created = current.created._replace(definition=current.created.definition._replace(row=row))
    definition = current.definition._replace(row=row)
    return current._replace(created=created, record=current.record._replace(definition=definition))
