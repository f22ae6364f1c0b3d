"""Moving from SQLite to PostgreSQL: everything arrives once, and nothing runs in both places."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from tests.engines.postgres.household import HOUR, UNFINISHED, Thing, furnish, inventory
from tests.engines.postgres.steps import PATIENCE, fresh, opened
from tests.harness.servers.databases import Databases
from trellis import ActiveJob, Service, connect, control, schedules
from trellis.core.commands import Cancel, Complete, Replay
from trellis.core.durations import SECOND
from trellis.core.job import Dedupe, JobId, NewJob, Prerequisite, Relations
from trellis.core.limits import Limit, LimitSetting, Override, Scope
from trellis.core.policy import Hook, Policy
from trellis.core.schedules import Step, change_plan
from trellis.engines.audit import AuditFilter, By
from trellis.engines.contracts import DeclaredType, NewContract, Status
from trellis.engines.postgres import PostgresEngine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Accepted, Coalesced, JobFilter, QueueSettings
from trellis.errors import EngineError, MoveRefused
from trellis.operations.transfer import Endpoint, Moved, move
from trellis.testing.builders import a_declaration, a_demand, a_job, a_worker, fence_of

MOVED = {"pending": 8, "retry": 2, "dead": 2}
ENDED = {"completed", "failed", "cancelled"}
# What is refused is refused before PostgreSQL is asked for much: one version will do.
once = pytest.mark.on_postgres(18)
MIA = By("mia", "growing")
DRIVER = Path(__file__).parent / "moving_driver.py"


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
async def target(url: str) -> AsyncIterator[PostgresEngine]:
    async with opened(url) as engine:
        yield engine


@pytest.fixture
async def named(tmp_path: Path) -> dict[str, NewJob]:
    return await furnish(tmp_path / "jobs.db")


@pytest.fixture
async def source(named: dict[str, NewJob], tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "jobs.db")
    await engine.open()
    yield engine
    await engine.close()


async def carry(
    source: SqliteEngine,
    target: PostgresEngine | SqliteEngine,
    *,
    history: bool = False,
    dry_run: bool = False,
) -> Moved:
    """Move in batches of a few."""
    here, there = Endpoint(source, "sqlite:///jobs.db"), Endpoint(target, "postgresql://there/db")
    return await move(here, there, MIA, history=history, dry_run=dry_run, batch_size=4)


def storable(thing: Thing) -> Thing:
    """PostgreSQL has no U+0000 in its texts."""
    lines = [tuple(_storable(part) for part in line) for line in thing.logs]
    return thing._replace(logs=lines)


def _storable(part: object) -> object:
    return part.replace("\0", "\ufffd") if isinstance(part, str) else part


async def test_what_waits_and_the_dead_arrive_as_they_were_in_creation_order(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    before = await inventory(source)
    moved = await carry(source, target)
    after = await inventory(target)
    expected = {
        job_id: storable(thing)
        for job_id, thing in before.items()
        if thing.record.head.state not in ENDED
    }
    assert moved.states == MOVED
    assert (moved.copied, moved.known, moved.left, moved.is_finished) == (12, 0, 3, True)
    assert list(after) == list(expected)
    assert after == expected
    assert await inventory(source) == before


async def test_with_history_ended_jobs_arrive_too_also_when_asked_for_later(
    source: SqliteEngine, target: PostgresEngine, named: dict[str, NewJob]
) -> None:
    before = {job_id: storable(thing) for job_id, thing in (await inventory(source)).items()}
    assert (await carry(source, target)).copied == len(before) - 3
    moved = await carry(source, target, history=True)
    assert (moved.copied, moved.known, moved.left) == (3, len(before) - 3, 0)
    assert await inventory(target) == before
    again = a_job(type="easy", idempotency_key="done-once")
    assert await target.create([again]) == [
        Coalesced(named["done"].id, "same_idempotency_key")  # type: ignore[arg-type]
    ]


async def test_marks_of_moved_jobs_still_stand_for_them(
    source: SqliteEngine, target: PostgresEngine, named: dict[str, NewJob]
) -> None:
    await carry(source, target)
    answers = await target.create(
        [
            a_job(type="burn", idempotency_key="retry-once"),
            a_job(dedupe="delayed-once"),
            a_job(type="burn", idempotency_key="dead-once"),
            a_job(type="burn", dedupe=UNFINISHED),
            a_job(type="burn", dedupe="hour"),
            named["low"],
        ]
    )
    found = [answer.existing for answer in answers if isinstance(answer, Coalesced)]
    assert found == [named[name].id for name in ("retry", "delayed", "dead", "retry", "dead")]
    assert answers[-1] == Accepted(named["low"].id)
    assert (await target.count(JobFilter(), "state")).groups == MOVED
    assert (await target.count(JobFilter(), "worker")).groups == {"": 8, "worker-1": 4}


async def test_keys_go_on_where_they_were(
    source: SqliteEngine, target: PostgresEngine, named: dict[str, NewJob]
) -> None:
    await carry(source, target)
    session = (await target.open_session(a_worker(), 30 * SECOND)).id
    demand = [a_demand("invoice", "held")]
    # The older job of the key waits, because the younger one keeps its slot until it has ended.
    (held,) = await target.keys("shop", "held")
    assert (held.holders, held.waiting) == ((named["held"].id,), 1)
    taken = (await target.claim(session, demand, 99)).jobs
    # By priority, then in creation order; one of a key at a time, and none of the paused queue.
    assert [each.definition.id for each in taken] == [
        named[name].id for name in ("high", "low", "turn-1", "config")
    ]
    await control.apply(target, taken[2].definition.id, Complete(fence_of(taken[2])))
    (then,) = (await target.claim(session, demand, 99)).jobs
    assert then.definition.id == named["turn-2"].id


@once
async def test_schedules_go_along_but_what_the_target_has_stays(
    source: SqliteEngine, target: PostgresEngine, tmp_path: Path
) -> None:
    declared = [a_declaration("a"), a_declaration("b")]
    await schedules.declare_schedules(source, "shop", declared, lambda _: True)
    (first, second) = await source.schedules()
    changed = change_plan(first, {"missed": "all"})
    assert await source.advance_schedule(Step(changed)) == []
    await schedules.declare_schedules(target, "shop", declared[1:], lambda _: True)
    (theirs,) = await target.schedules()
    moved = await move(Endpoint(source, "file"), Endpoint(target, "server"))
    assert moved.schedules == 2
    assert await target.schedules() == [changed._replace(version=1), theirs]
    with pytest.raises(EngineError, match="were moved to server"):
        await source.advance_schedule(Step(second))


async def test_settings_of_queues_go_along_but_what_was_set_at_the_target_stays(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    own = QueueSettings("shop", "other", draining=True)
    await target.set_queue(own)
    await carry(source, target)
    quiet = QueueSettings("shop", "quiet", paused=True)
    assert await target.queue_settings() == [own, quiet]
    await target.set_queue(quiet._replace(paused=False))
    await carry(source, target)
    assert await target.queue_settings() == [own, quiet._replace(paused=False)]


@once
async def test_tenants_and_aging_go_along(source: SqliteEngine, target: PostgresEngine) -> None:
    await source.set_aging(60 * SECOND, By())
    for tenant in "aaab":
        fair = a_job(type="fair", queue="fair", relations=Relations(tenant=tenant))
        await source.create([fair])
    await carry(source, target)
    assert await target.aging() == 60 * SECOND
    session = (await target.open_session(a_worker(), 30 * SECOND)).id
    jobs = (await target.claim(session, [a_demand("fair")], 9)).jobs
    tenants = [(job.definition.relations or Relations()).tenant for job in jobs]
    assert tenants == ["a", "b", "a", "a"]


@once
async def test_limits_go_along_but_what_was_set_at_the_target_stays(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    one, two = Scope("queue", "shop", "one"), Scope("type", "shop", "two")
    by_hand = Override(Limit(active=7), frozenset({"active"}))
    await source.declare_limits([(one, Limit(rate="1/1h")), (two, Limit(active=2))])
    moved = await source.change_limit(one, by_hand, By())
    await target.declare_limits([(two, Limit(active=9))])
    await carry(source, target)
    assert [each.setting for each in await target.limits()] == [
        moved,
        LimitSetting(two, Limit(active=9)),
    ]


@once
async def test_contracts_go_along_but_those_of_the_target_stay(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    ann = By("ann", "moved")
    for number, name, status in ((0, "a", "deployed"), (1, "b", "accepted")):
        new = NewContract("shop", number, "{}", name, cast("Status", status))
        await source.put_contract(new, ann)
        await source.put_contract(new._replace(service="mail"), ann)
    own = await target.put_contract(NewContract("mail", 0, "{}", "own", "deployed"), ann)
    # An earlier run has copied the first record and died.
    await target.put_contract(NewContract("shop", 0, "{}", "a", "deployed"), ann)
    await carry(source, target)
    assert await target.contracts("mail") == [own]
    found = [(each.number, each.fingerprint, each.by) for each in await target.contracts("shop")]
    assert found == [(2, "b", ann), (1, "a", ann)]
    await carry(source, target)
    assert len(await target.contracts("shop")) == 2


@once
async def test_declared_types_go_along_but_those_of_the_target_stay(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    hooked = Policy(hooks=(Hook("finished", "report", "mails", 2, SECOND),))
    one = DeclaredType("shop", "one", "letters", hooked, 2, 60 * SECOND)
    two = DeclaredType("shop", "two", "two", Policy())
    await source.declare_types([one, two])
    await target.declare_types([own := two._replace(schema_version=3)])
    await carry(source, target)
    assert await target.declared_types() == [one, own]


@once
async def test_the_audit_goes_along_once_and_the_move_is_in_it(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    before = await source.audit(AuditFilter(), limit=100)
    assert before
    await carry(source, target)
    await carry(source, target)
    after = await target.audit(AuditFilter(), limit=100)
    moves = [entry for entry in after if entry.change.action == "store.move"]
    settings = [entry for entry in after if entry.change.action == "queue.pause"]
    assert (len(moves), moves[0].by) == (1, MIA)
    # One when it was paused in the file, and one when the move paused it here.
    assert [entry.by for entry in settings] == [MIA, By()]
    assert len(after) == len(before) + 2
    theirs = [entry[1:] for entry in before]
    assert [entry[1:] for entry in after[-len(before) :]] == theirs
    with pytest.raises(EngineError):
        await source.set_queue(QueueSettings("shop", "loud", paused=True))


@once
async def test_a_dry_run_counts_and_changes_nothing(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    moved = await carry(source, target, dry_run=True)
    assert (moved.states, moved.copied, moved.is_finished) == (MOVED, 0, False)
    assert await inventory(target) == {}
    assert await target.queue_settings() == []
    assert await source.create([new := a_job()]) == [Accepted(new.id)]


@once
async def test_after_the_seal_nothing_can_be_done_at_the_source_but_looking(
    source: SqliteEngine, target: PostgresEngine, named: dict[str, NewJob], tmp_path: Path
) -> None:
    # This engine was open before the seal, as a program that runs on would be.
    before = await inventory(source)
    await carry(source, target)

    def caller() -> None:
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as own:
            own.execute("pragma wal_autocheckpoint = 0")
            own.execute("begin")
            source.create_within(own, [a_job()])

    async def visit() -> None:
        caller()

    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: source.create([a_job()]),
        lambda: source.open_session(a_worker(), 30 * SECOND),
        lambda: control.apply(source, named["dead"].id, Replay()),
        lambda: control.apply(source, named["low"].id, Cancel("no")),
        lambda: source.remove([named["done"].id]),
        lambda: source.set_queue(QueueSettings("shop", "quiet")),
        visit,
    ]
    for attempt in attempts:
        with pytest.raises(EngineError, match="moved to postgresql://there/db"):
            await attempt()
    assert await inventory(source) == before


@once
async def test_the_seal_is_lifted_as_the_guide_says(
    source: SqliteEngine, target: PostgresEngine, tmp_path: Path
) -> None:
    await carry(source, target)
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "growing.md").read_text()
    (query, last) = guide.partition("```sql\n")[2].partition("```")[0].strip().split("\n")
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as own:
        own.execute("pragma wal_autocheckpoint = 0")
        for (line,) in own.execute(query).fetchall():
            own.execute(line)
        own.execute(last)
    assert await source.create([new := a_job()]) == [Accepted(new.id)]


@once
async def test_a_source_with_a_live_worker_or_an_active_job_is_refused_and_stays_as_it_is(
    source: SqliteEngine, target: PostgresEngine, tmp_path: Path
) -> None:
    session = (await source.open_session(a_worker("busy-one"), 30 * SECOND)).id
    with pytest.raises(MoveRefused, match=r"1 live worker: busy-one .* workers drain"):
        await carry(source, target)
    (taken,) = (await source.claim(session, [a_demand()], 1)).jobs
    await source.close_session(session)
    with pytest.raises(MoveRefused, match=taken.definition.id):
        await carry(source, target)
    # The look before is for people; the seal looks for itself.
    sealed = await source.exporter().seal("there", "there")
    assert tuple(sealed) == (1, 0, 0)
    assert await inventory(target) == {}
    assert await source.create([new := a_job()]) == [Accepted(new.id)]


@once
async def test_a_handler_that_was_stopped_from_outside_is_waited_for(
    source: SqliteEngine, target: PostgresEngine, named: dict[str, NewJob]
) -> None:
    session = (await source.open_session(a_worker(), 30 * SECOND)).id
    taken = (await source.claim(session, [a_demand()], 99)).jobs
    for each in taken:
        await control.apply(source, each.definition.id, Cancel("now", force=True))
    await source.close_session(session)
    with pytest.raises(MoveRefused, match="may still be running"):
        await carry(source, target)
    assert named["turn-1"].id in {each.definition.id for each in taken}


@once
@pytest.mark.parametrize("clash", ["id", "dedupe", "dedupe for a time", "idempotency"])
async def test_a_job_for_which_there_is_no_room_is_refused_before_anything_is_changed(
    source: SqliteEngine, target: PostgresEngine, named: dict[str, NewJob], clash: str
) -> None:
    other = {
        "id": a_job(id=named["paused"].id, payload='"other"'),
        "dedupe": a_job(dedupe="delayed-once"),
        "dedupe for a time": a_job(type="burn", dedupe=Dedupe("hour", None, HOUR)),
        "idempotency": a_job(type="burn", idempotency_key="dead-once"),
    }[clash]
    await target.create([other])
    with pytest.raises(MoveRefused, match=rf"cannot store 1 of the jobs .* {clash[:6]}"):
        await carry(source, target)
    assert (await target.count(JobFilter(), "state")).groups == {"pending": 1}
    assert await source.create([new := a_job()]) == [Accepted(new.id)]


@once
async def test_a_move_that_was_begun_goes_to_no_other_database(
    source: SqliteEngine, target: PostgresEngine, postgres_server: Databases
) -> None:
    await carry(source, target)
    other = fresh(postgres_server)
    async with opened(other) as elsewhere:
        with pytest.raises(MoveRefused, match="is another database"):
            await carry(source, elsewhere)
        assert await inventory(elsewhere) == {}
    postgres_server.drop(other)


@once
async def test_a_parcel_is_taken_in_by_one_of_two_moves_at_once(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    batch = await source.exporter().batch(0, 4, ["pending"], whole=True)
    assert await target.importer().import_batch("a-move", batch) == 4
    with pytest.raises(MoveRefused, match="Another `trellis move`"):
        await target.importer().import_batch("a-move", batch)
    # Another move has a number of its own, and finds the same jobs there.
    assert await target.importer().import_batch("other-move", batch) == 0
    assert (await target.count(JobFilter(), "state")).groups == {"pending": 4}


async def test_a_worker_finishes_what_was_moved(
    source: SqliteEngine, target: PostgresEngine, named: dict[str, NewJob], url: str
) -> None:
    await carry(source, target)
    shop = Service("shop", url)
    ran: list[JobId] = []

    @shop.job(name="invoice", queue="invoices", config=lambda: {"a": 1}, schema_version=3)
    async def invoice(job: ActiveJob[dict[str, int]]) -> int:
        ran.append(JobId(job.id))
        return job.payload["order"]

    for version in (1, 2):
        invoice.upgrade(from_version=version)(lambda payload: payload)
    due = [named[name].id for name in ("high", "low", "turn-1", "turn-2", "config")]
    async with shop, shop.worker(), connect(url) as jobs:
        for job_id in due:
            assert (await jobs.wait(job_id, PATIENCE)).state == "completed"
    assert sorted(ran) == sorted(due)
    with pytest.raises(EngineError, match="moved to"):
        await source.open_session(a_worker(), 30 * SECOND)


def test_a_move_that_is_killed_anywhere_goes_on_where_it_was(url: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, DRIVER, url, tmp_path / "jobs.db"],
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "died 7 times" in ran.stdout


async def test_jobs_that_wait_for_others_wait_on_in_the_target(
    tmp_path: Path, target: PostgresEngine
) -> None:
    source = SqliteEngine(tmp_path / "jobs.db")
    await source.open()
    session = (await source.open_session(a_worker(), 30 * SECOND)).id
    ended, second = a_job(), a_job()
    await source.create([ended])
    (taken,) = (await source.claim(session, [a_demand()], 1)).jobs
    taker = a_job(
        payload="null",
        after=(Prerequisite(ended.id), Prerequisite(second.id)),
        relations=Relations(payload_from=ended.id),
    )
    behind = a_job(after=(Prerequisite(taker.id),))
    await source.create([second, taker, behind])
    done = Complete(fence_of(taken), "[42]")
    await control.apply_all(source, [(taken, done)], await source.now())
    await source.close_session(session)
    assert (await carry(source, target)).copied == 3
    await source.close()
    session = (await target.open_session(a_worker(), 30 * SECOND)).id
    for expected, payload in ((second, second.payload), (taker, "[42]"), (behind, behind.payload)):
        (taken,) = (await target.claim(session, [a_demand()], 10)).jobs
        assert (taken.definition.id, taken.definition.payload) == (expected.id, payload)
        finish = Complete(fence_of(taken), "null")
        await control.apply_all(target, [(taken, finish)], await target.now())
