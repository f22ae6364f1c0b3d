"""Messages of the streams as changes of a projection."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from trellis.core.durations import to_instant
from trellis.core.events import EventKind
from trellis.core.job import JobId, SessionId
from trellis.engines.audit import By, Change
from trellis.engines.contracts import DeclaredType
from trellis.engines.jetstream.archive import WAITING
from trellis.engines.jetstream.batches import CODEC as BATCH
from trellis.engines.jetstream.batches import BatchValue
from trellis.engines.jetstream.dependencies import WAITS
from trellis.engines.jetstream.keys import CODEC as KEY
from trellis.engines.jetstream.link import Got
from trellis.engines.jetstream.message import (
    UNREADABLE,
    Created,
    StoredEvent,
    StoredNote,
    StoredRemoval,
    decode,
    decode_note,
    name_of,
    record_of,
)
from trellis.engines.jetstream.schedules import SLOT
from trellis.engines.jetstream.sessions import SessionValue
from trellis.engines.jetstream.store import Remembered, Store
from trellis.engines.jetstream.subjects import EVENT_TOKENS, OWN, JobName
from trellis.engines.projection import (
    HeldSlot,
    Presence,
    Projected,
    ProjectedArchiving,
    ProjectedAudit,
    ProjectedBatch,
    ProjectedBond,
    ProjectedEvent,
    ProjectedKey,
    ProjectedLinks,
    ProjectedMember,
    ProjectedNote,
    ProjectedRemoval,
    ProjectedSlot,
)
from trellis.engines.values import SessionRecord
from trellis.engines.wire import codec_of
from trellis.errors import EngineError

_REMEMBERED: Final = 50_000
_AT_ONCE: Final = 64
#: What stands in the place of a service in subjects that are about no job.
_NO_SERVICES: Final = frozenset({OWN, "workers"})
#: What reading a message raises whose body this version cannot read.
_UNREADABLE: Final = (EngineError, *UNREADABLE)
_logger = logging.getLogger(__name__)
_CHANGE: Final = codec_of(Change)
_BY: Final = codec_of(By)
_SESSION: Final = codec_of(SessionValue)
_TYPE: Final = codec_of(DeclaredType)
_PRESENCE: Final = codec_of(Presence)


class Messages:
    """Reads messages; remembers the definitions of the jobs that it has seen."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._created = Remembered[Created](_REMEMBERED)
        self._limit = asyncio.Semaphore(_AT_ONCE)
        #: The jobs, and other subjects, of which a message was logged that cannot be read.
        self._misfits: set[str] = set()

    def forget(self) -> None:
        """Forget everything: the stream was made again."""
        self._created = Remembered[Created](_REMEMBERED)

    async def changes(self, messages: Sequence[Got]) -> list[Projected]:
        """Return what messages change, in their order; those that change nothing are left out.

        A state is stored whole, so only its last message in a page counts. A message that cannot
        be read is left out: one of a foreign program must not stop the projection.
        """
        last = {got.subject: got.sequence for got in messages}
        read: list[tuple[Got, Projected | StoredEvent | StoredNote]] = []
        for got in messages:
            try:
                change = self._change(got, is_last=last[got.subject] == got.sequence)
            except _UNREADABLE as error:
                self.log_misfit(got, error)
                continue
            if change is not None:
                read.append((got, change))
        created = await self._created_of(
            [each for _, each in read if isinstance(each, StoredEvent | StoredNote)]
        )
        found: list[Projected] = []
        for got, each in read:
            if not isinstance(each, StoredEvent | StoredNote):
                found.append(each)
                continue
            # Without its first message the job was removed since: that is said later.
            first = created.get(each.row)
            if first is None:
                continue
            if name_of(first.definition) != each.job:
                # Who may write the messages of one service may name a job of another in them.
                self.log_misfit(got, ValueError(f"row: {each.row} is another job"))
                continue
            found.append(
                _event(each, first) if isinstance(each, StoredEvent) else ProjectedNote(*each[1:])
            )
        return [*found, *await self._missing_batches(found)]

    def log_misfit(self, got: Got, error: Exception) -> None:
        """Log a message that cannot be read, unless one of the same job was logged before."""
        tokens = got.subject.split(".")
        name = got.subject if OWN in tokens else ".".join(tokens[: EVENT_TOKENS - 1])
        if name in self._misfits:
            return
        if len(self._misfits) >= _REMEMBERED:
            self._misfits.clear()
        self._misfits.add(name)
        _logger.warning(
            "Message %d on %s cannot be read and is left out: %s. Further ones of %s are left out "
            "without a line here.", got.sequence, got.subject, str(error).rstrip("."), name,
        )  # fmt: skip

    def _change(self, got: Got, *, is_last: bool) -> Projected | StoredEvent | StoredNote | None:
        tokens = got.subject.split(".")
        if tokens[1] != "jobs" or tokens[2] in _NO_SERVICES:
            return self._other(got, tokens, is_last=is_last)
        job = JobName(tokens[2], tokens[3], JobId(tokens[4]))
        if len(tokens) == EVENT_TOKENS:
            stored = decode(job, got.sequence, got.headers, got.body)
            if isinstance(stored, StoredRemoval):
                _, _, row, at, state = stored
                return ProjectedRemoval(got.sequence, row, job.id, job.service, job.type, state, at)
            return stored if stored.event is not None else None
        if len(tokens) != EVENT_TOKENS + 1 or tokens[EVENT_TOKENS - 1] == "ready":
            return None
        return decode_note(job, got.sequence, got.body)

    def _other(self, got: Got, tokens: Sequence[str], *, is_last: bool) -> Projected | None:
        """Return what a message says that is about no job."""
        if got.subject == self._store.subjects.own("audit"):
            body = json.loads(got.body)
            change, by = _CHANGE.decode(body["change"]), _BY.decode(body["by"])
            return ProjectedAudit(got.sequence, body["at"], change, by)
        return _state(got, tokens) if is_last else None

    async def _missing_batches(self, found: Sequence[Projected]) -> list[ProjectedBatch]:
        """Return, as they are now, the batches of members whose own messages are not among these.

        A new member is stored in one write with its batch. When the batch changes, upkeep deletes
        that version of it, so a later reader finds the batch behind its members.
        """
        known = {each.id for each in found if isinstance(each, ProjectedBatch)}
        members = {each.batch for each in found if isinstance(each, ProjectedMember)}
        read = await asyncio.gather(*map(self._read_batch, sorted(members - known)))
        return [each for each in read if each is not None]

    async def _read_batch(self, name: str) -> ProjectedBatch | None:
        subject = self._store.subjects.own("batch", name)
        async with self._limit:
            got = await self._store.link.last(self._store.subjects.jobs, subject)
        if got is None:
            return None
        try:
            return _batch(name, json.loads(got.body) if got.body else None, got.sequence)
        except _UNREADABLE as error:
            self.log_misfit(got, error)
            return None

    async def _created_of(self, messages: Sequence[StoredEvent | StoredNote]) -> dict[int, Created]:
        """Return the first messages of the jobs of these messages."""
        events = (each for each in messages if isinstance(each, StoredEvent))
        found = {each.row: each.created for each in events if each.created is not None}
        missing = {each.row for each in messages} - found.keys()
        known = {row: each for row in missing if (each := self._created.get(row)) is not None}
        unknown = sorted(missing - known.keys())
        read = await asyncio.gather(*map(self._read, unknown))
        found |= known | {each.definition.row: each for each in read if each is not None}
        for row, each in found.items():
            self._created.put(row, each, len(each.definition.payload))
        return found

    async def _read(self, row: int) -> Created | None:
        """Return a first message; None if there is none, or none that can be read."""
        async with self._limit:
            got = await self._store.link.get(self._store.subjects.jobs, row)
        if got is None or self._store.subjects.event_of(got.subject) != "created":
            return None
        try:
            stored = self._store.decode(got)
        except EngineError as error:
            self.log_misfit(got, error)
            return None
        return stored.created if isinstance(stored, StoredEvent) else None


def _event(stored: StoredEvent, created: Created) -> ProjectedEvent:
    event = stored.event
    assert event is not None  # noqa: S101 - `_change` has left out those without
    request, is_first = created.request, event.kind is EventKind.CREATED
    return ProjectedEvent(
        stored.sequence,
        event,
        record_of(created, stored),
        request.policy,
        stored.started_at,
        stored.raw,
        request.idempotency_key if is_first else None,
        is_dependent=is_first and bool(request.after),
    )


def _state(got: Got, tokens: Sequence[str]) -> Projected | None:
    """Return a state; without a body it is gone."""
    _, stream, family, *names = tokens
    body = json.loads(got.body) if got.body else None
    if stream == "jobs" and family == OWN:
        family, *names = names
        return _own_state(got, family, names, body)
    if stream == "jobs" and body is not None:
        return _presence(body)
    if stream == "state" and body is not None:
        if family == "session":
            return _session(names[-1], _SESSION.decode(body))
        if family == "type":
            declared: DeclaredType = _TYPE.decode(body)
            return declared
    return None


def _own_state(got: Got, family: str, names: Sequence[str], body: Any) -> Projected | None:  # noqa: ANN401 - JSON
    """Return a state that changes together with jobs."""
    match family:
        case "batch":
            return _batch(names[0], body, got.sequence)
        case "member" if body is not None:
            return ProjectedMember(names[0], JobId(names[1]), bool(body))
        case "waits":
            bonds = () if body is None else WAITS.decode(body).bonds
            return ProjectedLinks(JobId(names[0]), tuple(ProjectedBond(*each) for each in bonds))
        case "keys" if names[2] == "h":  # the pages of a long line have no slots
            slots = () if body is None else KEY.decode(body).slots
            return ProjectedKey(names[-1], tuple(HeldSlot(*each[:4]) for each in slots))
        case "slots" if body is not None:
            return ProjectedSlot(names[0], names[2], SLOT.decode(body))
        case "archiving" if body is not None:
            _, version, since = WAITING.decode(body)
            return ProjectedArchiving(int(names[-1]), version, names[0], since)
        case _:
            return None


def _batch(name: str, body: Any, sequence: int) -> ProjectedBatch:  # noqa: ANN401 - JSON
    if body is None:
        return ProjectedBatch(name, None)
    value: BatchValue = BATCH.decode(body)
    batch = value.batch
    # The first message of a batch does not know its own number.
    batch = batch if batch.row else batch._replace(row=sequence)
    return ProjectedBatch(name, batch, value.inner)


def _presence(body: dict[str, Any]) -> Presence:
    at = to_instant(datetime.fromisoformat(body["timestamp"]))
    names = body["service"], body["jobType"], body["instanceId"]
    said: Presence = _PRESENCE.decode([*names, at, body.get("concurrency"), body.get("version")])
    return said


def _session(name: str, value: SessionValue) -> SessionRecord:
    return SessionRecord(
        SessionId(int(name, 16)),
        value.info,
        value.opened_at,
        value.renewed_at,
        value.lease,
        lapsed=False,
        ended_at=value.ended_at,
        held=0,
    )
