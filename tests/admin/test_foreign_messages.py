"""No message stops the projection, and none changes rows of a job that its subject does not name.

A user of one service may write any message about that service's jobs, and a newer version of
Trellis may run beside this one.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.admin.conftest import Serving
from trellis.core.commands import Cancel, Complete
from trellis.core.job import Definition, JobId, JobRecord, define
from trellis.core.lifecycle import Transition, creation, decide
from trellis.engines.jetstream.link import Link, Message, Written
from trellis.engines.jetstream.message import (
    Wire,
    encode_created,
    encode_note,
    encode_removal,
    encode_transition,
)
from trellis.engines.jetstream.subjects import JobName, Subjects
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, LogLine, Note, Progress
from trellis.testing.builders import a_job, a_job_id, fence_of
from trellis.testing.conformance.helpers import a_session, accept, accept_one, settle, start

MAIL: Final = "mail"
_DEEP: Final = b"[" * 100_000
_HUGE: Final = 10**30


class Foreign:
    """Writes messages as a user of the mail service can."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link, self._subjects = link, subjects

    async def event(self, job_id: JobId, kind: str, wire: Wire) -> int:
        """Write an event of a job of the mail service; return its sequence."""
        return await self.write(self._subjects.event(_mail(job_id), kind), wire)

    async def note(self, job_id: JobId, wire: Wire) -> int:
        """Write a note of a job of the mail service."""
        return await self.write(self._subjects.note(_mail(job_id), "progress", 1), wire)

    async def write(self, subject: str, wire: Wire) -> int:
        """Write a message."""
        answer = await self._link.write(Message(subject, wire.body, wire.headers))
        assert isinstance(answer, Written)
        return answer.sequence


def _mail(job_id: JobId) -> JobName:
    return JobName(MAIL, "send", job_id)


@pytest.fixture
def foreign(link: Link, subjects: Subjects) -> Foreign:
    return Foreign(link, subjects)


async def _cancelled(engine: Engine, record: JobRecord, row: int) -> tuple[Transition, Definition]:
    """Return the end of a job whose first message has this sequence."""
    decision = decide(record, Cancel(), await engine.now())
    assert isinstance(decision, Transition)
    definition = decision.definition._replace(row=row)
    return decision._replace(definition=definition), record.definition


def _edited(wire: Wire, old: str, new: object) -> Wire:
    """Return a message with another value in its body."""
    assert old.encode() in wire.body
    return wire._replace(body=wire.body.replace(old.encode(), str(new).encode()))


async def _only(tables: Engine, engine: Engine, *jobs: JobRecord) -> None:
    """Check that the projection has these jobs as the streams have them."""
    page = await tables.find(JobFilter(), limit=100)
    assert sorted(each.definition.id for each in page.jobs) == sorted(
        each.definition.id for each in jobs
    )
    for each in page.jobs:
        job_id = each.definition.id
        assert (await engine.load([job_id])).records == (each,)
        assert await tables.journal(job_id) == await engine.journal(job_id)
        assert await tables.items(job_id) == await engine.items(job_id)
        assert await tables.activity(job_id) == await engine.activity(job_id)


async def test_an_event_whose_first_message_cannot_be_read_is_left_out(
    engine: Engine, tables: Engine, serving: Serving, foreign: Foreign
) -> None:
    first, own = await accept_one(engine, a_job()), a_job_id()
    row = await foreign.event(own, "created", Wire({}, b'{"a":1,"trellis":{"head":"newer"}}'))
    await foreign.event(own, "cancelled", encode_transition(*await _cancelled(engine, first, row)))
    last = await accept_one(engine, a_job())
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
    await _only(tables, engine, first, last)


async def test_bodies_that_are_not_what_they_should_be_are_left_out(  # noqa: PLR0917 - fixtures
    engine: Engine, tables: Engine, serving: Serving, foreign: Foreign, subjects: Subjects,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    first = await start(engine, await a_session(engine), a_job())
    row = first.definition.row
    end = encode_transition(*await _cancelled(engine, first, row))
    note = Note(row, 1, fence_of(first), Progress(1, 2))
    told = encode_note(first.definition, first.head, note, await engine.now())
    gone = encode_removal(first, 5)
    bad = [Wire({}, b'{"a":1,"trellis":' + _DEEP), Wire({}, b'{"a":1,"trellis":[]}')]
    bad += [_edited(end, f'"row":{row}', each) for each in ('"row":"a"', f'"row":{_HUGE}')]
    bad += [_edited(gone, '"at":5', '"at":[5]'), _edited(gone, '"at":5', '"at":"5"')]
    for wire in bad:
        await foreign.event(a_job_id(), "cancelled", wire)
    notes = [Wire({}, _DEEP), Wire({}, b"[]"), _edited(told, '"claim":1', '"claim":{}')]
    for wire in notes:
        await foreign.note(a_job_id(), wire)
    presence = f"{subjects.prefix}.jobs.workers.{MAIL}.send.i.heartbeat"
    said = b'{"service":["mail"],"jobType":"send","instanceId":"i","timestamp":"2026-01-01T00:00Z"}'
    for subject, body in ((presence, said), (subjects.own("batch", "b"), _DEEP)):
        await foreign.write(subject, Wire({}, body))
    last = await accept_one(engine, a_job())
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
    await _only(tables, engine, first, last)
    assert caplog.text.count("cannot be read and is left out") == len(bad) + len(notes) + 2


async def test_a_message_with_values_that_the_tables_refuse_is_left_out_alone(
    engine: Engine, tables: Engine, serving: Serving, foreign: Foreign
) -> None:
    own = a_job(service=MAIL, type="send")
    taken = await start(engine, await a_session(engine), own)
    before = await accept(engine, *(a_job() for _ in range(3)))
    new, now = a_job(id=before[1].definition.id, service=MAIL, type="send"), await engine.now()
    created = encode_created(new, define(new, 0, now), *creation(now, now))
    await foreign.event(new.id, "created", created)
    note = Note(taken.definition.row, 1, fence_of(taken), LogLine("info", "seen"))
    told = encode_note(taken.definition, taken.head, note, now)
    await foreign.note(own.id, _edited(told, '"claim":1', f'"claim":{_HUGE}'))
    await engine.note([note._replace(body=LogLine("info", "a\0b")), note])
    after = await accept(engine, *(a_job() for _ in range(3)))
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
    await _only(tables, engine, *before, taken, *after)
    assert (await tables.logs(own.id))[-1].message == "seen"


async def test_messages_that_name_the_job_of_another_service_leave_it_as_it_is(
    engine: Engine, tables: Engine, serving: Serving, foreign: Foreign
) -> None:
    job = await start(engine, await a_session(engine), a_job())
    other = await accept_one(engine, a_job(service=MAIL, type="send"))
    definition, now = job.definition, await engine.now()
    end = encode_transition(*await _cancelled(engine, job, definition.row))
    note = Note(definition.row, 1, fence_of(job), Progress(1, 2))
    told = encode_note(definition, job.head, note, now)
    for job_id in (a_job_id(), definition.id):
        await foreign.event(job_id, "cancelled", end)
        await foreign.note(job_id, told)
        await foreign.event(job_id, "removed", encode_removal(job, now))
    # Their own first message does not make it another job either.
    new = a_job(service=MAIL, type="send")
    wire = encode_created(new, define(new, 0, now), *creation(now, now))
    wire = _edited(wire, '"trellis":{', f'"trellis":{{"row":{definition.row},')
    await foreign.event(new.id, "created", wire)
    done = await settle(engine, job, Complete(fence_of(job), "null"))
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
    await _only(tables, engine, done, other)
