"""Several engine objects, and answers that are lost: each change is stored once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import cast

import pytest
from nats import errors as nats_errors

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.commands import Adjust, Cancel, LoseLease
from trellis.core.durations import SECOND
from trellis.core.job import JobId, Prerequisite, Relations
from trellis.core.policy import KeyPolicy
from trellis.engines.jetstream import sessions as session_table
from trellis.engines.jetstream.answers import WriteResult
from trellis.engines.jetstream.hints import hint, message_of
from trellis.engines.jetstream.link import Link, Message, Written
from trellis.engines.jetstream.subjects import JobName, Subjects, consumer_of
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Committed,
    Conflict,
    Heartbeat,
    LateResult,
    LockHolder,
    LogLine,
    Note,
    NoteResult,
    Renewed,
)
from trellis.errors import DiskFull, EngineError, EngineUnavailable, OutcomeUnknown
from trellis.testing import ManualClock
from trellis.testing.builders import (
    SERVICE,
    TYPE,
    a_demand,
    a_job,
    a_keyed_job,
    complete,
    fence_of,
)
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    decided,
    ids,
    journal,
    kinds,
    settle,
    start,
)


class ForgetfulLink(Link):
    """Loses the answers to the writes that it is told to lose: the server has stored them.

    Before a write is repeated, it lets something else happen.
    """

    loses = 0
    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def _send(self, messages: object, name: str) -> dict[str, object]:
        answer = await super()._send(messages, name)  # type: ignore[arg-type]
        if self.loses:
            self.loses -= 1
            if self.meanwhile is not None:
                await self.meanwhile()
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
    forgetful = ForgetfulLink(nats_url.split(","))
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


@pytest.mark.parametrize("is_changed", [True, False])
@pytest.mark.parametrize("count", [1, 3])
async def test_notes_whose_answers_were_lost_are_stored_once(
    engines: list[ManualEngine], nats_url: str, count: int, is_changed: bool
) -> None:
    operator, link = cast("Engine", engines[0]), ForgetfulLink(nats_url.split(","))
    worker = await _with(engines[1], link)
    taken = await start(worker, await a_session(worker), a_job())
    fence, row = fence_of(taken), taken.definition.row
    lines = [str(number) for number in range(count)]
    if is_changed:  # the attempt goes on
        link.meanwhile = lambda: settle(operator, taken, Cancel())
    link.loses = 1 if is_changed else 2
    notes = [Note(row, 1, fence, LogLine("info", each)) for each in lines]
    assert await worker.note(notes) == [NoteResult.NOTED] * count
    assert [each.message for each in await operator.logs(taken.definition.id)] == lines
    assert link.loses == 0


async def test_a_late_result_whose_answers_were_lost_is_journalled_once(
    engines: list[ManualEngine], nats_url: str
) -> None:
    link = ForgetfulLink(nats_url.split(","))
    engine = await _with(engines[1], link)
    lost = await start(engine, await a_session(engine), a_job())
    await settle(engine, lost, LoseLease(fence_of(lost), stopped=True, roll=0.0))
    link.loses = 2
    note = Note(lost.definition.row, 1, fence_of(lost), LateResult("Complete"))
    assert await engine.note([note]) == [NoteResult.NOTED]
    assert len(await journal(engine, lost)) == 4


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_slot_that_is_taken_from_a_lost_attempt_is_counted(
    engines: list[ManualEngine], link: Link, deployed: Subjects, is_lost: bool
) -> None:
    engine = cast("Engine", engines[0])
    rule = KeyPolicy("user/{id}", active=1, queued=2, when_full="wait")
    session = await a_session(engine)
    first = await start(engine, session, a_keyed_job("user/1", rule))
    await accept_one(engine, a_keyed_job("user/1", rule))
    fence = fence_of(first)
    await settle(engine, first, LoseLease(fence) if is_lost else Cancel(force=True))
    got = await link.last(deployed.jobs, deployed.key("shop", "invoice", "*"))
    assert got is not None
    assert json.loads(got.body)["staleTakeoverCount"] == int(is_lost)


class ForestalledLink(Link):
    """Lets something else happen between what was read and its next write."""

    before: Callable[[], Awaitable[object]] | None = None

    async def write(self, *messages: Message) -> WriteResult:
        before, self.before = self.before, None
        if before is not None:
            await before()
        return await super().write(*messages)


async def test_a_late_result_is_journalled_with_the_state_that_the_job_has_then(
    engines: list[ManualEngine], nats_url: str, clock: ManualClock
) -> None:
    engine, other = (cast("Engine", each) for each in engines[:2])
    await engines[1].close()
    link = engines[1]._link = engines[1]._store.link = ForestalledLink(nats_url.split(","))
    await other.open()
    lost = await start(engine, await a_session(engine), a_job())
    await settle(engine, lost, LoseLease(fence_of(lost), stopped=True, roll=0.0))
    clock.advance("1h")
    (again,) = await claim(engine, await a_session(engine))
    link.before = lambda: settle(engine, again, complete(again))
    note = Note(lost.definition.row, lost.head.claims, fence_of(lost), LateResult("Complete"))
    assert await other.note([note]) == [NoteResult.NOTED]
    *_, completed, late = await journal(engine, lost)
    assert (completed.state, late.version, late.state) == ("completed", 0, "completed")


async def _take_by_another(engine: Engine, name: str) -> LockHolder | None:
    """Let another attempt take a lock."""
    other = await start(engine, await a_session(engine), a_job())
    return await engine.take_lock(name, *fence_of(other))


async def test_a_lock_that_is_taken_while_its_attempt_is_ended_is_kept_for_the_running_handler(
    engines: list[ManualEngine], nats_url: str
) -> None:
    worker, link = cast("Engine", engines[0]), ForestalledLink(nats_url.split(","))
    operator = await _with(engines[1], link)
    taken = await start(worker, await a_session(worker), a_job())
    fence, answers = fence_of(taken), list[LockHolder | None]()

    async def take() -> None:
        answers.append(await worker.take_lock("table", *fence))

    link.before = take  # when the locks of the attempt were looked for, and its end is not stored
    await settle(operator, taken, Cancel(force=True))
    assert answers == [None]
    holder = await _take_by_another(worker, "table")
    assert holder is not None
    assert holder[1:3] == fence
    await worker.renew(fence.session, [], [fence])
    assert await _take_by_another(worker, "table") is None


async def test_a_lock_that_is_taken_when_its_attempt_has_just_ended_is_given_back(
    engines: list[ManualEngine], nats_url: str
) -> None:
    operator, link = cast("Engine", engines[0]), ForestalledLink(nats_url.split(","))
    worker = await _with(engines[1], link)
    taken = await start(worker, await a_session(worker), a_job())
    link.before = lambda: settle(operator, taken, Cancel(force=True))
    assert await worker.take_lock("table", *fence_of(taken)) is not None
    assert await operator.locks() == []
    assert await _take_by_another(operator, "table") is None


async def test_a_job_whose_result_is_to_be_handed_on_is_not_removed_at_the_same_time(
    engines: list[ManualEngine], nats_url: str
) -> None:
    engine, link = cast("Engine", engines[0]), ForestalledLink(nats_url.split(","))
    other = await _with(engines[1], link)
    first, waiting = await accept(engine, a_job(), a_job(type="other"))
    (taken,) = await claim(engine, await a_session(engine))
    await settle(engine, taken, complete(taken, '"result"'))
    names = [first.definition.id, waiting.definition.id]
    new = a_job(
        payload="null",
        after=tuple(Prerequisite(each) for each in names),
        relations=Relations(payload_from=first.definition.id),
    )
    link.before = lambda: other.create([new])  # when nothing waits for it, and it is not removed
    assert await other.remove(names[:1]) == ["needed"]
    (outcome,) = await engine.outcomes(first.definition.id)
    assert outcome.result == '"result"'
    assert await kinds(engine, first) == ["created", "started", "completed"]


class PlacelessLink(Link):
    """Stores no places of sessions: as if their stream had no leader."""

    async def write(self, *messages: Message) -> WriteResult:
        if ".state.held." in messages[0].subject:
            raise EngineUnavailable("no leader")
        return await super().write(*messages)


async def _with(engine: ManualEngine, link: Link) -> Engine:
    """Open an engine again, with another connection."""
    await engine.close()
    engine._link = engine._store.link = link
    await engine.open()
    return cast("Engine", engine)


async def _deliver_anew(link: Link, deployed: Subjects) -> None:
    """Have all work messages delivered again: a new consumer counts deliveries from one."""
    await link.api(f"CONSUMER.DELETE.{deployed.work}.{consumer_of(SERVICE, TYPE)}")


async def test_nothing_starts_if_the_place_of_a_claim_cannot_be_stored(
    engines: list[ManualEngine], nats_url: str, link: Link, deployed: Subjects
) -> None:
    engine, other = (
        cast("Engine", engines[0]),
        await _with(engines[1], PlacelessLink(nats_url.split(","))),
    )
    job = await accept_one(engine, a_job())
    with pytest.raises(EngineUnavailable):
        await claim(other, await a_session(other))
    assert await kinds(engine, job) == ["created"]
    await _deliver_anew(link, deployed)
    (taken,) = await claim(engine, await a_session(engine))
    assert (taken.definition.id, taken.head.attempt) == (job.definition.id, 1)


async def _deliver_again(engine: ManualEngine, link: Link) -> None:
    """Have the work messages of what an engine has claimed delivered once more."""
    for held in engine._sessions.held.values():
        await link.tell(held.ack, b"-NAK")
    await link.flush()


async def test_a_started_job_that_no_place_names_is_given_up_once_its_session_has_ended(
    engines: list[ManualEngine], link: Link, deployed: Subjects
) -> None:
    crashed, other = (cast("Engine", each) for each in engines[:2])
    session = await a_session(crashed)
    lost = await start(crashed, session, a_job())
    # As if the stream of the places had lost its end.
    await link.api(f"STREAM.PURGE.{deployed.state}", {"filter": deployed.value("held", ">")})
    await _deliver_again(engines[0], link)
    assert await claim(other, await a_session(other)) == []
    assert await kinds(other, lost) == ["created", "started"]
    await crashed.close_session(session)
    await _deliver_again(engines[0], link)
    assert await claim(other, await a_session(other)) == []
    assert await kinds(other, lost) == ["created", "started", "retry"]
    (answer,) = await crashed.commit([await decided(crashed, lost, complete(lost))])
    assert isinstance(answer, Conflict)


class StartedLink(Link):
    """Stores what starts jobs, and answers when it is let."""

    def __init__(self, servers: list[str]) -> None:
        super().__init__(servers)
        self.asked, self.is_let = asyncio.Event(), asyncio.Event()

    async def write_each(self, messages: Sequence[Message]) -> list[WriteResult | EngineError]:
        answers = await super().write_each(messages)
        if messages[0].subject.endswith(".started"):
            self.asked.set()
            await self.is_let.wait()
        return answers


async def test_what_a_cancelled_claim_has_started_is_found_by_its_session(
    engines: list[ManualEngine], nats_url: str
) -> None:
    engine, link = cast("Engine", engines[0]), StartedLink(nats_url.split(","))
    other = await _with(engines[1], link)
    session = await a_session(other)
    job = await accept_one(engine, a_job())
    claiming = asyncio.create_task(claim(other, session))
    await link.asked.wait()
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    answer = await other.renew(session, [])
    assert isinstance(answer, Renewed)
    assert [each.definition.id for each in answer.unknown] == [job.definition.id]


class UnheardLink(Link):
    """Stores what starts jobs, and does not know it of the last one."""

    is_deaf = True

    async def write_each(self, messages: Sequence[Message]) -> list[WriteResult | EngineError]:
        answers = await super().write_each(messages)
        if self.is_deaf and messages[0].subject.endswith(".started"):
            self.is_deaf = False
            answers[-1] = OutcomeUnknown("The server did not answer.")
        return answers


async def test_a_start_without_an_answer_is_found_by_its_session_whatever_is_claimed_later(
    engines: list[ManualEngine], nats_url: str
) -> None:
    engine, other = (
        cast("Engine", engines[0]),
        await _with(engines[1], UnheardLink(nats_url.split(","))),
    )
    session = await a_session(other)
    jobs = await accept(engine, a_job(), a_job())
    (known,) = await claim(other, session)
    (unheard,) = {each.definition.id for each in jobs} - {known.definition.id}
    await settle(other, known, complete(known))
    await accept(engine, a_job())
    (later,) = await claim(other, session)
    answer = await other.renew(session, [fence_of(later)])
    assert isinstance(answer, Renewed)
    assert [each.definition.id for each in answer.unknown] == [unheard]


class LateLink(Link):
    """Does not answer what starts a job once more, and stores it when it is let."""

    late: tuple[Message, ...] = ()

    async def write(self, *messages: Message) -> WriteResult:
        if messages[0].subject.endswith(".started") and not self.late:
            self.late = messages
            raise OutcomeUnknown("The server did not answer.")
        return await super().write(*messages)


async def test_a_start_of_a_changed_job_that_is_stored_late_is_found_by_its_session(
    engines: list[ManualEngine], nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_table, "_LOOK_EVERY", 0.0)
    link = LateLink([nats_url])
    engine, other = cast("Engine", engines[0]), await _with(engines[1], link)
    session = await a_session(other)
    changed = await accept_one(engine, a_job())
    await settle(engine, changed, Adjust(priority=2))
    # `created` does not say so: its start is refused, and tried again.
    with pytest.raises(OutcomeUnknown):
        await claim(other, session)
    for _ in range(3):
        taken = await start(other, session, a_job())
        await settle(other, taken, complete(taken))
    assert isinstance(await link.write(*link.late), Written)
    answer = await other.renew(session, [])
    assert isinstance(answer, Renewed)
    assert [each.definition.id for each in answer.unknown] == [changed.definition.id]


class RefusedLink(Link):
    """Stores nothing that starts a job: as if the stream had no space, and the others had."""

    async def write_each(self, messages: Sequence[Message]) -> list[WriteResult | EngineError]:
        if messages[0].subject.endswith(".started"):
            return [DiskFull("Nothing was stored.") for _ in messages]
        return await super().write_each(messages)


async def test_claims_that_fail_leave_no_places_behind(
    engines: list[ManualEngine], nats_url: str
) -> None:
    engine, other = (
        cast("Engine", engines[0]),
        await _with(engines[1], RefusedLink(nats_url.split(","))),
    )
    session = await a_session(other)
    for _ in range(3):
        await accept(engine, a_job())
        with pytest.raises(DiskFull):
            await claim(other, session)
    assert len(await engines[0]._sessions.places(session)) == 1, "one place, written three times"


async def test_claims_that_others_have_ended_are_forgotten(
    engines: list[ManualEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, other = (cast("Engine", each) for each in engines[:2])
    monkeypatch.setattr(session_table, "_LOOK_EVERY", 0.0)
    session = await a_session(other)
    for _ in range(6):
        taken = await start(other, session, a_job())
        await settle(engine, taken, Cancel(force=True))
    kept = await start(other, session, a_job())
    assert len(engines[1]._sessions.held) <= 3
    assert fence_of(kept) in engines[1]._sessions.held


async def test_a_second_message_about_a_claimed_job_is_acknowledged_and_its_own_is_left(
    engines: list[ManualEngine], link: Link, deployed: Subjects
) -> None:
    holder, other = (cast("Engine", each) for each in engines[:2])
    taken = await start(holder, await a_session(holder), a_job())
    await link.write(hint(deployed.due(JobName(SERVICE, TYPE, taken.definition.id))))
    await other.catch_up()
    await _deliver_anew(link, deployed)
    last = (await link.api(f"STREAM.INFO.{deployed.work}"))["state"]["last_seq"]
    assert await claim(other, await a_session(other)) == []
    # Its own message would be acknowledged first.
    while await link.get(deployed.work, last) is not None:
        pass
    (held,) = engines[0]._sessions.held.values()
    assert await link.get(deployed.work, int(message_of(held.ack))) is not None
    assert await kinds(other, taken) == ["created", "started"]


async def test_a_message_that_cannot_be_read_delays_no_other_one(
    engines: list[ManualEngine], link: Link, deployed: Subjects
) -> None:
    engine = cast("Engine", engines[0])
    await link.write(Message(deployed.due(JobName(SERVICE, TYPE, JobId("x"))), b"no object"))
    job = await accept_one(engine, a_job())
    (taken,) = await claim(engine, await a_session(engine))
    assert taken.definition.id == job.definition.id


async def test_a_started_job_that_a_place_names_is_left_to_its_session(
    engines: list[ManualEngine], link: Link
) -> None:
    holder, other = (cast("Engine", each) for each in engines[:2])
    taken = await start(holder, await a_session(holder), a_job())
    await _deliver_again(engines[0], link)
    assert await claim(other, await a_session(other)) == []
    assert await kinds(other, taken) == ["created", "started"]
    await settle(holder, taken, complete(taken))


async def test_a_message_that_is_delivered_again_replaces_no_newer_schedule(
    engines: list[ManualEngine], link: Link, deployed: Subjects, clock: ManualClock
) -> None:
    engine = cast("Engine", engines[0])
    session = await a_session(engine, "1h")
    job = await accept_one(engine, a_job(delay=3600 * SECOND))
    await engine.catch_up()
    await engines[0]._lanes.provide_consumer(SERVICE, TYPE)
    # A worker gets the message, and dies before it deals with it.
    (created,) = await link.pull(deployed.work, consumer_of(SERVICE, TYPE), 1, 10.0)
    await settle(engine, job, Adjust(run_at=clock.now() + 300 * SECOND))
    assert await claim(engine, session) == []
    await link.tell(created.reply, b"-NAK")
    sequence = int(message_of(created.reply))
    while await link.get(deployed.work, sequence) is not None:
        assert await claim(engine, session) == []
    clock.advance("5m")
    assert ids(await claim(engine, session)) == ids([job])


async def test_the_run_time_that_is_stored_last_counts_when_two_workers_schedule_a_job(
    engines: list[ManualEngine], nats_url: str, clock: ManualClock
) -> None:
    engine = cast("Engine", engines[0])
    await engines[1].close()
    link = engines[1]._link = engines[1]._store.link = ForestalledLink([nats_url])
    slow = cast("Engine", engines[1])
    await slow.open()
    session, other = await a_session(engine, "1h"), await a_session(slow, "1h")
    job = await accept_one(engine, a_job(delay=3600 * SECOND))

    async def adjust() -> None:
        await settle(engine, job, Adjust(run_at=clock.now() + 300 * SECOND))
        assert await claim(engine, session) == []

    link.before = adjust
    assert await claim(slow, other) == []
    assert link.before is None
    clock.advance("5m")
    assert ids(await claim(engine, session)) == ids([job])
