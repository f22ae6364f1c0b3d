"""The state of a key as `Jobs.GetKey` shows it to programs in any language."""

from __future__ import annotations

from typing import Any, Final

from trellis.admin.wire_job import iso
from trellis.admin.wire_policy import wire_replaced
from trellis.core.job import JobRecord, SessionId
from trellis.core.policy import KeyPolicy
from trellis.core.states import WAITING
from trellis.engines.jetstream.keys import CODEC, KeyState
from trellis.engines.jetstream.store import Store
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, SessionRecord

#: How many of the waiting jobs are shown; `queuedCount` counts all.
_SHOWN: Final = 100


async def wire_key(
    tables: Engine, engine: Engine, store: Store, names: tuple[str, str, str]
) -> dict[str, Any] | None:
    """Return a key by service, type and text; None: no job holds it or waits for it."""
    service, job_type, key = names
    status = next((each for each in await engine.keys(service, job_type) if each.key == key), None)
    if status is None:
        return None
    subject = store.subjects.key(service, job_type, status.key_hash)
    got = await store.link.last(store.subjects.jobs, subject)
    state: KeyState = (None if got is None else store.parse(got, CODEC)) or KeyState(key)
    loaded = (await tables.load(status.holders)).records
    holders = [each for each in loaded if each is not None]
    where = JobFilter(
        services=(service,), types=(job_type,), key=key, states=tuple(sorted(WAITING))
    )
    page = await tables.find(where, limit=_SHOWN)
    waiting = [each for each in page.jobs if each.definition.id not in status.holders]
    sessions = {each.id: each for each in await engine.sessions()}
    rule = next((each.definition.policy.key for each in (*holders, *waiting)), None)
    return {
        "version": 1, "service": service, "jobType": job_type, "key": key,
        "keyHash": status.key_hash,
        "maxActive": 1 if rule is None else rule.active,
        **({} if rule is None else _full(rule)),
        "active": [_active(each, sessions) for each in holders],
        "queued": [_queued(each) for each in reversed(waiting)],
        "queuedCount": status.waiting,
        "replaced": await wire_replaced(tables, names),
        "blocked": status.blocked,
        "staleTakeoverCount": state.takeovers,
        "updatedAt": iso(None if got is None else got.at),
    }  # fmt: skip


def _full(rule: KeyPolicy) -> dict[str, Any]:
    """Return how many jobs may wait, and the answer to one more; nothing if there is no limit."""
    if rule.queued is None:
        return {}
    return {"maxQueuedPerKey": rule.queued, "whenFull": rule.when_full}


def _active(record: JobRecord, sessions: dict[SessionId, SessionRecord]) -> dict[str, Any]:
    """Return who holds a slot; a job that has not started yet holds it without an attempt."""
    definition, head = record
    shown: dict[str, Any] = {"jobId": definition.id, "tries": head.attempt}
    if head.fence is None:
        return shown
    session = sessions.get(head.fence.session)
    shown |= {
        "slotToken": head.fence.attempt_id,
        "instanceId": f"{head.fence.session:016x}",
        "startedAt": iso(head.claimed_at),
    }
    if session is not None:
        shown["heartbeatAt"] = iso(session.renewed_at)
        shown["leaseExpiresAt"] = iso(session.renewed_at + session.lease)
    return shown


def _queued(record: JobRecord) -> dict[str, Any]:
    definition = record.definition
    return {
        "jobId": definition.id,
        "createdAt": iso(definition.created_at),
        "requestId": definition.context.request_id,
    }
