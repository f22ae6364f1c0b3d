"""Jobs created and read by people who speak SQL; every statement of the page is run as is."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.engines.postgres.steps import fresh, opened, with_options
from tests.harness.servers.databases import Databases
from trellis import ActiveJob, PerKey, Retry, Service, control
from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.core.policy import DEFAULT_POLICY, Hook, Policy, encode_policy
from trellis.engines.contracts import DeclaredType
from trellis.engines.operating import Drain
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import Accepted, Coalesced, JobFilter, QueueSettings, WorkerInfo
from trellis.errors import AccessDenied
from trellis.insight.attempts import view_of
from trellis.insight.worker_views import worker_view
from trellis.testing.builders import a_job

PAGE = Path(__file__).parents[3] / "docs/operations/postgresql.md"
BLOCKS = dict(re.findall(r"```sql (\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL))
Sql = psycopg.Connection[Any]


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
def sql(url: str) -> Iterator[Sql]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def engine(url: str) -> AsyncIterator[PostgresEngine]:
    async with opened(url) as engine:
        yield engine


def enqueue(sql: Sql, *args: object, **named: object) -> str:
    given = ["%s"] * len(args) + [f"{name} => %({name})s" for name in named]
    if named:
        given = [f"%(a{place})s" for place in range(len(args))] + given[len(args) :]
        values: Any = {f"a{place}": value for place, value in enumerate(args)} | named
    else:
        values = args
    row = sql.execute(f"select trellis.enqueue({', '.join(given)})", values).fetchone()
    assert row is not None
    return str(row[0])


# -- enqueue ---------------------------------------------------------------------------------------


async def test_a_worker_runs_a_job_that_was_enqueued_from_sql(url: str, sql: Sql) -> None:
    async with Service("shop", url) as shop:

        @shop.job
        async def greet(name: str) -> str:
            return f"Hello, {name}!"

        row = sql.execute(BLOCKS["enqueue"]).fetchone()
        assert row is not None
        again = sql.execute(BLOCKS["enqueue"]).fetchone()
        assert again == row
        async with shop.worker(poll="50ms"):
            assert await greet.ref(row[0]).wait("30s") == "Hello, ada!"
        async with shop.worker(poll="1h"):
            soon = enqueue(sql, "shop", "greet", '"bob"')  # its commit wakes the worker
            assert await greet.ref(soon).wait("30s") == "Hello, bob!"


async def test_a_job_from_sql_is_gone_with_its_transaction(
    engine: PostgresEngine, url: str
) -> None:
    with psycopg.connect(url) as undone:
        job_id = enqueue(undone, "shop", "greet", '"ada"')
        undone.rollback()
    assert (await engine.load([job_id])).records == (None,)  # type: ignore[list-item]


async def test_a_job_from_sql_is_like_one_from_create(engine: PostgresEngine, sql: Sql) -> None:
    new = a_job(payload='{"order": 7}', tags=(("org", "ada"),), priority=2)
    await engine.create([new])
    job_id = enqueue(sql, "shop", "invoice", '{"order": 7}', priority=2, tags='{"org": "ada"}')
    ours, theirs = (await engine.load([new.id, job_id])).records  # type: ignore[list-item]
    assert ours is not None
    assert theirs is not None
    assert re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", job_id)
    assert job_id[:6] == new.id[:6]  # made within the same half hour
    mine, its = ours.definition, theirs.definition
    assert its._replace(row=0, id=mine.id, context=mine.context, created_at=0) == mine._replace(
        row=0, created_at=0
    )
    assert theirs.head._replace(run_at=0) == ours.head._replace(run_at=0)
    kinds = [[event.kind for event in await engine.journal(each)] for each in (new.id, its.id)]
    assert kinds[0] == kinds[1]


async def test_the_policy_is_the_one_the_type_was_created_with_else_the_default(
    engine: PostgresEngine, url: str, sql: Sql
) -> None:
    async with Service("shop", url) as shop:
        pay = shop.declare("pay", payload=int, result=int, retry=Retry(attempts=2), queue="money")
        first = enqueue(sql, "shop", "pay", "1")
        await pay.create(2)
        second = enqueue(sql, "shop", "pay", "3")
    one, two = (await engine.load([first, second])).records  # type: ignore[list-item]
    assert one is not None
    assert two is not None
    assert (one.definition.policy, one.definition.queue) == (DEFAULT_POLICY, "pay")
    assert (two.definition.policy, two.definition.queue) == (pay.job_type.policy, "money")


async def test_a_job_from_sql_has_the_schema_version_and_deadline_of_its_type(
    engine: PostgresEngine, url: str, sql: Sql
) -> None:
    async with Service("shop", url) as shop:
        bare = shop.declare("pay", payload=int, result=int, schema_version=3)
        await bare.create(1, deadline="5s")
        before = enqueue(sql, "shop", "pay", "1")
        hook = Hook("finished", "report", "mails")
        declared = DeclaredType("shop", "pay", "money", Policy(hooks=(hook,)), 2, 60 * SECOND)
        await engine.declare_types([declared])
        await bare.create(2, queue="other")  # the declaration of a worker counts
        after = enqueue(sql, "shop", "pay", "3")
        soon = enqueue(sql, "shop", "pay", "3", deadline="1 second")
    found = (await engine.load([before, after, soon])).records  # type: ignore[list-item]
    jobs = [each.definition for each in found if each is not None]
    assert [each.schema_version for each in jobs] == [3, 2, 2]
    assert [each.queue for each in jobs] == ["pay", "money", "money"]
    lives = [each.deadline_at and each.deadline_at - each.created_at for each in jobs]
    assert lives == [None, 60 * SECOND, SECOND]
    assert jobs[1].policy == declared.policy


def test_the_default_policy_in_the_migration_is_that_of_the_code(sql: Sql) -> None:
    body = encode_policy(DEFAULT_POLICY)
    digest = hashlib.sha256(body.encode()).hexdigest()
    found = sql.execute("select body from trellis.policy where digest = %s", [digest]).fetchone()
    assert found == (body,)
    assert enqueue(sql, "shop", "greet")


async def test_marks_mean_the_same_from_both_sides(engine: PostgresEngine, sql: Sql) -> None:
    await engine.create([new := a_job(dedupe="d", idempotency_key="i", payload="1")])
    assert enqueue(sql, "shop", "invoice", "2", dedupe="d") == new.id
    assert enqueue(sql, "shop", "invoice", "1", idempotency_key="i") == new.id
    with pytest.raises(psycopg.errors.UniqueViolation, match="another payload"):
        enqueue(sql, "shop", "invoice", "2", idempotency_key="i")
    mine = enqueue(sql, "shop", "invoice", "1", dedupe="e", idempotency_key="k")
    answers = await engine.create([a_job(dedupe="e"), a_job(idempotency_key="k", payload="1")])
    assert all(isinstance(each, Coalesced) and each.existing == mine for each in answers)
    assert (await engine.count(JobFilter(), "state")).groups == {"pending": 2}


async def test_two_who_enqueue_the_same_take_turns(url: str, sql: Sql) -> None:
    with psycopg.connect(url) as first:
        kept = enqueue(first, "shop", "greet", '"a"', dedupe="d")
        second = asyncio.create_task(
            asyncio.to_thread(enqueue, sql, "shop", "greet", '"b"', dedupe="d")
        )
        waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        async with asyncio.timeout(30):
            while first.execute(waits).fetchone() == (0,):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        first.commit()
        assert await second == kept


async def test_what_cannot_be_enqueued_is_refused_with_the_reason(
    engine: PostgresEngine, url: str, sql: Sql
) -> None:
    async with Service("shop", url) as shop:
        await shop.declare("sync", payload=str, result=int, per_key=PerKey("all")).create("eu")
    await engine.set_queue(QueueSettings("shop", "closed", paused=False, draining=True))
    refused: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
        ("has a key per job", ("shop", "sync", '"us"'), {}),
        ("is draining", ("shop", "closed"), {}),
        ("cannot be a job", ("workers", "greet"), {}),
        ("cannot be a job", ("shop", "a/b"), {}),
        ("out of range", ("shop", "greet"), {"priority": 5}),
        ("1 to 512", ("shop", "greet"), {"dedupe": ""}),
        ("is not known", ("shop", "greet"), {"dedupe": "d", "dedupe_while": "forever"}),
        ("need a dedupe key", ("shop", "greet"), {"dedupe_for": "1 hour"}),
        ("more than no time", ("shop", "greet"), {"dedupe": "d", "dedupe_for": "0"}),
        ("object of texts", ("shop", "greet"), {"tags": '{"a": 1}'}),
        ("exclude each other", ("shop", "greet"), {"delay": "1 s", "run_at": "2030-01-01"}),
        ("Trace Context", ("shop", "greet"), {"traceparent": "00-1"}),
    ]
    for words, args, named in refused:
        with pytest.raises(psycopg.Error, match=words):
            enqueue(sql, *args, **named)
    assert (await engine.count(JobFilter(), "state")).groups == {"pending": 1}
    await engine.set_drain(Drain(on=True, actor="ann"))
    with pytest.raises(psycopg.Error, match="an operator drains all queues"):
        enqueue(sql, "shop", "greet")


# -- views -----------------------------------------------------------------------------------------


async def test_the_views_say_what_the_api_says(engine: PostgresEngine, url: str, sql: Sql) -> None:
    sql.execute("set time zone 'UTC'")
    async with Service("shop", url) as shop:

        @shop.job(retry=Retry(attempts=1))
        async def publish(job: ActiveJob[int]) -> None:
            job.phase("editions")
            job.items.complete("one")
            if job.payload == 2:
                raise ValueError("no \0 such edition")
            async with shop.batch() as batch:
                await batch.create(publish, 5, delay="1h")

        done = await publish.create(1, tags={"org": "ada", "project": "7"})
        failed = await publish.create(2, tags={"org": "bob"})
        async with shop.worker():
            await done.wait("30s")
            with pytest.raises(Exception, match="no"):
                await failed.wait("30s")
            inside = sql.execute("select id, name, state from trellis.workers").fetchall()
            now = await engine.now()
            sessions = [worker_view(each, now) for each in await engine.sessions()]
        await publish.create(3, delay="1h")
        await publish.create(4)
    assert inside == [(each.id, each.name, each.state) for each in sessions]
    names = ("id", "service", "type", "queue", "state", "attempt", "priority", "key", "created_at",
             "run_at", "deadline_at", "claimed_at", "finished_at", "cancel_asked", "blocked",
             "request_id", "trace_id", "clone_of", "parent", "batch", "started_at", "updated_at",
             "worker", "result",
            )  # fmt: skip
    rows = sql.execute(f"select {', '.join(names)} from trellis.jobs").fetchall()  # noqa: S608
    views = [await view_of(engine, record) for record in (await engine.find(JobFilter())).jobs]
    assert sorted(rows) == sorted(tuple(getattr(view, name) for name in names) for view in views)
    errors = sql.execute(
        "select error_code, error_message from trellis.jobs where error_code <> ''"
    )
    assert [code for code, message in errors if "such edition" in message] == ["exception"]
    assert sql.execute(BLOCKS["backlog"]).fetchall() == [("shop", "publish", 1, 2)]
    assert sql.execute(BLOCKS["errors"]).fetchall() == [(1,)]
    assert sql.execute(BLOCKS["throughput"]).fetchall() == [("ada", 1)]
    plan = sql.execute("explain select * from trellis.jobs where live").fetchall()
    assert "outcome" not in str(plan)


async def test_the_view_of_workers_names_their_states_as_the_api_does(
    engine: PostgresEngine, sql: Sql
) -> None:
    rare = {"heartbeat": 600 * SECOND}
    silences = {
        "live": ({}, 59, 600), "offline": ({}, 700, 6000), "silent": ({}, 40, 30),
        "rare": (rare, 1100, 1800), "rare and offline": (rare, 1300, 1800),
    }  # fmt: skip
    for name, (details, silence, lease) in silences.items():
        facts = {"types": [], "slots": 1, "heartbeat": 10 * SECOND} | details
        info = WorkerInfo(name, "berlin", 1, "0.1.0", json.dumps(facts))
        session = (await engine.open_session(info, lease * SECOND)).id
        sql.execute(
            "update trellis.session set renewed_at = renewed_at - %(ago)s, "
            "lease_until = lease_until - %(ago)s where id = %(id)s",
            {"ago": silence * SECOND, "id": session},
        )
    rows = dict(sql.execute("select name, state from trellis.workers").fetchall())
    now = await engine.now()
    views = [worker_view(each, now) for each in await engine.sessions()]
    assert rows == {each.name: each.state for each in views}
    assert rows == {
        "live": "live", "offline": "offline", "silent": "silent",
        "rare": "live", "rare and offline": "offline",
    }  # fmt: skip


async def test_the_view_of_items_shows_those_of_the_latest_attempt(url: str, sql: Sql) -> None:
    async with Service("shop", url) as shop:

        @shop.job(retry=Retry.fixed(0, attempts=2))
        async def publish(job: ActiveJob[int]) -> None:
            job.phase("editions")
            job.items.complete("one")
            job.items.fail("two", f"boom {job.attempt}")
            if job.attempt == 1:
                raise ValueError("again")
            job.phase("index")

        @shop.job(retry=Retry.fixed(0, attempts=2))
        async def forget(job: ActiveJob[int]) -> None:
            if job.attempt == 1:
                job.items.fail("one")
                raise ValueError("again")

        async with shop.worker():
            ref = await publish.create(1)
            await ref.wait("30s")
            await (await forget.create(1)).wait("30s")
    rows = sql.execute("select id, phase, item, status, detail, claim from trellis.job_items")
    assert sorted(rows.fetchall()) == [
        (ref.id, "editions", "one", "completed", None, 2),
        (ref.id, "editions", "two", "failed", "boom 2", 2),
    ]


async def test_the_operators_queries_find_running_work(url: str, sql: Sql) -> None:
    async with Service("shop", url) as shop:

        @shop.job
        async def greet(name: str) -> None:
            pass

        ref = await greet.create("ada", tags={"project": "7"})
        await greet.create("bob", delay="1h")
        assert sql.execute(BLOCKS["keda"]).fetchall() == [(1,)]
        sql.execute(
            "update trellis.queue set state = 'active', availability = 'claimed', claims = 1 "
            "where availability = 'ready'"
        )
        sql.execute(
            "insert into trellis.note (job, claim, began_at, seen_at, phase) select job, 1, "
            "trellis.clock() - 660000000, trellis.clock(), 'editions' from trellis.queue "
            "where state = 'active'"
        )
        sql.execute(
            "insert into trellis.item select job, 1, '', 'main', 'completed' from trellis.note"
        )
        active = sql.execute(BLOCKS["active"]).fetchall()
        assert [(row[0], row[3], row[5], row[6]) for row in active] == [(ref.id, "editions", 1, 1)]
        for name in ("project", "slow"):
            assert [row[0] for row in sql.execute(BLOCKS[name])] == [ref.id]
        assert sql.execute(BLOCKS["keda"]).fetchall() == [(0,)]


# -- roles -----------------------------------------------------------------------------------------


NOT_FOR_READERS = (
    "select payload from trellis.job",
    "select result from trellis.outcome",
    "select result from trellis.jobs",
    "select error_data from trellis.jobs",
    "select * from trellis.jobs",
    "select trellis.enqueue('a', 'b')",
)
REFUSED_COLUMNS = (
    "select attname from pg_attribute where attrelid = 'trellis.jobs'::regclass and attnum > 0 "
    "and not has_column_privilege(%s, attrelid, attnum, 'select') order by attname"
)


async def test_each_role_can_do_its_part_and_no_more(postgres_url: str) -> None:
    mine = secrets.token_hex(4)
    as_mine = {name: re.sub(r"trellis_(\w+)", rf"trellis_\1_{mine}", BLOCKS[name])
               for name in ("roles", "grants")}  # fmt: skip

    def role(name: str) -> str:
        return with_options(postgres_url, role=f"trellis_{name}_{mine}")

    with psycopg.connect(postgres_url, autocommit=True) as admin:
        try:
            admin.execute(as_mine["roles"])
            await PostgresEngine(role("migrator")).migrate()
            admin.execute(as_mine["grants"])
            async with opened(role("app")) as engine:
                assert await engine.create([new := a_job()]) == [Accepted(new.id)]
                assert await engine.prune(10) == 0
                with pytest.raises(AccessDenied):
                    await engine._hot.script("drop table trellis.log")
            user = f"trellis_reader_{mine}"
            admin.execute(f"alter role {user} password '{mine}'")
            with psycopg.connect(postgres_url, user=user, password=mine, autocommit=True) as reader:
                for name in ("backlog", "active", "project", "errors", "throughput", "slow"):
                    reader.execute(BLOCKS[name])
                assert reader.execute(BLOCKS["keda"]).fetchall() == [(0,)]
                for query in NOT_FOR_READERS:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        reader.execute(query)
                reader.execute("select * from trellis.job_items, trellis.audit_log")
            assert admin.execute(REFUSED_COLUMNS, (user,)).fetchall() == [
                ("error_data",),
                ("result",),
            ]
        finally:
            for name in ("migrator", "app", "reader"):
                admin.execute(f"drop owned by trellis_{name}_{mine} cascade")
                admin.execute(f"drop role trellis_{name}_{mine}")


async def test_queue_attempts_and_timeout_can_be_given_for_one_job(sql: Sql, url: str) -> None:
    async with Service("shop", url) as shop:

        @shop.job(retry=Retry.never(), timeout="1m")
        async def greet(job: ActiveJob[str]) -> int:
            if job.attempt == 1:
                raise ValueError("once more")
            return job.attempt

        job_id = enqueue(
            sql, "shop", "greet", '"ada"', queue="urgent", attempts=3, timeout="2 seconds"
        )
        engine = await shop.connection.engine()
        record = (await engine.load([JobId(job_id)])).records[0]
        assert record is not None
        policy = record.definition.policy
        assert (record.definition.queue, policy.retry.attempts) == ("urgent", 3)
        assert policy.timeout == 2 * SECOND
        await control.adjust(engine, JobId(job_id), attempts=2)
        async with shop.worker():
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="attempts must be"):
                enqueue(sql, "shop", "greet", '"ada"', attempts=0)
            assert await greet.ref(job_id).wait("20s") == 2
