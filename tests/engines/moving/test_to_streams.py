"""Moving to NATS JetStream: what goes on there, and what is refused before anything is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.engines.jetstream.manual import ManualEngine
from tests.engines.moving.estate import BATCH, found
from tests.engines.postgres.household import ERROR, HOUR, LATER, inventory
from trellis import ActiveJob, Service, control
from trellis.core.commands import Complete, Fail
from trellis.core.durations import SECOND
from trellis.core.job import Dedupe, JobId, NewJob
from trellis.core.keys import hash_key
from trellis.core.policy import KeyPolicy
from trellis.core.states import ENDED, State
from trellis.engines.audit import AuditFilter, By
from trellis.engines.jetstream import keys, line
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.import_checks import read_jobs
from trellis.engines.jetstream.import_jobs import JetStreamImporter, Progress
from trellis.engines.jetstream.state import decided, purge
from trellis.engines.jetstream.subjects import JobName
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Accepted, Coalesced, LogLine, Note
from trellis.errors import EngineError, MoveRefused
from trellis.operations.transfer import Endpoint, Moved, move
from trellis.testing.builders import a_demand, a_job, a_keyed_job, a_worker, fence_of

MIA = By("mia", "growing")
PATIENCE = 30.0
_PLACE = Progress("a-move", 0)
_IN_TURN = KeyPolicy("user/{id}", 1, None, "wait")


@pytest.fixture
async def named(tmp_path: Path) -> dict[str, NewJob]:
    return await found(tmp_path / "jobs.db")


@pytest.fixture
async def source(named: dict[str, NewJob], tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "jobs.db")
    await engine.open()
    yield engine
    await engine.close()


@asynccontextmanager
async def _wordy(path: Path, lines: int) -> AsyncIterator[tuple[SqliteEngine, NewJob]]:
    """A file with a job that has logged a lot and waits for its next attempt, and another one."""
    engine = SqliteEngine(path)
    await engine.open()
    job = a_job(type="burn", policy=LATER)
    await engine.create([job, a_job()])
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    (taken,) = (await engine.claim(session, [a_demand("burn")], 1)).jobs
    row, claim, fence = taken.definition.row, taken.head.claims, fence_of(taken)
    await engine.note(
        [Note(row, claim, fence, LogLine("info", str(number))) for number in range(lines)]
    )
    await control.apply(engine, job.id, Fail(fence, ERROR))
    await engine.close_session(session)
    yield engine, job
    await engine.close()


async def carry(source: SqliteEngine, target: ManualEngine, *, history: bool = False) -> Moved:
    """Move in batches of a few."""
    here, there = Endpoint(source, "sqlite:///jobs.db"), Endpoint(target, "nats://there")
    return await move(here, there, MIA, history=history, batch_size=4)


async def test_what_waits_and_the_dead_arrive_and_the_history_when_asked_for_later(
    source: SqliteEngine, streams: ManualEngine
) -> None:
    before = await inventory(source)
    moved = await carry(source, streams)
    kept = [job_id for job_id, thing in before.items() if thing.record.head.state not in ENDED]
    assert set(kept) <= set(await inventory(streams))
    moved = await carry(source, streams, history=True)
    assert (moved.copied, moved.known) == (moved.copied, len(before) - moved.copied)
    after = await inventory(streams)
    assert (moved.left, set(after)) == (0, set(before))
    told = await streams.audit(AuditFilter(action="store.move"), limit=9)
    assert [entry.by for entry in told] == [MIA, MIA]  # one for each of the two
    with pytest.raises(EngineError, match="moved to nats://there"):
        await source.create([a_job()])


async def test_marks_of_moved_jobs_still_stand_for_them(
    source: SqliteEngine, streams: ManualEngine, named: dict[str, NewJob]
) -> None:
    await carry(source, streams)
    answers = await streams.create(
        [
            a_job(type="burn", idempotency_key="retry-once"),
            a_job(dedupe="delayed-once"),
            a_job(type="burn", dedupe="hour"),
            named["low"],
        ]
    )
    existing = [answer.existing for answer in answers if isinstance(answer, Coalesced)]
    assert existing == [named[name].id for name in ("retry", "delayed", "dead")]
    assert answers[-1] == Accepted(named["low"].id)


async def test_keys_go_on_where_they_were(
    source: SqliteEngine, streams: ManualEngine, named: dict[str, NewJob]
) -> None:
    await carry(source, streams)
    # The older job of the key waits, because the younger one keeps its slot until it has ended.
    (held,) = await streams.keys("shop", "held")
    assert (held.holders, held.waiting) == ((named["held"].id,), 1)
    session = (await streams.open_session(a_worker(), 30 * SECOND)).id
    demand = [a_demand("invoice", "held")]
    taken = {each.definition.id: each for each in (await streams.claim(session, demand, 99)).jobs}
    assert {named[name].id for name in ("high", "low", "turn-1", "config")} <= set(taken)
    assert not {named[name].id for name in ("turn-2", "paused", "held-waits")} & set(taken)
    turn = taken[named["turn-1"].id]
    await control.apply(streams, turn.definition.id, Complete(fence_of(turn)))
    (then,) = (await streams.claim(session, demand, 99)).jobs
    assert then.definition.id == named["turn-2"].id


async def test_a_moved_job_that_keeps_its_slot_does_not_start_before_its_time(
    source: SqliteEngine, streams: ManualEngine, named: dict[str, NewJob]
) -> None:
    batch = await source.exporter().batch(0, 99, ["pending", "retry"], whole=True)
    await streams.importer().import_batch("a-move", batch)
    session = (await streams.open_session(a_worker(), 30 * SECOND)).id
    for _ in range(2):  # the first claim looks at the messages of the move itself
        assert (await streams.claim(session, [a_demand("held")], 99)).jobs == ()
        await streams.importer().assign_slots()
    (held,) = await streams.keys("shop", "held")
    assert held.holders == (named["held"].id,)
    subjects = streams._subjects
    job = JobName("shop", "held", named["held"].id)
    assert await streams._link.last(subjects.later, subjects.scheduled(job)) is not None


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide lines of five jobs already."""
    monkeypatch.setattr(line, "WHOLE", 4)
    monkeypatch.setattr(line, "HEAD", 2)
    monkeypatch.setattr(line, "PAGE", 3)


async def _import_line(tmp_path: Path, streams: ManualEngine) -> list[JobId]:
    """Import jobs of one key; they have no slot yet."""
    source = SqliteEngine(tmp_path / "line.db")
    await source.open()
    jobs = [a_keyed_job("user/1", _IN_TURN) for _ in range(20)]
    await source.create(jobs)
    batch = await source.exporter().batch(0, 99, ["pending"], whole=True)
    assert await streams.importer().import_batch("a-move", batch) == 20
    await source.close()
    return [job.id for job in jobs]


async def _run_all(streams: ManualEngine, count: int) -> list[JobId]:
    """Run so many jobs, one at a time."""
    session, ran = (await streams.open_session(a_worker(), HOUR)).id, list[JobId]()
    for _ in range(count):
        (taken,) = (await streams.claim(session, [a_demand()], 9)).jobs
        await control.apply(streams, taken.definition.id, Complete(fence_of(taken)))
        ran.append(taken.definition.id)
    return ran


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("place", [0, 1, 7, 19])
async def test_a_job_that_is_cancelled_during_a_move_leaves_its_line(
    streams: ManualEngine, tmp_path: Path, place: int
) -> None:
    jobs = await _import_line(tmp_path, streams)
    await control.cancel(streams, jobs[place])
    (status,) = await streams.keys("shop", "invoice")
    assert status.waiting + len(status.holders) == 19
    await streams.importer().assign_slots()
    del jobs[place]
    assert await _run_all(streams, 19) == jobs
    assert await streams.keys("shop", "invoice") == []


@pytest.mark.usefixtures("short")
async def test_jobs_in_a_line_that_have_ended_or_are_missing_get_no_slot_after_a_move(
    streams: ManualEngine, tmp_path: Path
) -> None:
    jobs = await _import_line(tmp_path, streams)
    ended = a_job()
    await streams.create([ended])
    await control.cancel(streams, ended.id)

    async def enter(draft: Draft) -> None:
        own = line.Line(draft, "shop", "invoice", hash_key("shop", "invoice", "user/1"))
        state = await own.read("user/1")
        for job_id in (ended.id, JobId("missing")):
            first = state.waiting[0]._replace(id=job_id, order=0, priority=1)
            state = keys.enter(state, first)
        await own.put(state)

    await decided(streams._store, enter)
    await streams.importer().assign_slots()
    assert await _run_all(streams, 20) == jobs
    assert await streams.keys("shop", "invoice") == []


async def test_jobs_that_wait_for_others_and_batches_go_on(
    source: SqliteEngine, streams: ManualEngine, named: dict[str, NewJob]
) -> None:
    await carry(source, streams)
    session = (await streams.open_session(a_worker(), 30 * SECOND)).id

    async def finish(job_type: str) -> list[JobId]:
        taken = (await streams.claim(session, [a_demand(job_type)], 9)).jobs
        for each in taken:
            await control.apply(streams, each.definition.id, Complete(fence_of(each), "1"))
        return [each.definition.id for each in taken]

    assert await finish("link") == [named["link-2"].id]
    (taken,) = (await streams.claim(session, [a_demand("link")], 9)).jobs
    assert (taken.definition.id, taken.definition.payload) == (named["link-3"].id, "[42]")
    await control.apply(streams, taken.definition.id, Complete(fence_of(taken)))
    assert await finish("link") == [named["link-4"].id]
    assert len(await finish("member")) == 3
    (status,) = await streams.batch_statuses([BATCH.id])
    assert status is not None
    assert (status.batch.state, status.counts) == ("finished", {State.COMPLETED: 3})
    assert len(await finish("report")) == 1


async def test_a_job_before_its_time_has_a_schedule_and_an_ended_one_has_none(
    source: SqliteEngine, streams: ManualEngine, named: dict[str, NewJob]
) -> None:
    await carry(source, streams, history=True)
    subjects = streams._subjects
    later = await streams._link.last_many(subjects.later, [f"{subjects.prefix}.later.>"])
    ids = {got.subject.rpartition(".")[2] for got in later}
    assert ids == {named[name].id for name in ("delayed", "retry", "held")}
    # What has ended is hinted at, too; a worker looks at it once.
    session = (await streams.open_session(a_worker(), 30 * SECOND)).id
    assert (await streams.claim(session, [a_demand("burn", "easy", "never")], 99)).jobs == ()
    await streams.catch_up()
    for name in ("burn", "easy", "never"):
        info = await streams._link.api(f"CONSUMER.INFO.{subjects.work}.shop={name}")
        assert (info["num_pending"], info["num_ack_pending"]) == (0, 0)


async def test_a_job_with_more_log_lines_than_one_write_takes_arrives_whole(
    streams: ManualEngine, tmp_path: Path
) -> None:
    async with _wordy(tmp_path / "wordy.db", 1500) as (source, job):
        lines = [entry[1:] for entry in await source.logs(job.id, limit=2000)]
        assert (await carry(source, streams)).copied == 2
        assert [entry[1:] for entry in await streams.logs(job.id, limit=2000)] == lines
        assert len(lines) == 1500


async def test_an_import_that_ended_among_the_log_lines_of_a_job_goes_on_there(
    streams: ManualEngine, tmp_path: Path
) -> None:
    async with _wordy(tmp_path / "wordy.db", 1500) as (source, job):
        batch = await source.exporter().batch(0, 9, [State.RETRY], whole=True)
        importer = streams.importer()
        (first,) = read_jobs(streams._subjects, batch)
        place = await importer._store_part(
            _PLACE, [first._replace(notes=first.notes[:500])], _PLACE._replace(notes=500)
        )
        assert place.notes == 500
        assert await streams.importer().import_batch("a-move", batch) == 1
        assert len(await streams.logs(job.id, limit=2000)) == 1500
        assert await streams.importer().cursor("a-move") == batch.last


@pytest.mark.parametrize("clash", ["id", "dedupe", "dedupe for a time", "idempotency"])
async def test_a_job_for_which_there_is_no_room_is_refused_before_anything_is_changed(
    source: SqliteEngine, streams: ManualEngine, named: dict[str, NewJob], clash: str
) -> None:
    other = {
        "id": a_job(id=named["paused"].id, payload='"other"'),
        "dedupe": a_job(dedupe="delayed-once"),
        "dedupe for a time": a_job(type="burn", dedupe=Dedupe("hour", None, HOUR)),
        "idempotency": a_job(type="burn", idempotency_key="dead-once"),
    }[clash]
    await streams.create([other])
    with pytest.raises(MoveRefused, match=rf"cannot store 1 of the jobs .* {clash[:6]}"):
        await carry(source, streams)
    assert list(await inventory(streams)) == [other.id]
    assert await source.create([new := a_job()]) == [Accepted(new.id)]


_RATED = KeyPolicy("k", rate="1/1h")
_UNSUITABLE = {
    "a rate": (a_keyed_job("k", _RATED), "its key has a rate"),
    "a large payload": (a_job(payload='"' + "x" * 2_100_000 + '"'), "raise it"),
    "an id of several tokens": (a_job(id=JobId("two.tokens")), "no token of a subject"),
}


@pytest.mark.parametrize("what", _UNSUITABLE)
async def test_what_streams_cannot_carry_is_refused_before_anything_is_changed(
    source: SqliteEngine, streams: ManualEngine, what: str
) -> None:
    unsuitable, why = _UNSUITABLE[what]
    await source.create([unsuitable])
    with pytest.raises(MoveRefused, match=rf"{unsuitable.id}: .*{why}.*Nothing was changed"):
        await carry(source, streams)
    assert await inventory(streams) == {}
    assert await source.create([new := a_job()]) == [Accepted(new.id)]


async def test_a_key_with_more_waiting_jobs_than_its_state_can_name_is_refused(
    source: SqliteEngine, streams: ManualEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = streams._link.max_payload
    monkeypatch.setattr("trellis.engines.jetstream.import_checks._WAITER", most)
    with pytest.raises(MoveRefused, match="more than 1 jobs wait for its key; raise max_payload"):
        await carry(source, streams)
    assert await source.create([new := a_job()]) == [Accepted(new.id)]


async def test_a_parcel_is_taken_in_by_one_of_two_moves_at_once(
    source: SqliteEngine, streams: ManualEngine
) -> None:
    batch = await source.exporter().batch(0, 4, ["pending"], whole=True)
    assert await streams.importer().import_batch("a-move", batch) == 4
    with pytest.raises(MoveRefused, match="Another `trellis move`"):
        await streams.importer().import_batch("a-move", batch)
    # Another move has a number of its own, and finds the same jobs there.
    assert await streams.importer().import_batch("other-move", batch) == 0
    assert len(await inventory(streams)) == 4


async def test_a_worker_finishes_what_was_moved(
    source: SqliteEngine, streams: ManualEngine, named: dict[str, NewJob], streams_url: str
) -> None:
    await carry(source, streams)
    shop = Service("shop", streams_url)
    ran: list[JobId] = []

    @shop.job(name="invoice", queue="invoices", config=lambda: {"a": 1}, schema_version=3)
    async def invoice(job: ActiveJob[dict[str, int]]) -> int:
        ran.append(JobId(job.id))
        return job.payload["order"]

    for version in (1, 2):
        invoice.upgrade(from_version=version)(lambda payload: payload)
    due = [named[name].id for name in ("high", "low", "turn-1", "turn-2", "config")]
    async with asyncio.timeout(PATIENCE), shop, shop.worker():
        async for _ in streams.watch(["settled"]):
            if {State.COMPLETED} == set(await _states(streams, due)):
                break
    assert set(due) <= set(ran)
    assert len(ran) == len(set(ran))


async def _states(engine: ManualEngine, ids: list[JobId]) -> list[State]:
    return [each.head.state for each in (await engine.load(ids)).records if each is not None]


async def test_a_job_that_is_missing_at_the_end_is_named_and_the_source_stays_sealed(
    source: SqliteEngine,
    streams: ManualEngine,
    named: dict[str, NewJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lose(_: object) -> None:
        wanted = streams._subjects.own(">").replace(".trellis.>", f".*.*.{named['low'].id}.>")
        await purge(streams._store, wanted)

    monkeypatch.setattr(JetStreamImporter, "assign_slots", lose)
    with pytest.raises(MoveRefused, match=rf"lacks 1 copied job: {named['low'].id}"):
        await carry(source, streams)
    with pytest.raises(EngineError, match="moved to nats://there"):
        await source.create([a_job()])
