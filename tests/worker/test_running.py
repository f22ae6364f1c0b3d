"""Running handlers: every way in which an attempt can end, on both engines."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from tests.worker.faulty import eventually
from trellis import (
    ActiveJob,
    Cancelled,
    Fail,
    JobCancelled,
    JobDead,
    JobFailed,
    JobRef,
    Retry,
    RetryIn,
    Service,
    Snooze,
    State,
)
from trellis.core.events import Event, EventKind
from trellis.core.fold import fold
from trellis.core.job import JobId

SOON = Retry.fixed("1ms", attempts=3)


async def journal(service: Service, ref: JobRef[Any]) -> list[Event]:
    engine = await service.connection.engine()
    events = await engine.journal(JobId(ref.id))
    record = (await engine.load([JobId(ref.id)])).records[0]
    assert record is not None
    assert fold(events) == record.head
    return events


@dataclass
class Sum:
    left: int
    right: int


async def test_an_async_handler_gets_its_payload_as_its_own_type(service: Service) -> None:
    @service.job
    async def add(numbers: Sum) -> int:
        return numbers.left + numbers.right

    async with service.worker():
        assert await (await add.create(Sum(2, 3))).wait("10s") == 5


async def test_a_plain_function_runs_in_a_thread(service: Service) -> None:
    @service.job
    def where(name: str) -> str:
        return threading.current_thread().name

    async with service.worker():
        assert (await (await where.create("x")).wait("10s")).startswith("trellis-handler-")


async def test_many_plain_functions_run_at_the_same_time(service: Service) -> None:
    together = threading.Barrier(4, timeout=10)

    @service.job
    def meet(number: int) -> int:
        return together.wait() and number

    async with service.worker(concurrency=4):
        refs = await meet.create_many(range(4))
        await asyncio.gather(*(ref.wait("15s") for ref in refs))


async def test_a_handler_without_arguments_runs(service: Service) -> None:
    @service.job
    async def tick() -> str:
        return "tock"

    async with service.worker():
        assert await (await tick.create()).wait("10s") == "tock"


async def test_a_failed_attempt_is_retried_with_its_number(service: Service) -> None:
    @service.job(retry=SOON)
    async def flaky(job: ActiveJob[str]) -> int:
        if job.attempt < job.max_attempts:
            raise ConnectionError(job.payload)
        return job.attempt

    async with service.worker(poll="20ms"):
        ref = await flaky.create("no answer")
        assert await ref.wait("10s") == 3
    kinds = [event.kind for event in await journal(service, ref)]
    assert kinds == ["created", *["started", "retry"] * 2, "started", "completed"]


async def test_a_job_without_attempts_left_is_dead_with_the_stack_of_its_error(
    service: Service,
) -> None:
    @service.job(retry=Retry.never())
    async def crash(name: str) -> None:
        raise RuntimeError(name)

    async with service.worker():
        ref = await crash.create("ada")
        with pytest.raises(JobFailed) as failed:
            await ref.wait("10s")
    assert type(failed.value) is JobDead
    engine = await service.connection.engine()
    (outcome,) = await engine.outcomes(JobId(ref.id))
    assert outcome.error is not None
    assert outcome.error.message == "RuntimeError: ada"
    assert outcome.error.detail is not None
    assert "in crash" in outcome.error.detail
    assert "trellis/worker" not in outcome.error.detail


async def test_a_handler_may_fail_for_good(service: Service) -> None:
    @service.job
    async def refuse(name: str) -> None:
        raise Fail("no such order", code="no_order")

    async with service.worker():
        ref = await refuse.create("x")
        with pytest.raises(JobFailed, match="no such order"):
            await ref.wait("10s")
    assert (await ref.status()).attempt == 1
    engine = await service.connection.engine()
    (outcome,) = await engine.outcomes(JobId(ref.id))
    assert outcome.error is not None
    assert "\ntrellis.Fail: no such order" in (outcome.error.detail or "")


async def test_retry_in_counts_the_attempt_and_snooze_does_not(service: Service) -> None:
    seen: list[tuple[str, int]] = []

    @service.job(retry=SOON)
    async def later(job: ActiveJob[str]) -> int:
        seen.append((job.payload, job.attempt))
        if len(seen) == 1:
            raise RetryIn("1ms", "busy")
        if len(seen) == 2:
            raise Snooze("1ms")
        return job.attempt

    async with service.worker(poll="20ms"):
        assert await (await later.create("x")).wait("10s") == 2
    assert seen == [("x", 1), ("x", 2), ("x", 2)]


async def test_a_handler_may_cancel_its_job(service: Service) -> None:
    @service.job
    async def give_up() -> None:
        raise Cancelled

    async with service.worker():
        with pytest.raises(JobCancelled):
            await (await give_up.create()).wait("10s")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
async def test_nothing_a_handler_raises_ends_its_worker(
    service: Service, error: BaseException
) -> None:
    @service.job(retry=Retry.never())
    async def leave() -> None:
        raise error

    @service.job(retry=Retry.never())
    def leave_thread() -> None:
        raise error

    @service.job
    async def stay() -> str:
        return "here"

    async with service.worker(concurrency=1):
        for job in (leave, leave_thread):
            with pytest.raises(JobDead, match=type(error).__name__):
                await (await job.create()).wait("10s")
        assert await (await stay.create()).wait("10s") == "here"


async def test_a_handler_whose_own_task_was_cancelled_has_failed(service: Service) -> None:
    @service.job(retry=Retry.never())
    async def cancels_its_child() -> None:
        child = asyncio.create_task(asyncio.sleep(60))
        child.cancel()
        await child

    async with service.worker():
        with pytest.raises(JobDead, match="CancelledError"):
            await (await cancels_its_child.create()).wait("10s")


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def cancelled_while_it_waits() -> None:
    asyncio.get_running_loop().call_soon(current_task().cancel)
    await asyncio.Event().wait()


async def cancelled_and_gone() -> None:
    current_task().cancel()
    raise ConnectionError("CancelledError to come")


@pytest.mark.parametrize("handler", [cancelled_while_it_waits, cancelled_and_gone])
async def test_a_handler_that_cancels_its_own_task_ends_neither_slot_nor_next_job(
    service: Service, handler: Callable[[], Awaitable[None]]
) -> None:
    cancelled = service.job(retry=Retry.never(), name="cancelled")(handler)

    @service.job
    async def stay() -> str:
        await asyncio.sleep(0)
        return "here"

    ref, next_ref = await cancelled.create(), await stay.create()
    async with service.worker(concurrency=1) as worker:
        # Both are claimed at once, and nothing is awaited between them.
        for _ in range(5):
            worker._planner.types["shop", "stay"].took(0.0001)
        worker._executor._turn_ends = inf
        with pytest.raises(JobDead, match="CancelledError"):
            await ref.wait("10s")
        assert await next_ref.wait("10s") == "here"
    assert (await next_ref.status()).attempt == 1


async def test_a_cancel_that_comes_after_its_handler_does_not_end_the_slot(
    service: Service,
) -> None:
    @service.job(retry=Retry.never())
    async def leave_behind() -> None:
        slots.append(current_task())

    slots: list[asyncio.Task[Any]] = []
    async with service.worker(concurrency=1) as worker:
        await (await leave_behind.create()).wait("10s")
        await eventually(lambda: len(worker._executor._idle_slots) == 1)
        slots[0].cancel()
        ref = await leave_behind.create()
        await ref.wait("10s")
    assert slots[0] is slots[1]
    assert [event.kind for event in await journal(service, ref)] == [
        "created",
        "started",
        "completed",
    ]


async def test_a_result_that_cannot_be_stored_fails_for_good(service: Service) -> None:
    @service.job
    async def strange() -> object:
        return object()

    @service.job
    async def lying() -> int:
        return "three"  # type: ignore[return-value]

    async with service.worker():
        with pytest.raises(JobFailed, match="The result cannot be written as JSON"):
            await (await strange.create()).wait("10s")
        with pytest.raises(JobFailed, match="The result does not fit its type"):
            await (await lying.create()).wait("10s")


async def test_a_payload_that_no_longer_fits_fails_at_once(service: Service) -> None:
    old = Service("shop", service.url)
    old.connection._own._shared_engine = service.connection._own._shared_engine
    was_text = old.declare("resize", payload=str, result=int)

    @service.job
    async def resize(size: int) -> int:
        return size

    async with old, service.worker():
        ref = await was_text.create("big")
        with pytest.raises(JobFailed, match="The payload does not fit its type"):
            await ref.wait("10s")


async def test_a_payload_refused_inside_a_handler_is_an_error_like_any_other(
    service: Service,
) -> None:
    inner = service.declare("inner", payload=int, result=int)

    @service.job(retry=SOON)
    async def outer(number: int) -> None:
        await inner.create("three")  # type: ignore[arg-type]

    async with service.worker(poll="20ms"):
        ref = await outer.create(1)
        with pytest.raises(JobDead, match="The payload does not fit its type"):
            await ref.wait("10s")
    assert (await ref.status()).attempt == 3


async def test_an_attempt_that_takes_too_long_is_interrupted(service: Service) -> None:
    cleaned = asyncio.Event()

    @service.job(timeout="50ms", retry=Retry.never())
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async with service.worker():
        ref = await endless.create()
        with pytest.raises(JobDead, match="took longer than 50ms"):
            await ref.wait("10s")
    assert cleaned.is_set()


async def test_a_thread_that_takes_too_long_is_disowned_and_its_result_ignored(
    service: Service,
) -> None:
    go_on = threading.Event()

    @service.job(timeout="50ms", retry=Retry.never())
    def endless() -> str:
        go_on.wait(20)
        return "late"

    @service.job
    async def other() -> str:
        return "fine"

    async with service.worker(concurrency=2):
        ref = await endless.create()
        with pytest.raises(JobDead, match="took longer than 50ms"):
            await ref.wait("10s")
        go_on.set()
        assert await (await other.create()).wait("10s") == "fine"
    assert (await ref.status()).state is State.DEAD


async def test_what_a_handler_sets_in_a_context_variable_is_gone_for_the_next(
    service: Service,
) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")

    @service.job
    async def dirty(name: str) -> str:
        before = variable.get()
        variable.set(name)
        await asyncio.sleep(0)
        assert variable.get() == name
        return before

    async with service.worker(concurrency=1):
        refs = await dirty.create_many(["a", "b", "c"])
        assert [await ref.wait("10s") for ref in refs] == ["clean"] * 3


async def test_a_job_created_by_a_handler_belongs_to_the_same_request(service: Service) -> None:
    child = service.declare("child", payload=int, result=int)

    @service.job
    async def parent(job: ActiveJob[int]) -> tuple[str, str, str]:
        ref = await child.create(job.payload)
        return ref.id, job.context.request_id, job.context.traceparent

    async with service.worker():
        child_id, request, trace = await (await parent.create(1)).wait("10s")
    engine = await service.connection.engine()
    record = (await engine.load([JobId(child_id)])).records[0]
    assert record is not None
    assert (record.definition.context.request_id, record.definition.context.traceparent) == (
        request,
        trace,
    )


async def test_a_type_runs_no_more_at_once_than_its_concurrency(service: Service) -> None:
    running = 0
    most = 0

    @service.job(concurrency=2)
    async def limited(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    async with service.worker(concurrency=8):
        refs = await limited.create_many(range(40))
        await asyncio.gather(*(ref.wait("20s") for ref in refs))
    assert most == 2


async def test_a_worker_runs_as_many_at_once_as_it_has_slots(service: Service) -> None:
    running = 0
    most = 0

    @service.job
    async def busy(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    async with service.worker(concurrency=5):
        refs = await busy.create_many(range(60))
        await asyncio.gather(*(ref.wait("20s") for ref in refs))
    assert most == 5


async def test_a_delayed_job_starts_no_earlier_than_asked(service: Service) -> None:
    @service.job
    async def late() -> None:
        return None

    async with service.worker(poll="50ms"):
        ref = await late.create(delay="200ms")
        await ref.wait("10s")
    created, started, *_ = await journal(service, ref)
    assert (created.kind, started.kind) == (EventKind.CREATED, EventKind.STARTED)
    assert started.at - created.at >= 200_000


async def test_a_handler_that_blocks_the_loop_costs_nobody_the_lease(service: Service) -> None:
    @service.job
    async def block() -> str:
        time.sleep(1.0)  # noqa: ASYNC251 - that is the point
        return "done"

    async with service.worker(lease="450ms"):
        ref = await block.create()
        assert await ref.wait("10s") == "done"
    assert (await ref.status()).attempt == 1


async def test_a_lifespan_gives_handlers_their_shared_state(service: Service) -> None:
    events: list[str] = []

    @service.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[dict[str, str]]:
        events.append("open")
        yield {"greeting": "hello"}
        events.append("close")

    @service.job
    async def greet(job: ActiveJob[str]) -> str:
        return f"{job.state['greeting']} {job.payload}"

    async with service.worker():
        assert await (await greet.create("ada")).wait("10s") == "hello ada"
    assert events == ["open", "close"]
