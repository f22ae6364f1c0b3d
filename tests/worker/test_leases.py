"""Losing the lease: other workers get the jobs, late results are refused, no lease ends early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Unpack

import pytest

from tests.worker.faulty import FaultyEngine, eventually
from trellis import ActiveJob, Job, PerKey, Retry, Service, State
from trellis.client.requests import new_job
from trellis.config import WorkerSettings
from trellis.core.durations import SECOND, to_datetime
from trellis.core.events import EventKind
from trellis.core.job import JobId, JobRecord
from trellis.declaration.options import TypeOptions
from trellis.engines.clock import uptime
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.engines.values import ItemEntry, JobFilter, WorkerInfo
from trellis.errors import DatabaseMissing, EngineError, EngineUnavailable
from trellis.worker.session import EngineTime, Lease, RenewalHealth
from trellis.worker.supervisor import Supervisor

QUICKLY = WorkerSettings().with_options(lease="300ms", poll="20ms", grace="5s")
SOON = Retry.fixed("1ms")


def service_of(*handlers: Callable[..., Any], **options: Unpack[TypeOptions]) -> Service:
    service = Service("shop", "memory://")
    for handler in handlers:
        service.job(**options)(handler)
    return service


def worker(engine: Engine, service: Service, settings: WorkerSettings = QUICKLY) -> Supervisor:
    return Supervisor(engine, lambda: engine, service.job_types, settings)


async def create(engine: Engine, job: Job[Any, Any], payload: object = None) -> JobId:
    new = new_job(job.job_type, payload)
    await engine.create([new])
    return new.id


async def record(engine: Engine, job_id: JobId) -> JobRecord:
    found = (await engine.load([job_id])).records[0]
    assert found is not None
    return found


async def state(engine: Engine, job_id: JobId) -> State:
    return (await record(engine, job_id)).head.state


async def kinds(engine: Engine, job_id: JobId) -> Sequence[EventKind]:
    return [event.kind for event in await engine.journal(job_id)]


async def test_work_of_a_silent_worker_is_taken_over() -> None:
    async def work() -> str:
        return "done"

    service = service_of(work, retry=SOON)
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"))
    silent = await engine.open_session(WorkerInfo("silent", "host", 1), SECOND // 10)
    claimed = await engine.claim(silent.id, [Demand("shop", ("work",), 1)], 1)
    assert len(claimed.jobs) == 1
    async with worker(engine, service):
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
    assert await kinds(engine, job_id) == ["created", "started", "retry", "started", "completed"]


async def _is(engine: Engine, job_id: JobId, wanted: State) -> bool:
    return await state(engine, job_id) is wanted


async def test_a_handler_whose_lease_was_lost_is_stopped_and_its_worker_goes_on() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()
    attempts = 0

    async def work() -> str:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            return "done"
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    service = service_of(work, retry=SOON)
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"))
    async with worker(engine, service):
        await asyncio.wait_for(begun.wait(), 10)
        (session,) = await engine.sessions()
        await engine.close_session(session.id)
        await asyncio.wait_for(stopped.wait(), 10)
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
        assert len(await engine.sessions()) == 2


async def test_the_late_result_of_a_lost_attempt_is_refused_and_journalled() -> None:
    begun, go_on = threading.Event(), threading.Event()
    attempts = 0

    def work() -> int:
        nonlocal attempts
        attempts += 1
        mine = attempts
        if mine == 1:
            begun.set()
            go_on.wait(20)
        return mine

    service = service_of(work, retry=SOON)
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"))
    async with worker(engine, service):
        await eventually(begun.is_set)
        (session,) = await engine.sessions()
        await engine.close_session(session.id)
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
        go_on.set()

        async def is_refused() -> bool:
            return EventKind.STALE_COMPLETION_IGNORED in await kinds(engine, job_id)

        await eventually(is_refused)
    (outcome,) = await engine.outcomes(job_id)
    assert outcome.result == "2"


async def test_an_outage_of_the_engine_stops_nobody_and_loses_nothing() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    service = service_of(work)
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"))
    async with worker(engine, service) as supervisor:
        await asyncio.wait_for(begun.wait(), 10)
        engine.down = True
        await eventually(supervisor._health.lease_may_have_expired)
        go_on.set()
        await eventually(lambda: engine.refused_writes >= 5)
        engine.down = False
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
    assert await kinds(engine, job_id) == ["created", "started", "completed"]


@pytest.mark.parametrize(
    ("options", "state"),
    [({}, State.RETRY), ({"on_lost": "stale"}, State.STALE), ({"on_lost": "fail"}, State.FAILED)],
)
async def test_a_keyed_job_stops_when_its_lease_can_no_longer_be_protected(
    options: dict[str, Any], state: State
) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def work(name: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    service = service_of(work, per_key=PerKey("only"), **options)
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"), "x")
    async with worker(engine, service):
        await asyncio.wait_for(begun.wait(), 10)
        engine.down = True
        await asyncio.wait_for(stopped.wait(), 10)
        engine.down = False
        await eventually(lambda: _is(engine, job_id, state))


async def test_claims_whose_answer_was_lost_are_handed_back() -> None:
    async def work() -> str:
        return "done"

    service = service_of(work, retry=SOON)
    engine = FaultyEngine()
    async with worker(engine, service):
        (session,) = await engine.sessions()
        job_id = await create(engine, service.find("work"))
        # The answer to this claim is lost, as if the connection had broken.
        await engine.claim(session.id, [Demand("shop", ("work",), 1)], 1)
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
    assert (await record(engine, job_id)).head.attempt == 1


async def test_a_blocked_job_is_not_taken_for_a_lost_claim() -> None:
    begun = asyncio.Event()

    async def work(name: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    service = service_of(work, per_key=PerKey("only"), on_lost="block")
    engine = FaultyEngine()
    job_id = await create(engine, service.find("work"), "x")

    async def is_blocked() -> bool:
        return (await record(engine, job_id)).head.blocked

    async with worker(engine, service):
        await asyncio.wait_for(begun.wait(), 10)
        engine.down = True
        await eventually(lambda: engine.refused_writes > 0)
        engine.down = False
        await eventually(is_blocked)
        seen = engine.renewals
        await eventually(lambda: engine.renewals > seen + 4)
    assert await kinds(engine, job_id) == ["created", "started", "blocked"]


async def test_a_late_word_about_an_old_session_is_not_taken_for_the_new_one() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    service = service_of(work, retry=Retry.never())
    engine = FaultyEngine()
    settings = WorkerSettings().with_options(lease="3h", poll="20ms")
    async with worker(engine, service, settings) as supervisor:
        old = supervisor._session.id
        await engine.close_session(old)
        answer = await engine.renew(old, ())
        supervisor._renewals.apply(old, uptime(), answer)
        await eventually(lambda: supervisor._session.id != old)
        job_id = await create(engine, service.find("work"))
        await asyncio.wait_for(begun.wait(), 10)
        supervisor._renewals.apply(old, uptime(), answer)
        go_on.set()
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
        assert len(await engine.sessions()) == 2


async def test_a_worker_judges_nobody_before_it_has_been_steady_for_a_lease() -> None:
    async def work() -> None:
        return None

    service = service_of(work)
    engine = FaultyEngine()
    settings = WorkerSettings().with_options(lease="1h", poll="20ms")
    lapsed = await engine.open_session(WorkerInfo("gone", "host", 1), 1)
    async with worker(engine, service, settings) as supervisor:
        await supervisor._maintenance.sweep()
        sessions = {session.id: session for session in await engine.sessions()}
        assert sessions[lapsed.id].lapsed
        assert sessions[lapsed.id].ended_at is None


@pytest.mark.parametrize("per_key", [PerKey("only"), PerKey.in_turn("only")])
async def test_jobs_of_one_key_never_run_at_the_same_time(per_key: PerKey) -> None:
    running = most = 0

    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    service = service_of(work, per_key=per_key)
    engine = FaultyEngine()
    async with worker(engine, service), worker(engine, service):
        for number in range(20):
            await create(engine, service.find("work"), number)

        async def all_done() -> bool:
            groups = (await engine.count(JobFilter(), "state")).groups
            return not {"pending", "active", "retry"} & set(groups)

        await eventually(all_done)
    assert most == 1


async def test_a_keyed_job_is_not_begun_while_the_lease_may_be_over() -> None:
    """As in a process that was stopped for long: another may hold the key by now."""
    begun = 0

    async def work() -> str:
        nonlocal begun
        begun += 1
        return "done"

    service = service_of(work, retry=SOON, per_key=PerKey.in_turn("one"))
    engine = FaultyEngine()
    async with worker(engine, service) as supervisor:
        supervisor._executor._lease_may_have_expired = lambda: True
        job_id = await create(engine, service.find("work"))
        await eventually(lambda: _was(engine, job_id, EventKind.RETRY))
        assert begun == 0
        supervisor._executor._lease_may_have_expired = lambda: False
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
    assert (await record(engine, job_id)).head.attempt == 1


async def _was(engine: Engine, job_id: JobId, kind: EventKind) -> bool:
    return kind in await kinds(engine, job_id)


class _Unreadable(FaultyEngine):
    """An engine that cannot read items a few times, for another reason each time."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__()
        self.faults = list(faults)

    async def items(self, job_id: JobId) -> list[ItemEntry]:
        if self.faults:
            raise self.faults.pop()
        return await super().items(job_id)


async def test_an_engine_that_cannot_read_earlier_items_fails_no_attempt() -> None:
    attempts: list[int] = []

    async def work(job: ActiveJob[None]) -> str:
        attempts.append(job.attempt)
        if job.attempt == 1:
            raise KeyError("once")
        return "done"

    service = service_of(work, retry=Retry.fixed(0, attempts=3, on=(KeyError,)), timeout="10s")
    engine = _Unreadable(DatabaseMissing("moved"), EngineUnavailable("away"), EngineError("odd"))
    job_id = await create(engine, service.find("work"))
    async with worker(engine, service):
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
    assert (attempts, engine.faults) == ([1, 2], [])


async def test_a_heartbeat_of_a_handler_renews_the_lease_at_once_and_not_too_often() -> None:
    engine = FaultyEngine()
    renewals: list[int] = []

    async def work(job: ActiveJob[None]) -> None:
        job.heartbeat()
        await eventually(lambda: engine.renewals > 0)
        renewals.append(engine.renewals)
        for _ in range(100):
            job.heartbeat()
            await asyncio.sleep(0.001)  # the thread that renews has a turn
        renewals.append(engine.renewals)

    service = service_of(work)
    rarely = WorkerSettings().with_options(lease="3h", heartbeat="1h", poll="20ms")
    async with worker(engine, service, rarely):
        job_id = await create(engine, service.find("work"))
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
    assert renewals[0] == 1
    assert renewals[1] < 20


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_handler_sees_when_its_lease_was_renewed_and_when_it_ends(
    *, in_thread: bool
) -> None:
    engine = FaultyEngine()
    seen: list[Lease | None] = []

    async def work(job: ActiveJob[None]) -> None:
        seen.append(job.lease)
        job.heartbeat()
        await eventually(lambda: job.lease != seen[0])
        seen.append(job.lease)

    def work_in_thread(job: ActiveJob[None]) -> None:
        asyncio.run(work(job))

    handler = work_in_thread if in_thread else work
    service = service_of(handler, per_key=PerKey("tickets"))
    rarely = WorkerSettings().with_options(lease="3h", heartbeat="1h", poll="20ms")
    async with worker(engine, service, rarely):
        job_id = await create(engine, service.find(handler.__name__))
        await eventually(lambda: _is(engine, job_id, State.COMPLETED))
        (session,) = await engine.sessions()
    first, second = (each for each in seen if each is not None)
    assert first.renewed_at < second.renewed_at <= to_datetime(session.renewed_at)
    assert second.ends_at - second.renewed_at == timedelta(hours=3)


async def test_a_handler_that_was_stopped_has_no_lease() -> None:
    begun = asyncio.Event()
    seen: list[Lease | None] = []

    async def work(job: ActiveJob[None]) -> None:
        seen.append(job.lease)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(job.lease)

    service = service_of(work, on_lost="fail")
    engine = FaultyEngine()
    await create(engine, service.find("work"))
    async with worker(engine, service):
        await asyncio.wait_for(begun.wait(), 10)
        (session,) = await engine.sessions()
        await engine.close_session(session.id)
        await eventually(lambda: len(seen) > 1)
    assert seen[0] is not None
    assert seen[1] is None


def test_a_failed_renewal_moves_no_lease() -> None:
    uptimes = iter((5 * SECOND, 9 * SECOND, 10 * SECOND, 20 * SECOND))
    health = RenewalHealth(30 * SECOND, 10 * SECOND, lambda: next(uptimes))
    engine_time = EngineTime(0)
    start = engine_time.at(0)
    health.record_success(8 * SECOND)
    renewed = health.lease(engine_time)
    health.record_failure()
    assert health.lease(engine_time) == renewed
    assert renewed == (to_datetime(start + 8 * SECOND), to_datetime(start + 38 * SECOND))


async def test_a_handler_that_is_called_as_a_function_has_no_lease() -> None:
    service = Service("shop", "memory://")

    @service.job
    async def work(job: ActiveJob[int]) -> bool:
        return job.lease is None

    assert await work.run_inline(1)
