"""Handlers in a separate process: everything works as in the worker."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.worker.faulty import eventually
from tests.worker.isolation import isolated
from tests.worker.isolation.isolated import attic, lives, ruin, shop
from trellis import (
    ConfigurationError,
    JobDead,
    JobRef,
    PreconditionFailed,
    Service,
    State,
    fingerprint,
)
from trellis.core.durations import to_datetime
from trellis.core.job import JobId
from trellis.engines.batches import BatchFilter
from trellis.engines.values import JobFilter, LogEntry
from trellis.worker.isolation.pool import HandlerPool
from trellis.worker.local_type import LocalType


@pytest.fixture(autouse=True)
def url(tmp_path: Path) -> str:
    place = f"sqlite:///{tmp_path / 'jobs.db'}"
    shop.connection.point_at(place)
    return place


async def logs(ref: JobRef[Any]) -> list[LogEntry]:
    engine = await shop.connection.engine()
    return await engine.logs(JobId(ref.id))


async def test_handlers_of_both_kinds_run_one_after_another_in_the_same_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    monkeypatch.setattr("trellis.worker.isolation.pool._CLOSE_TIMEOUT", 30.0)
    async with shop, shop.worker(concurrency=1):
        monkeypatch.setenv("SHOP_CLOSED", str(closed))
        plain_ref = await isolated.where_plain.create("a")
        plain = await plain_ref.wait("30s")
        ref = await isolated.where_async.create("b")
        other = await ref.wait("30s")
        monkeypatch.delenv("SHOP_CLOSED")  # the lifespan of this process must not write it
        assert lives(plain["process"])
    assert plain["process"] == plain["state"] == other["process"] == other["state"]
    assert plain["process"] != os.getpid()
    assert (plain["main"], plain["inner"]) == (True, "an inner loop")
    for one, result, payload in ((plain_ref, plain, "a"), (ref, other, "b")):
        engine = await shop.connection.engine()
        record = (await engine.load([JobId(one.id)])).records[0]
        assert record is not None
        assert result["job"] == [one.id, 1, payload, record.definition.context.request_id]
    assert not lives(plain["process"])
    assert closed.read_text() == str(plain["process"])


async def test_a_process_that_does_not_exit_is_killed_when_its_worker_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shop, shop.worker():
        monkeypatch.setenv("SHOP_STAYS_OPEN", "1")
        process = (await (await isolated.where_async.create("x")).wait("30s"))["process"]
        monkeypatch.delenv("SHOP_STAYS_OPEN")
    assert not lives(process)


async def test_a_handler_sees_when_the_worker_renews_its_lease() -> None:
    async with shop, shop.worker(lease="3h"):
        first, second = await (await isolated.watch_lease.create()).wait("30s")
        engine = await shop.connection.engine()
        (session,) = await engine.sessions()
    assert first < second <= to_datetime(session.renewed_at).isoformat()


async def test_notes_of_a_handler_arrive_in_their_order_and_before_its_end() -> None:
    async with shop, shop.worker():
        ref = await isolated.talk.create()
        assert await ref.wait("30s") == "done"
        engine = await shop.connection.engine()
        activity = await engine.activity(JobId(ref.id))
        lines = await logs(ref)
    assert (await ref.status()).state is State.COMPLETED_WITH_ERRORS
    assert [line.message for line in lines] == [
        text for number in range(3) for text in ("line", f"record {number}")
    ]
    assert lines[0].fields == '{"number": 0}'
    assert lines[1].fields == '{"logger": "user"}'
    assert activity is not None
    assert activity.progress is not None
    assert (activity.progress.current, activity.phase) == (1999, "second")
    assert {item.name: item.status for item in activity.items} == {
        "good": "completed",
        "bad": "failed",
    }


async def test_a_handler_is_called_only_with_the_configuration_that_its_job_expects() -> None:
    async with shop, shop.worker():
        expected = fingerprint({"vine": "blue", "region": "eu"})
        ref = await isolated.deploy.create("blue", expect=expected)
        assert await ref.wait("30s") == "deployed blue"
        ref = await isolated.deploy.create("red", expect=expected)
        with pytest.raises(PreconditionFailed, match="The handler was not called"):
            await ref.wait("30s")
        undeclared = shop.find("piecemeal").job_type
        handler, undeclared.handler = undeclared.handler, None
        try:
            unchecked = await isolated.piecemeal.create(expect=expected)
        finally:
            undeclared.handler = handler
        with pytest.raises(PreconditionFailed, match="has no function"):
            await unchecked.wait("30s")


async def test_a_fan_in_job_in_another_process_reads_the_members_of_its_batch() -> None:
    async with shop, shop.worker():
        async with shop.batch(then=isolated.gather) as batch:
            await batch.create_many(isolated.part, [1, 2])
        fan_in = (await batch.ref.wait("60s")).fan_in
        assert fan_in is not None
        assert await isolated.gather.ref(fan_in).wait("60s") == [1, 2]


async def test_a_planner_that_dies_after_half_of_its_members_runs_again_with_one_batch() -> None:
    async with shop, shop.worker():
        planner = await isolated.plan_parts.create(4)
        batch = shop.batch_ref(await planner.wait("60s"))
        fan_in = (await batch.wait("60s")).fan_in
        assert await isolated.gather.ref(str(fan_in)).wait("60s") == [0, 1, 2, 3]
    assert (await planner.status()).attempt == 2
    engine = await shop.connection.engine()
    found = (await engine.count(JobFilter(), "type")).groups
    assert found == {"gather": 1, "part": 4, "plan_parts": 1}
    assert [each.new.id for each in await engine.batches(BatchFilter())] == [batch.id]


async def test_a_handler_process_upgrades_old_payloads(url: str) -> None:
    old = Service("shop", url).declare("upgraded", payload=str, result=list[str])
    newer = Service("shop", url).declare(
        "upgraded", payload=str, result=list[str], schema_version=3
    )
    async with shop, shop.worker(concurrency=1):
        assert await (await old.create("a b")).wait("30s") == ["a", "b"]
        ref = await newer.create("a b")

        async def is_handed_back() -> bool:
            status = await ref.status()
            return (status.state, status.attempt) == (State.RETRY, 0)

        await eventually(is_handed_back)


async def test_a_logged_exception_keeps_its_traceback() -> None:
    async with shop, shop.worker():
        ref = await isolated.complain.create()
        await ref.wait("30s")
        (line,) = await logs(ref)
    fields = json.loads(line.fields or "{}")
    assert (line.message, fields["logger"]) == ("the order failed", "user")
    assert fields["exception"].startswith("Traceback (most recent call last):")
    assert fields["exception"].endswith("ValueError: no such order")


async def test_a_handler_is_told_which_items_are_left_to_do() -> None:
    async with shop, shop.worker():
        ref = await isolated.piecemeal.create()
        assert await ref.wait("30s") == ["a", "b"]
        await ref.retry(failed_items=True)
        assert await ref.wait("30s") == ["b"]
        assert [item.status for item in await ref.items()] == ["completed", "completed"]


async def test_every_ending_is_the_same_as_in_the_worker() -> None:
    names = [function.__name__ for function in isolated.ENDINGS]
    async with shop, shop.worker(concurrency=2) as worker:
        pairs = [
            [await shop.find(f"{name}-{place}").create() for place in ("here", "apart")]
            for name in names
            if name != "exhaust"
        ]
        memory = await shop.find("exhaust-apart").create()
        await eventually(lambda: worker.settled == 2 * len(pairs) + 1)
        engine = await shop.connection.engine()
        for here, apart in pairs:
            expected = await ending(here)
            assert await ending(apart) == expected
        record = (await engine.load([JobId(memory.id)])).records[0]
    assert record is not None
    assert record.head.error is not None
    assert record.head.error.message == "MemoryError"
    assert "trellis/worker" not in (record.head.error.detail or "")


async def test_a_process_whose_handler_tried_to_leave_it_runs_no_other() -> None:
    async with shop, shop.worker(concurrency=1) as worker:
        before = await (await isolated.where_plain.create("a")).wait("30s")
        await shop.find("leave-apart").create()
        await eventually(lambda: worker.settled == 2)
        after = await (await isolated.where_plain.create("b")).wait("30s")
    assert before["process"] != after["process"]


async def ending(ref: JobRef[Any]) -> tuple[str, dict[str, Any]]:
    """Return how the first attempt ended, without its stack, whose frames lie elsewhere."""
    engine = await shop.connection.engine()
    *_, last = await engine.journal(JobId(ref.id))
    data: dict[str, Any] = dict(last.data or {})
    if "error" in data:
        code, message, _, given = data["error"]
        data["error"] = code, message, given
    if "run_at" in data:
        data["run_at"] -= last.at
    return last.kind, data


async def test_a_job_created_there_is_kept_where_the_worker_keeps_its_own() -> None:
    async with shop, shop.worker():
        ref = await isolated.make_another.create(1)
        created = isolated.where_here.ref(await ref.wait("30s"))
        assert await created.wait("30s") == os.getpid()
        assert (await created.status()).parent == ref.id


async def test_a_lock_held_there_is_held_against_all_until_it_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "held"
    async with shop, shop.worker(concurrency=2):
        holder = await isolated.lock_plain.create(str(path))
        await eventually(path.exists)
        with pytest.raises(JobDead, match=re.escape(f"is not free: job {holder.id} on worker")):
            await (await isolated.lock_async.create("0s")).wait("30s")
        (tmp_path / "held.free").touch()
        assert await (await isolated.lock_async.create("30s")).wait("30s") == "got it"
        (tmp_path / "held.end").touch()
        assert await holder.wait("30s") == "freed before the end"


async def test_isolation_works_with_jobs_in_memory_but_none_can_be_created_there() -> None:
    async with attic, attic.worker():
        number, process = await (await isolated.count.create(1)).wait("30s")
        with pytest.raises(JobDead, match="are in the memory of its worker"):
            await (await isolated.make_in_memory.create()).wait("30s")
    assert number == 2
    assert process != os.getpid()


async def test_a_lifespan_that_fails_there_fails_the_attempt_with_the_reason() -> None:
    async with ruin, ruin.worker():
        with pytest.raises(JobDead, match=r"could not be set up in its handler process.*no databa"):
            await (await isolated.never_called.create()).wait("30s")


async def test_a_process_that_a_handler_forks_sends_nothing_and_settles_nothing() -> None:
    async with shop, shop.worker() as worker:
        ref = await isolated.fork.create()
        assert await ref.wait("30s") == "parent"
        assert worker.settled == 1
        assert [line.message for line in await logs(ref)] == ["parent"]


async def test_a_type_in_processes_is_never_claimed_ahead() -> None:
    for job, may in ((isolated.where_plain, False), (isolated.where_here, True)):
        kind = LocalType(job.job_type)
        for _ in range(10):
            kind.took(0.001)
        assert kind.is_quick is may


async def test_a_handler_that_no_other_process_finds_is_refused_before_work_begins() -> None:
    own = Service("own", "memory://")

    @own.job(isolation="process")
    def inner() -> None: ...

    with pytest.raises(ConfigurationError, match="Define it at the top level of a module"):
        async with own, own.worker():
            pass


async def test_a_lifespan_that_no_other_process_finds_is_refused_before_work_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def inner() -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(attic, "_lifespan", inner)
    with pytest.raises(ConfigurationError, match="cannot find the service's lifespan"):
        async with attic, attic.worker():
            pass


async def test_a_process_without_work_ends_after_a_while() -> None:
    name = LocalType(isolated.where_plain.job_type).handler_name
    assert name is not None
    pool = HandlerPool(2, idle_time=0.01)
    process = await pool.take(name, fresh=False)
    pool.give_back(process)
    await process.ended
    await pool.close()


async def test_the_end_of_the_channel_ends_a_process() -> None:
    name = LocalType(isolated.where_plain.job_type).handler_name
    assert name is not None
    pool = HandlerPool(1)
    process = await pool.take(name, fresh=True)
    assert process._writer is not None
    process._writer.close()
    assert (await process.ended).code == -signal.SIGKILL


async def test_no_more_processes_are_kept_than_there_are_slots() -> None:
    name = LocalType(isolated.where_plain.job_type).handler_name
    assert name is not None
    pool = HandlerPool(1)
    first = await pool.take(name, fresh=True)
    pool.give_back(first)
    second = await pool.take(name, fresh=True)
    await first.ended
    await pool.close()
    await second.ended


async def test_a_job_waits_uncounted_while_no_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    async with shop, shop.worker() as worker:
        ref = await isolated.where_plain.create("x")
        await eventually(lambda: worker.settled == 1)
        engine = await shop.connection.engine()
        record = (await engine.load([JobId(ref.id)])).records[0]
    assert record is not None
    assert (record.head.state, record.head.attempt) == (State.RETRY, 0)
    assert "No process can be started for a handler" in caplog.text
