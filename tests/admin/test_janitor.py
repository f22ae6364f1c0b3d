"""Deadlines without workers, and work messages that the server no longer delivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from trellis.admin.janitor import GIVEN_UP_AT_MOST, Advisories, Janitor
from trellis.admin.runtime import AdminRuntime
from trellis.core.commands import Cancel, Fail
from trellis.core.durations import SECOND, micros
from trellis.core.job import Failure, JobRecord, NewJob, SessionId
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.audit import AuditFilter
from trellis.engines.demand import Demand
from trellis.engines.jetstream import topology, upkeep
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.hints import hint
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.seal import DeploymentSeal
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import JobName, Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, QueueSettings
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, complete, fence_of
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    head,
    ids,
    kinds,
    settle,
    start,
)
from trellis.worker import maintenance

pytestmark = pytest.mark.usefixtures("runtime")


def in_turn(number: int) -> list[NewJob]:
    """Return jobs of one key that run one at a time."""
    policy = Policy(key=KeyPolicy("user/{id}", 1, None, "wait"))
    return [a_job(type="turn", policy=policy, key="user/1") for _ in range(number)]


async def claim_all(engine: Engine, session: SessionId) -> list[JobRecord]:
    """Claim what can start."""
    await engine.catch_up()
    demand = Demand("shop", ("invoice", "turn"), 100)
    return list((await engine.claim(session, [demand], 100)).jobs)


@pytest.fixture
async def advisories(
    runtime: AdminRuntime,
    engine: Engine,
) -> Advisories:
    advisories = Advisories(runtime.store, engine)
    await advisories.begin()
    return advisories


async def test_waiting_jobs_expire_at_their_deadline(engine: Engine, clock: ManualClock) -> None:
    late, soon = await accept(engine, a_job(deadline_in=10 * SECOND), a_job(deadline_in=SECOND))
    janitor = Janitor(engine)
    assert await janitor.sweep() == 0
    clock.advance("1s")
    assert await janitor.sweep() == 1
    assert await janitor.sweep() == 0
    assert (await head(engine, soon)).state is State.EXPIRED
    assert (await head(engine, late)).state is State.PENDING


async def test_running_jobs_expire_too_and_other_timers_are_left_to_workers(
    engine: Engine, clock: ManualClock
) -> None:
    session = await a_session(engine)
    late = await start(engine, session, a_job(deadline_in=SECOND))
    slow = await start(engine, session, a_job(policy=Policy(timeout=SECOND), type="slow"))
    clock.advance("20s")
    assert await Janitor(engine).sweep() == 1
    assert (await head(engine, late)).state is State.EXPIRED
    assert await head(engine, slow) == slow.head


async def test_two_janitors_expire_a_job_once(engine: Engine, clock: ManualClock) -> None:
    record = await accept_one(engine, a_job(deadline_in=SECOND))
    clock.advance("1s")
    await asyncio.gather(Janitor(engine).sweep(), Janitor(engine).sweep())
    assert await kinds(engine, record) == ["created", "expired"]


async def _give_up(link: Link, subjects: Subjects, engine: Engine) -> None:
    """Let the server deliver the work message of the only job once too often."""
    await engine.catch_up()
    stream, name = subjects.work, "shop=invoice"
    config = {
        "durable_name": name, "name": name, "ack_policy": "explicit", "max_deliver": 1,
        "ack_wait": 1_000_000, "filter_subject": subjects.work_of("shop", "invoice"),
    }  # fmt: skip
    await link.api(
        f"CONSUMER.CREATE.{stream}.{name}.{subjects.work_of('shop', 'invoice')}",
        {"stream_name": stream, "config": config, "action": ""},
    )
    assert len(await link.pull(stream, name, 1)) == 1
    await link.pull(stream, name, 1, 0.1)


async def _until_read(advisories: Advisories) -> None:
    async with asyncio.timeout(20):
        while not await advisories.step(0.2):
            pass


@pytest.mark.parametrize("dead_letters", [True, False])
async def test_a_job_that_the_server_gave_up_is_a_dead_letter(
    advisories: Advisories, link: Link, subjects: Subjects, engine: Engine, *, dead_letters: bool
) -> None:
    record = await accept_one(engine, a_job(policy=Policy(dead_letters=dead_letters)))
    for _ in range(GIVEN_UP_AT_MOST):
        assert (await head(engine, record)).state is State.PENDING
        await _give_up(link, subjects, engine)
        await _until_read(advisories)
    after = await head(engine, record)
    assert after.state is (State.DEAD if dead_letters else State.FAILED)
    assert after.error is not None
    assert after.error.code == "exhausted"
    info = await link.api(f"STREAM.INFO.{subjects.work}")
    assert info["state"]["messages"] == 0


async def test_advisories_wait_while_no_runtime_reads_them(
    runtime: AdminRuntime, link: Link, subjects: Subjects, engine: Engine
) -> None:
    record = await accept_one(engine, a_job())
    info = f"STREAM.INFO.{subjects.stream('JOBS_ADVISORIES')}"
    for number in range(1, GIVEN_UP_AT_MOST + 1):
        await _give_up(link, subjects, engine)
        async with asyncio.timeout(20):
            while (state := (await link.api(info))["state"])["last_seq"] < number:
                pass
        # The first one is there before any runtime has made the consumer.
        assert state["consumer_count"] == (0 if number == 1 else 1)
        assert (await head(engine, record)).state is State.PENDING
        late = Advisories(runtime.store, engine)
        await late.begin()
        await _until_read(late)
    assert (await head(engine, record)).state is State.DEAD
    assert await kinds(engine, record) == ["created", "dead"]


async def test_an_advisory_about_a_job_that_runs_changes_nothing(
    advisories: Advisories, link: Link, subjects: Subjects, engine: Engine
) -> None:
    taken = await start(engine, await a_session(engine), a_job())
    (work,) = await link.following(subjects.work, f"{subjects.prefix}.work.>", 1)
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{subjects.work}.shop=invoice"
    body = b'{"stream_seq": %d, "deliveries": 5}' % work.sequence
    await link.ask(subject, body, 5)
    await _until_read(advisories)
    assert await head(engine, taken) == taken.head
    await engine.catch_up()
    info = await link.api(f"STREAM.INFO.{subjects.work}")
    assert info["state"]["messages"] == 0


async def test_an_advisory_about_a_job_that_waits_for_its_retry_starts_it_no_earlier(
    advisories: Advisories, link: Link, subjects: Subjects, engine: Engine, clock: ManualClock
) -> None:
    session = await a_session(engine, "1h")
    retry = Policy(retry=Retry.fixed("10m", attempts=3))
    taken = await start(engine, session, a_job(policy=retry))
    failure = Failure("exception", "ValueError: no")
    waiting = await settle(engine, taken, Fail(fence_of(taken), failure, retryable=True))
    job = JobName("shop", "invoice", waiting.definition.id)
    await link.write(hint(subjects.due(job)))
    await engine.catch_up()
    work = await link.last(subjects.work, subjects.work_of("shop", "invoice"))
    assert work is not None
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{subjects.work}.shop=invoice"
    await link.ask(subject, b'{"stream_seq": %d, "deliveries": 5}' % work.sequence, 5)
    await _until_read(advisories)
    assert await claim(engine, session) == []
    clock.advance("12m")
    later = await link.last(subjects.later, subjects.scheduled(job))
    assert later is not None  # the server fires it by its own clock
    await link.write(Message(later.headers["Nats-Schedule-Target"], later.body))
    assert ids(await claim(engine, session)) == [waiting.definition.id]


async def test_an_advisory_about_a_job_that_has_moved_on_changes_nothing(
    advisories: Advisories, link: Link, subjects: Subjects, engine: Engine
) -> None:
    ended, removed = await accept(engine, a_job(), a_job())
    await engine.catch_up()
    works = await link.following(subjects.work, f"{subjects.prefix}.work.>", 1)
    for record in (ended, removed):
        await settle(engine, record, Cancel())
    await engine.remove([removed.definition.id])
    before = await head(engine, ended)
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{subjects.work}.shop=invoice"
    for sequence in (*(work.sequence for work in works), 99):
        await link.ask(subject, b'{"stream_seq": %d, "deliveries": 5}' % sequence, 5)
    read = 0
    while read < len(works) + 1:
        read += await advisories.step(0.2)
    assert await head(engine, ended) == before
    assert (await engine.load([removed.definition.id])).removed == {removed.definition.id}
    info = await link.api(f"STREAM.INFO.{subjects.work}")
    assert info["state"]["messages"] == 0


async def test_tidying_removes_all_that_is_kept_no_longer(
    runtime: AdminRuntime, engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_PAGE", 5)
    policy = Policy(retention=Retention(other=SECOND))
    for record in await accept(engine, *(a_job(policy=policy) for _ in range(12))):
        await settle(engine, record, Cancel())
    clock.advance("29d")
    await engine.set_queue(QueueSettings("shop", "other", paused=True))
    clock.advance("2d")
    assert await Janitor(engine, runtime.store, keep_audit=micros("30d")).tidy() == 24
    assert (await engine.count(JobFilter())).total == 0
    (entry,) = await engine.audit(AuditFilter())
    assert entry.change.action == "queue.pause"


# -- lost hints ------------------------------------------------------------------------------------


@pytest.fixture
def janitor(engine: Engine, runtime: AdminRuntime) -> Janitor:
    return Janitor(engine, runtime.store)


async def test_jobs_start_although_the_work_queue_was_purged(
    janitor: Janitor, link: Link, subjects: Subjects, engine: Engine, clock: ManualClock
) -> None:
    session = await a_session(engine, "1h")
    first = await start(engine, session, a_job())
    waiting = await accept(engine, *(a_job() for _ in range(3)), *in_turn(2))
    await engine.catch_up()
    await link.api(f"STREAM.PURGE.{subjects.work}")
    assert await janitor.rehint() == 0
    clock.advance("61s")
    assert await janitor.rehint() == 4  # the second one of the key has no slot
    assert await janitor.rehint() == 0
    started = await claim_all(engine, session)
    assert {each.definition.id for each in started} == {each.definition.id for each in waiting[:-1]}
    for taken in (first, *started):
        await settle(engine, taken, complete(taken))
    (last,) = await claim_all(engine, session)
    assert last.definition.id == waiting[-1].definition.id


@pytest.mark.long
async def test_jobs_start_although_the_work_queue_was_made_anew(
    janitor: Janitor, link: Link, subjects: Subjects, engine: Engine, clock: ManualClock
) -> None:
    session = await a_session(engine, "1h")
    await start(engine, session, a_job())
    waiting = await accept(engine, a_job(), a_job())
    await engine.catch_up()
    await link.api(f"STREAM.DELETE.{subjects.work}")
    await topology.migrate(link, subjects, 1, dry_run=False)
    started = await claim_all(engine, session)  # makes the consumer of the type again
    clock.advance("61s")
    await janitor.rehint()
    started += await claim_all(engine, session)
    assert ids(started) == ids(waiting)


async def test_delayed_jobs_start_although_the_schedules_were_lost(
    janitor: Janitor, link: Link, subjects: Subjects, engine: Engine, clock: ManualClock
) -> None:
    session = await a_session(engine, "1h")
    record = await accept_one(engine, a_job(delay=10 * SECOND))
    assert await claim_all(engine, session) == []
    await link.api(f"STREAM.PURGE.{subjects.later}")
    clock.advance("30s")
    assert await janitor.rehint() == 0
    clock.advance("41s")
    assert await janitor.rehint() == 1
    (taken,) = await claim_all(engine, session)
    assert taken.definition.id == record.definition.id


async def test_jobs_that_wait_behind_others_are_not_hinted_at_again(
    janitor: Janitor, engine: Engine, clock: ManualClock
) -> None:
    await accept(engine, *(a_job() for _ in range(3)))
    await engine.catch_up()
    clock.advance("10m")
    assert await janitor.rehint() == 0


# -- what verbs leave behind -----------------------------------------------------------------------


async def test_of_a_removed_job_with_a_key_and_marks_only_the_removal_is_left(
    janitor: Janitor,
    link: Link,
    subjects: Subjects,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "KEEP_EMPTY", -SECOND)
    session = await a_session(engine)
    (new,) = in_turn(1)
    taken = await start(engine, session, new._replace(idempotency_key="once"))
    kept = await accept_one(engine, a_job(idempotency_key="kept"))
    await settle(engine, taken, complete(taken))
    await engine.remove([taken.definition.id])
    while await janitor.compact():
        pass
    own = await link.following(subjects.jobs, subjects.own("marks", ">"), 1)
    own += await link.following(subjects.jobs, subjects.own("keys", ">"), 1)
    mark = subjects.mark("shop", "invoice", "i", "kept")
    assert [got.subject for got in own] == [mark]
    assert kept.definition.id.encode() in own[0].body
    again = await accept_one(engine, new._replace(idempotency_key="once"))
    assert again.definition.id == taken.definition.id


async def test_that_a_key_is_free_is_kept_for_projections_that_are_behind(
    janitor: Janitor, link: Link, subjects: Subjects, engine: Engine
) -> None:
    (new,) = in_turn(1)
    taken = await start(engine, await a_session(engine), new)
    await settle(engine, taken, complete(taken))
    while await janitor.compact():
        pass
    keys = await link.following(subjects.jobs, subjects.own("keys", ">"), 1)
    assert [got.body for got in keys] == [b""]


async def test_a_deletion_that_a_crash_has_prevented_is_made_good(
    janitor: Janitor, runtime: AdminRuntime, link: Link, subjects: Subjects, engine: Engine
) -> None:
    record = await accept_one(engine, a_job())
    await settle(engine, record, Cancel())
    draft = Draft(runtime.store)
    current = await draft.job(record.definition.id)
    assert current is not None
    draft.remove(current)
    await draft.write()
    await janitor.compact()
    left = await link.following(subjects.jobs, f"{subjects.prefix}.jobs.shop.>", 1)
    assert [subjects.event_of(got.subject) for got in left] == ["removed"]


async def test_locks_of_ended_sessions_and_expired_jobs_are_removed(
    janitor: Janitor, link: Link, subjects: Subjects, engine: Engine, clock: ManualClock
) -> None:
    session = await a_session(engine)
    assert await engine.take_lock("report", session) is None
    await engine.close_session(session)
    record = await accept_one(engine, a_job(policy=Policy(retention=Retention(other=SECOND))))
    await settle(engine, record, Cancel())
    clock.advance("10s")
    assert await janitor.tidy() == 2
    assert (await engine.load([record.definition.id])).removed == {record.definition.id}
    assert await link.following(subjects.state, subjects.value("lock", "*"), 1) == []


# -- the log ---------------------------------------------------------------------------------------


async def test_that_the_jobs_were_moved_is_logged_once(
    janitor: Janitor,
    runtime: AdminRuntime,
    engine: Engine,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = Policy(retention=Retention(other=SECOND))
    ended, _ = await accept(engine, a_job(policy=policy), a_job(deadline_in=SECOND))
    await settle(engine, ended, Cancel())
    seal = DeploymentSeal(runtime.store)
    await seal.put("other", "postgresql://host/jobs")
    await seal.finish()
    clock.advance("10s")
    for work in (janitor.sweep, janitor.tidy, janitor.sweep, janitor.tidy):
        await janitor._try(work)
    assert janitor._waits == {"sweep", "tidy"}
    (line,) = [each for each in caplog.messages if "anitor" in each]
    assert "moved to postgresql://host/jobs" in line
    assert "Use that URL instead" in line


class _Counted(Advisories):
    """Counts how often reading begins."""

    tries = 0

    async def begin(self) -> None:
        self.tries += 1
        await super().begin()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - another task logs
            await asyncio.sleep(0.01)


async def test_an_outage_of_the_advisories_is_two_lines_of_the_log(
    link: Link, subjects: Subjects, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    reading = _Counted(Store(link, subjects, Time(None)), engine)
    await link.close()
    task = asyncio.create_task(reading.run())
    await _until(lambda: reading.tries == 3)
    await link.open()
    await _until(lambda: "are read again" in caplog.text)
    task.cancel()
    waits, again = [each for each in caplog.messages if "dvisories" in each]
    assert waits.startswith("Advisories wait: ")
    assert again == "Advisories are read again."
