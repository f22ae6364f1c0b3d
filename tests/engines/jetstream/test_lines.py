"""Keys with long lines: what waits beyond the state is in pages."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from typing import cast

import pytest
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from tests.engines.jetstream.conftest import deploy
from tests.engines.jetstream.manual import ManualEngine
from tests.harness.servers.nats import NatsCluster
from trellis.core.commands import Adjust, Cancel, Fail, Retry
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobId, JobRecord, NewJob, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import KeyPolicy, Policy, WhenFull
from trellis.core.states import State
from trellis.engines.demand import Demand
from trellis.engines.jetstream import JetStreamEngine, line
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, Committed, Conflict, KeyStatus
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, complete, fence_of
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    decided,
    give_up_lost,
    ids,
    kinds,
    reap_lapsed,
    settle,
)

ONE = Policy(key=KeyPolicy("user/{id}", 1, None, "wait"))


def waiting(policy: Policy = ONE, priority: int = 0, delay: int = 0) -> NewJob:
    """Return a job of the one key of these tests."""
    return a_job(policy=policy, key="user/1", priority=priority, delay=delay)


async def create(engine: Engine, *jobs: NewJob) -> list[JobId]:
    """Create jobs, some hundred at a time."""
    for start in range(0, len(jobs), 400):
        answers = await engine.create(jobs[start : start + 400])
        assert all(isinstance(each, Accepted) for each in answers)
    return [each.id for each in jobs]


async def claim(engine: Engine, session: SessionId, limit: int = 1) -> list[JobRecord]:
    demand = Demand("shop", ("invoice",), limit)
    return list((await engine.claim(session, [demand], limit)).jobs)


async def run_next(engine: Engine, session: SessionId) -> JobId:
    """Run the only job of the key that can start."""
    (taken,) = await claim(engine, session)
    await settle(engine, taken, complete(taken))
    return taken.definition.id


async def the_key(engine: Engine) -> KeyStatus:
    (status,) = await engine.keys("shop", "invoice")
    return status


@pytest.fixture
def port(engine: ManualEngine) -> Engine:
    return cast("Engine", engine)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide lines of five jobs already."""
    monkeypatch.setattr(line, "WHOLE", 4)
    monkeypatch.setattr(line, "HEAD", 2)
    monkeypatch.setattr(line, "PAGE", 3)


@pytest.mark.usefixtures("short")
class TestShort:
    """Every step of a line with pages, on lines of a few jobs."""

    async def test_jobs_of_a_long_line_run_in_the_order_of_creation(self, port: Engine) -> None:
        session = await a_session(port, "1h")
        jobs = await create(port, *(waiting() for _ in range(20)))
        status = await the_key(port)
        assert (status.holders, status.waiting) == ((jobs[0],), 19)
        assert [await run_next(port, session) for _ in jobs] == jobs
        assert await port.keys("shop", "invoice") == []

    async def test_priority_comes_before_the_order_of_creation(self, port: Engine) -> None:
        session = await a_session(port, "1h")
        jobs = await create(port, *(waiting(priority=each % 3) for each in range(15)))
        later = await create(port, waiting(priority=1))
        ranked = [*jobs[2::3], *jobs[1::3], *later, *jobs[::3]]
        assert [await run_next(port, session) for _ in ranked] == ranked

    async def test_due_jobs_pass_those_that_are_not_due(
        self, port: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(port, "1h")
        late = await create(port, *(waiting(priority=1, delay=60 * SECOND) for _ in range(9)))
        jobs = await create(port, *(waiting() for _ in range(9)))
        assert [await run_next(port, session) for _ in jobs] == jobs
        clock.advance("60s")
        await port.promote(100)
        assert [await run_next(port, session) for _ in late] == late

    async def test_a_waiting_job_can_end_wherever_it_is_in_the_line(self, port: Engine) -> None:
        session = await a_session(port, "1h")
        records = await accept(port, *(waiting() for _ in range(17)))
        ended = (3, 8, 16)
        for place in ended:
            await settle(port, records[place], Cancel())
        assert (await the_key(port)).waiting == 13
        left = [each for place, each in enumerate(records) if place not in ended]
        assert [await run_next(port, session) for _ in left] == ids(left)

    async def test_a_changed_job_has_another_place(self, port: Engine) -> None:
        session = await a_session(port, "1h")
        records = await accept(port, *(waiting() for _ in range(12)))
        raised = records.pop(9)
        await settle(port, raised, Adjust(priority=5))
        expected = [records[0], raised, *records[1:]]
        assert [await run_next(port, session) for _ in expected] == ids(expected)

    async def test_a_retry_and_a_revived_job_come_back_to_their_places(
        self, port: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(port, "1h")
        jobs = await create(port, *(waiting() for _ in range(12)))
        (first,) = await claim(port, session)
        await settle(port, first, Fail(fence_of(first), Failure("x", "boom"), delay=SECOND))
        (second,) = await claim(port, session)
        boom = Fail(fence_of(second), Failure("x", "boom"), retryable=False)
        failed = await settle(port, second, boom)
        clock.advance("2s")
        await settle(port, failed, Retry())
        expected = [*jobs[2:], first.definition.id, second.definition.id]
        assert [await run_next(port, session) for _ in expected] == expected

    @pytest.mark.parametrize("when_full", ["replace-oldest", "coalesce"])
    async def test_a_full_line_names_a_job_that_is_in_a_page(
        self, port: Engine, when_full: WhenFull
    ) -> None:
        policy = Policy(key=KeyPolicy("user/{id}", 1, 11, when_full))
        jobs = await create(port, *(waiting(policy) for _ in range(12)))
        session = await a_session(port, "1h")
        (running,) = await claim(port, session)
        (answer,) = await port.create([waiting(policy)])
        named = getattr(answer, "existing", None) or getattr(answer, "skipped", None)
        assert named == (jobs[1] if when_full == "replace-oldest" else jobs[-1])
        assert (await the_key(port)).waiting == 11
        await settle(port, running, complete(running))
        assert await run_next(port, session) == jobs[2 if when_full == "replace-oldest" else 1]


async def test_a_stale_job_frees_its_slot_and_its_late_result_changes_nothing(
    port: Engine, clock: ManualClock
) -> None:
    strict = Policy(key=ONE.key, on_lost="stale")
    lost, after = await create(port, waiting(strict), waiting(strict))
    session = await a_session(port, "30s")
    (taken,) = await claim(port, session)
    late = await decided(port, taken, complete(taken))
    clock.advance("31s")
    assert await claim(port, await a_session(port)) == []
    assert await reap_lapsed(port) == [session]
    (ended,) = await give_up_lost(port)
    assert (ended.definition.id, ended.head.state) == (lost, State.STALE)
    status = await the_key(port)
    assert (status.holders, status.waiting) == ((after,), 0)
    assert await run_next(port, await a_session(port)) == after
    assert await port.commit([late]) == [Conflict(ended)]
    assert await kinds(port, ended) == ["created", "started", "stale"]


@pytest.mark.long
async def test_ten_thousand_jobs_of_one_key_wait_and_each_end_costs_the_same(
    port: Engine, engine: ManualEngine, link: Link, deployed: Subjects
) -> None:
    session = await a_session(port, "1h")
    jobs = await create(port, *(waiting() for _ in range(10_000)))
    assert (await the_key(port)).waiting == 9_999
    claim_now = super(ManualEngine, engine).claim  # every work message is there already
    await engine.catch_up()
    demand = [Demand("shop", ("invoice",), 1)]
    first = (await link.following(deployed.jobs, deployed.own("keys", ">"), 1, 10**6))[-1].sequence

    async def run(number: int) -> list[JobId]:
        ran: list[JobId] = []
        while len(ran) < number:
            for taken in (await claim_now(session, demand, 1)).jobs:
                await settle(port, taken, complete(taken))
                ran.append(taken.definition.id)
        return ran

    assert await run(100) == jobs[:100]
    written = await link.following(deployed.jobs, deployed.own("keys", ">"), first + 1, 10**6)
    assert max(len(got.body) for got in written) < 20_000
    assert sum(len(got.body) for got in written) / 100 < 30_000
    cancelled = [*jobs[110:150], *jobs[5000:5100], *jobs[-60:]]
    records = [each for each in (await port.load(cancelled)).records if each is not None]
    decisions = [decide(each, Cancel(), await port.now()) for each in records]
    stored = await port.commit([each for each in decisions if isinstance(each, Transition)])
    assert stored == [Committed()] * len(cancelled)
    assert (await the_key(port)).waiting == 10_000 - 100 - len(cancelled) - 1
    assert await run(30) == [*jobs[100:110], *jobs[150:170]]


async def read(bucket: KeyValue, key: str) -> bytes:
    """Return the value of a key once the bucket has it."""
    async with asyncio.timeout(10):
        while True:
            with suppress(KeyNotFoundError):
                return (await bucket.get(key)).value or b""
            await asyncio.sleep(0.01)


async def test_other_programs_read_keys_with_the_api_of_buckets(
    port: Engine, link: Link, deployed: Subjects
) -> None:
    new = waiting()
    holder, *_ = await create(port, new, waiting(), waiting())
    bucket = await link.client.jetstream().key_value(deployed.stream("JOBS_KEYS"))
    key = f"shop.invoice.{new.key_hash}"
    shown = json.loads(await read(bucket, key))
    assert (shown["key"], shown["queuedCount"]) == ("user/1", 3)
    assert [each["jobId"] for each in shown["active"]] == [holder]
    with pytest.raises(NatsError):
        await bucket.put(key, b"{}")


@pytest.mark.long
async def test_creators_and_workers_at_three_nodes_never_exceed_a_key(
    nats_three: NatsCluster, subjects: Subjects
) -> None:
    link = Link(nats_three.urls)
    await link.open()
    async with deploy(link, subjects, replicas=3), AsyncExitStack() as opened:
        engines = []
        for url in nats_three.urls:
            engine = JetStreamEngine(url, prefix=subjects.prefix)
            await engine.open()
            opened.push_async_callback(engine.close)
            engines.append(cast("Engine", engine))
        full = Policy(key=KeyPolicy("user/{id}", 1, 2, "reject"))
        answers = await asyncio.gather(
            *(engines[each % 3].create([waiting(full)]) for each in range(15))
        )
        assert sum(isinstance(each, Accepted) for (each,) in answers) == 3
        pair = Policy(key=KeyPolicy("user/{id}", 2, None, "wait"))
        jobs = [a_job(type="pair", policy=pair, key="user/1") for _ in range(30)]
        await asyncio.gather(*(engines[each % 3].create([new]) for each, new in enumerate(jobs)))
        running: set[JobId] = set()
        ran: list[JobId] = []

        async def work(engine: Engine) -> None:
            session = await a_session(engine, "1h")
            while len(ran) < len(jobs):
                claimed = await engine.claim(session, [Demand("shop", ("pair",), 1)], 1)
                for taken in claimed.jobs:
                    running.add(taken.definition.id)
                    assert len(running) <= 2
                    await asyncio.sleep(0)
                    running.remove(taken.definition.id)
                    await settle(engine, taken, complete(taken))
                    ran.append(taken.definition.id)

        async with asyncio.timeout(120):
            await asyncio.gather(*map(work, engines))
        assert sorted(ran) == sorted(new.id for new in jobs)
    await link.close()
