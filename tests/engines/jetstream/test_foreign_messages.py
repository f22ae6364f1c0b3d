"""Messages that a service writes under its own names do not change jobs of other services.

A user of one service may write all messages of that service's jobs, and these name a job by its id
in the subject, and by the sequence of its first message in the body.
"""

from __future__ import annotations

import pytest

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.batches import NewBatch
from trellis.core.commands import Cancel
from trellis.core.job import Dedupe, JobId, JobRecord, NewJob, Relations, define
from trellis.core.lifecycle import creation
from trellis.core.policy import KeyPolicy
from trellis.engines.jetstream import sessions as session_table
from trellis.engines.jetstream.link import Expect, Message, Written
from trellis.engines.jetstream.message import (
    Wire,
    encode_created,
    encode_removal,
    encode_watch,
    name_of,
)
from trellis.engines.jetstream.subjects import JobName
from trellis.errors import EngineError
from trellis.testing.builders import a_job, a_job_id, a_keyed_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept_one, settle, start, the

MAIL = "mail"


async def _write(engine: ManualEngine, job_id: JobId, kind: str, wire: Wire) -> None:
    """Store a message of a job of the mail service, as a user of that service can."""
    subject = engine._subjects.event(JobName(MAIL, "send", job_id), kind)
    await engine._link.write(Message(subject, wire.body, wire.headers))


async def _shadow(engine: ManualEngine, job_id: JobId) -> NewJob:
    """Store the first message of a job of the mail service with an id that is taken."""
    new, now = a_job(id=job_id, service=MAIL, type="send"), await engine.now()
    wire = encode_created(new, define(new, 0, now), *creation(now, now))
    await _write(engine, job_id, "created", wire)
    return new


def _name(record: JobRecord) -> tuple[str, JobId]:
    return record.definition.service, record.definition.id


async def test_an_id_names_the_first_of_the_jobs_that_have_it(engine: ManualEngine) -> None:
    job = await accept_one(engine, a_job())
    await _shadow(engine, job.definition.id)
    found = await the(engine, job.definition.id)
    assert found == job
    ended = await settle(engine, found, Cancel())
    assert await the(engine, job.definition.id) == ended
    assert len(await engine.journal(job.definition.id)) == 2


async def test_messages_of_another_service_about_a_job_do_not_hide_it(engine: ManualEngine) -> None:
    job = await accept_one(engine, a_job())
    ended = await settle(engine, await accept_one(engine, a_job()), Cancel())
    now = await engine.now()
    forged = (
        ("completed", Wire({}, b"no JSON")),
        ("watched", encode_watch(job, job.definition, now)),
        ("removed", encode_removal(job, now)),
        ("completed", encode_watch(ended, ended.definition, now)),
    )
    for kind, wire in forged:
        await _write(engine, job.definition.id, kind, wire)
        assert await the(engine, job.definition.id) == job


async def test_an_event_that_names_the_job_of_another_service_cannot_be_read(
    engine: ManualEngine,
) -> None:
    job, now = await accept_one(engine, a_job()), await engine.now()
    own = a_job_id()
    await _write(engine, own, "watched", encode_watch(job, job.definition, now))
    with pytest.raises(EngineError, match="the first message of another job"):
        await engine.load([own])
    new = a_job(id=own)
    wire = encode_created(new, define(new, 0, now), *creation(now, now))
    await _write(engine, own, "created", wire)
    with pytest.raises(EngineError, match="it is the first message of another job"):
        await engine.load([own])


async def test_the_id_of_a_removed_job_can_be_used_by_another_type(engine: ManualEngine) -> None:
    first = await settle(engine, await accept_one(engine, a_job()), Cancel())
    job_id = first.definition.id
    assert await engine.remove([job_id]) == ["removed"]
    assert (await engine.load([job_id])).removed == {job_id}
    second = await accept_one(engine, a_job(id=job_id, service="billing", type="charge"))
    assert await the(engine, job_id) == second
    await _shadow(engine, job_id)
    assert _name(await the(engine, job_id)) == ("billing", job_id)


async def test_the_first_message_of_a_job_shows_that_nothing_else_has_its_id(
    engine: ManualEngine,
) -> None:
    batch, one = NewBatch(a_job_id(), "shop"), Dedupe("one", "unfinished")
    await engine.open_batch(batch)
    keyed = a_keyed_job("k", KeyPolicy("k", active=1, queued=None))
    member = a_job(relations=Relations(batch=batch.id))
    for new in (a_job(), keyed, member, a_job(dedupe=one), a_job(idempotency_key="i")):
        await accept_one(engine, new)
        found = await engine._store.job(new.id)
        assert found is not None
        assert found.created.is_sole
    shadow = await _shadow(engine, a_job_id())
    found = await engine._store.job(shadow.id)
    assert found is not None
    assert not found.created.is_sole


async def test_a_claimed_job_that_cannot_be_read_stops_no_claim(
    engine: ManualEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_table, "_LOOK_EVERY", 0.0)
    session = await a_session(engine)
    running = await start(engine, session, a_job())
    await start(engine, session, a_job())  # now the first one is looked at
    subject = engine._subjects.event(name_of(running.definition), "cancelRequested")
    current = await engine._store.job(running.definition.id)
    assert current is not None
    expect = Expect(current.sequence, engine._subjects.fence(current.job))
    assert isinstance(await engine._link.write(Message(subject, b"{}", {}, expect)), Written)
    for _ in range(3):
        await start(engine, session, a_job())
    assert fence_of(running) in engine._sessions.held
