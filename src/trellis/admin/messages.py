"""Messages of the streams as changes of a projection."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from trellis.core.durations import to_instant
from trellis.core.events import EventKind
from trellis.core.job import SessionId
from trellis.engines.audit import By, Change
from trellis.engines.contracts import DeclaredType
from trellis.engines.jetstream.link import Got
from trellis.engines.jetstream.message import (
    Created,
    StoredEvent,
    StoredRemoval,
    decode_note,
    record_of,
)
from trellis.engines.jetstream.sessions import SessionValue
from trellis.engines.jetstream.store import Store
from trellis.engines.projection import (
    Presence,
    Projected,
    ProjectedAudit,
    ProjectedEvent,
    ProjectedNote,
    ProjectedRemoval,
)
from trellis.engines.values import SessionRecord
from trellis.engines.wire import codec_of

_REMEMBERED: Final = 50_000
_CHANGE: Final = codec_of(Change)
_BY: Final = codec_of(By)
_SESSION: Final = codec_of(SessionValue)
_TYPE: Final = codec_of(DeclaredType)


class Messages:
    """Reads messages; remembers the definitions of the jobs that it has seen."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._created: OrderedDict[int, Created] = OrderedDict()

    async def changes(self, messages: Sequence[Got]) -> list[Projected]:
        """Return what messages change, in their order; those that change nothing are left out."""
        found = [await self._change(got) for got in messages]
        return [each for each in found if each is not None]

    async def _change(self, got: Got) -> Projected | None:
        subjects = self._store.subjects
        if subjects.event_of(got.subject) is not None:
            return await self._event(got)
        job, note = subjects.job_of(got.subject), subjects.note_of(got.subject)
        if job is not None and note is not None and note != "ready":
            _, sequence, row, at, claim, fence, body, event = decode_note(
                job, got.sequence, got.body
            )
            return ProjectedNote(sequence, row, at, claim, fence, body, event)
        return self._other(got) if job is None and got.body else None

    async def _event(self, got: Got) -> Projected | None:
        stored = self._store.decode(got)
        if isinstance(stored, StoredRemoval):
            return ProjectedRemoval(stored.row, stored.job.id, stored.state, stored.at)
        if stored.event is None:
            return None
        created = await self._created_of(stored)
        if created is None:
            return None  # its job was removed since: the message about that comes later
        request, is_first = created.request, stored.event.kind is EventKind.CREATED
        return ProjectedEvent(
            stored.event,
            record_of(created, stored),
            request.policy,
            stored.started_at,
            stored.raw,
            request.idempotency_key if is_first else None,
            is_dependent=is_first and bool(request.after),
        )

    async def _created_of(self, stored: StoredEvent) -> Created | None:
        created = stored.created or self._created.get(stored.row)
        if created is None:
            created = await self._store.created(stored.row)
        if created is not None:
            self._created[stored.row] = created
            if len(self._created) > _REMEMBERED:
                self._created.popitem(last=False)
        return created

    def _other(self, got: Got) -> Projected | None:
        """Return what a message says that is about no job."""
        family, *names = got.subject.split(".")[2:]
        subjects = self._store.subjects
        if got.subject == subjects.own("audit"):
            body = json.loads(got.body)
            change, by = _CHANGE.decode(body["change"]), _BY.decode(body["by"])
            return ProjectedAudit(got.sequence, body["at"], change, by)
        if family == "workers":
            return _presence(json.loads(got.body))
        if got.subject.startswith(subjects.value("session", "")):
            return _session(names[-1], _SESSION.decode(json.loads(got.body)))
        if got.subject.startswith(subjects.value("type", "")):
            declared: DeclaredType = _TYPE.decode(json.loads(got.body))
            return declared
        return None


def _presence(body: dict[str, Any]) -> Presence:
    at = to_instant(datetime.fromisoformat(body["timestamp"]))
    return Presence(
        body["service"], body["jobType"], body["instanceId"], at, body.get("concurrency"),
        body.get("version"),
    )  # fmt: skip


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
