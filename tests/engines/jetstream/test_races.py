"""Several engine objects, and answers that are lost: each change is stored once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats import errors as nats_errors

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.policy import KeyPolicy
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.values import Accepted, Committed, Heartbeat, Note, NoteResult
from trellis.testing import ManualClock
from trellis.testing.builders import a_demand, a_job, a_keyed_job, complete, fence_of
from trellis.testing.conformance.helpers import a_session, claim, decided, ids, journal, start


class ForgetfulLink(Link):
    """Loses the answers to the writes that it is told to lose: the server has stored them."""

    loses = 0

    async def _send(self, messages: object, name: str) -> dict[str, object]:
        answer = await super()._send(messages, name)  # type: ignore[arg-type]
        if self.loses:
            self.loses -= 1
            raise nats_errors.TimeoutError
        return answer


@pytest.fixture
async def engines(
    nats_url: str, deployed: Subjects, clock: ManualClock
) -> AsyncIterator[list[ManualEngine]]:
    """Three engine objects on one deployment."""
    engines = [ManualEngine(nats_url, prefix=deployed.prefix, clock=clock) for _ in range(3)]
    for engine in engines:
        await engine.open()
    yield engines
    for engine in engines:
        await engine.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_a_key_with_room_for_three_takes_three_of_fifteen(
    engines: list[ManualEngine],
) -> None:
    rule = KeyPolicy("user/{id}", active=1, queued=2, when_full="reject")
    jobs = [a_keyed_job("user/1", rule) for _ in range(15)]
    pairs = zip(engines * 5, jobs, strict=True)
    answers = await asyncio.gather(*(engine.create([new]) for engine, new in pairs))
    assert sum(isinstance(answer, Accepted) for (answer,) in answers) == 3
    (status,) = await engines[0].keys("shop", "invoice")
    assert (len(status.holders), status.waiting) == (1, 2)


async def test_a_job_is_started_by_one_of_many_that_hear_of_it(
    engines: list[ManualEngine], link: Link, deployed: Subjects
) -> None:
    jobs = [a_job() for _ in range(20)]
    await engines[0].create(jobs)
    for job in jobs:  # each gets a second hint
        subject = f"{deployed.prefix}.due.{job.service}.{job.type}.{job.id}"
        await link.write(Message(subject, b""))
    sessions = [await a_session(engine) for engine in engines]
    pairs = zip(engines, sessions, strict=True)
    taken = await asyncio.gather(*(claim(engine, session) for engine, session in pairs))
    started = [job_id for each in taken for job_id in ids(each)]
    assert sorted(started) == sorted(job.id for job in jobs)


async def test_one_of_two_settlements_of_an_attempt_is_stored(engines: list[ManualEngine]) -> None:
    one, two, _ = engines
    taken = await start(one, await a_session(one), a_job())
    await two.load([taken.definition.id])
    ends = [await decided(one, taken, complete(taken, result)) for result in ("1", "2")]
    answers = await asyncio.gather(one.commit(ends[:1]), two.commit(ends[1:]))
    kinds = sorted(type(answer).__name__ for (answer,) in answers)
    assert kinds == ["Committed", "Conflict"]
    assert [event.kind.value for event in await journal(one, taken)] == [
        "created", "started", "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["create", "claim", "commit", "note"])
async def test_a_verb_whose_answer_was_lost_has_its_effect_once(
    engines: list[ManualEngine], nats_url: str, verb: str
) -> None:
    engine = engines[0]
    await engine.close()
    forgetful = ForgetfulLink([nats_url])
    engine._link = engine._store.link = forgetful
    await engine.open()
    session = await a_session(engine)

    def lose(now: str) -> None:
        forgetful.loses = int(verb == now)

    new = a_job()
    lose("create")
    assert await engine.create([new]) == [Accepted(new.id)]
    await engine.catch_up()
    lose("claim")
    (taken,) = (await engine.claim(session, [a_demand()], 1)).jobs
    lose("note")
    row, fence = taken.definition.row, fence_of(taken)
    assert await engine.note([Note(row, 1, fence, Heartbeat())]) == [NoteResult.NOTED]
    lose("commit")
    assert await engine.commit([await decided(engine, taken, complete(taken))]) == [Committed()]
    assert [event.kind.value for event in await journal(engine, taken)] == [
        "created", "started", "completed",
    ]  # fmt: skip
