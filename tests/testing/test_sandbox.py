"""A program in a sandbox: what it creates, what runs, when, and what the test hears of it."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, assert_type

import pytest

from tests.testing.shop import OPENED, SENT, Order, checkout, confirm, remind, send, whose_process
from trellis import Fail, PerKey, Retry, RetryIn, Service, Snooze, State, WaitTimeout
from trellis.engines.values import QueueSettings
from trellis.errors import ConfigurationError
from trellis.testing import (
    CreatedJob,
    HandlerFailed,
    HandlerMissing,
    JobsLeft,
    SandboxStuck,
    sandbox,
)


async def test_nothing_runs_until_the_test_says_so() -> None:
    async with sandbox() as box:
        job_id = await checkout(7, "ada")
        (order,) = box.created(confirm)
        assert (order.id, order.payload, order.state) == (job_id, Order(7, "ada"), State.PENDING)
        assert order.tags == {"customer": "ada"}
        assert SENT == []


async def test_what_is_due_runs_and_so_does_all_that_it_creates() -> None:
    async with sandbox() as box:
        await checkout(7, "ada")
        assert await box.run_all() == 2
        assert SENT == ["order 7 to ada"]
        assert [(job.type, job.state) for job in box.created()] == [
            ("shop/confirm", State.COMPLETED),
            ("shop/remind", State.PENDING),
            ("post/send", State.COMPLETED),
        ]


async def test_results_are_decoded_and_typed() -> None:
    async with sandbox() as box:
        await checkout(7, "ada")
        await box.run_all()
        assert_type(box.created(confirm), list[CreatedJob[Order, int]])
        assert [job.result for job in box.created(confirm)] == [7]
        assert [job.result for job in box.created(send)] == ["order 7 to ada from counter 1"]


async def test_a_services_lifespan_is_around_its_jobs_and_no_others() -> None:
    async with sandbox() as box:
        await remind.create("ada", delay="1h")
        await box.run_all()
        assert OPENED == []
        await send.create("letter")
        await box.run_all()
        assert OPENED == ["opened", "closed"]


async def test_the_clock_stands_still_until_it_is_advanced() -> None:
    async with sandbox() as box:
        await checkout(7, "ada")
        await box.run_all()
        box.advance("2d23h")
        assert await box.run_all() == 0
        box.advance(timedelta(hours=1))
        assert await box.run_all() == 2
        assert SENT == ["order 7 to ada", "reminder to ada"]


async def test_a_run_may_turn_the_clock_on_to_all_that_waits() -> None:
    begin = datetime(2031, 5, 1, tzinfo=UTC)
    async with sandbox(start=begin) as box:
        await checkout(7, "ada")
        assert await box.run_all(advance=True) == 4
        assert box.now == begin + timedelta(days=3)
        box.assert_empty()


async def test_a_planned_failure_takes_the_place_of_the_handler() -> None:
    async with sandbox() as box:
        await checkout(7, "ada")
        box.fail_next(confirm, ConnectionError("the post is closed"))
        await box.run_all()
        (order,) = box.created(confirm)
        assert (order.state, order.error) == (State.RETRY, "ConnectionError: the post is closed")
        assert SENT == []


async def test_a_retry_is_due_exactly_when_its_policy_says() -> None:
    async with sandbox() as box:
        ref = await confirm.create(Order(7, "ada"))
        box.fail_next(confirm, ConnectionError, times=2)
        await box.run_all()
        box.advance(4.999999)
        assert await box.run_all() == 0
        box.advance(0.000001)
        assert await box.run_all() == 1
        box.advance("30s")
        assert await box.run_all() == 2
        assert await ref.wait("10s") == 7
        assert (await ref.status()).finished_at == box.now


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Fail("no such order"), State.FAILED),
        (RetryIn("1h"), State.RETRY),
        (Snooze("1h"), State.RETRY),
        (ValueError, State.RETRY),
        (SystemExit("bye"), State.RETRY),
    ],
)
async def test_whatever_a_handler_may_raise_can_be_planned(
    error: BaseException | type[BaseException], state: State
) -> None:
    async with sandbox() as box:
        await confirm.create(Order(7, "ada"))
        box.fail_next(confirm, error)
        await box.run_all()
        assert [job.state for job in box.created(confirm)] == [state]


async def test_a_failure_nobody_planned_is_raised_with_its_cause() -> None:
    app = Service("app")

    @app.job
    async def divide(number: int) -> float:
        return 1 / number

    async with sandbox() as box:
        for number in (1, 0, 2, 0):
            await divide.create(number)
        with pytest.raises(HandlerFailed, match="Attempt 1 of 5 at app/divide") as raised:
            await box.run_all()
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        frames = traceback.extract_tb(raised.value.__cause__.__traceback__)
        assert frames[-1].name == "divide"
        assert len(raised.value.failures) == 2
        assert [job.result for job in box.created(divide)] == [1.0, None, 0.5, None]


async def test_a_failure_before_or_after_the_handler_is_raised_too() -> None:
    app = Service("app")

    @app.job
    async def lie() -> int:
        return "three"  # type: ignore[return-value]

    async with sandbox() as box:
        await lie.create()
        with pytest.raises(HandlerFailed, match="The result does not fit its type"):
            await box.run_all()


async def test_a_lifespan_that_fails_fails_the_run() -> None:
    app = Service("app")

    @app.lifespan
    @asynccontextmanager
    async def late() -> AsyncIterator[None]:
        raise TimeoutError("no database")
        yield

    @app.job
    async def work() -> None: ...

    async with sandbox() as box:
        await work.create()
        with pytest.raises(TimeoutError, match="no database"):
            await box.run_all()


async def test_failures_can_be_let_be() -> None:
    app = Service("app")

    @app.job(retry=Retry.never(), dead_letters=False)
    def fail() -> None:
        raise KeyError("gone")

    async with sandbox() as box:
        await fail.create()
        assert await box.run_all(raise_errors=False) == 1
        assert [job.error for job in box.created(fail)] == ["KeyError: 'gone'"]
        await fail.create()
        with pytest.raises(HandlerFailed):
            await box.run_all()


async def test_asking_to_be_retried_is_no_failure_until_the_last_attempt() -> None:
    app = Service("app")

    @app.job(retry=Retry(attempts=2))
    async def poll() -> None:
        raise RetryIn("1h", "not ready")

    async with sandbox() as box:
        await poll.create()
        await box.run_all()
        box.advance("1h")
        with pytest.raises(HandlerFailed, match=r"Attempt 2 of 2 at app/poll .* not ready"):
            await box.run_all()


async def test_jobs_left_over_can_be_refused() -> None:
    async with sandbox() as box:
        box.assert_empty()
        await checkout(7, "ada")
        with pytest.raises(JobsLeft, match="2 jobs are left over:\n  shop/confirm") as raised:
            box.assert_empty()
        assert isinstance(raised.value, AssertionError)
        assert "pending, due now" in str(raised.value)
        assert "pending, due in 3d" in str(raised.value)


async def test_a_job_whose_handler_is_not_imported_is_named() -> None:
    app = Service("app")
    elsewhere = app.declare("elsewhere", payload=int, result=int)
    async with sandbox() as box:
        await elsewhere.create(1)
        with pytest.raises(HandlerMissing, match="Jobs of app/elsewhere are due"):
            await box.run_all()
        assert await box.run_all(raise_errors=False) == 0

        @elsewhere.handler
        async def handle(number: int) -> int:
            return number + 1

        await box.run_all()
        assert [job.result for job in box.created(elsewhere)] == [2]


async def test_modules_that_a_service_includes_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Service("library", include=["library_of_this_test"])
    lend = library.declare("lend", payload=str, result=str)
    text = (
        "from library import lend\n@lend.handler\ndef handle(book: str) -> str:\n    return book\n"
    )
    (tmp_path / "library_of_this_test.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "library", SimpleNamespace(lend=lend))
    async with sandbox() as box:
        await lend.create("Emma")
        await box.run_all()
        assert [job.result for job in box.created(lend)] == ["Emma"]


async def test_waiting_in_a_sandbox_says_that_nothing_runs_by_itself() -> None:
    async with sandbox():
        ref = await send.create("letter")
        with pytest.raises(WaitTimeout, match=r"call run_all\(\) before you wait for post/send"):
            await ref.wait("10ms")


async def test_a_producers_declaration_is_handled_by_the_worker_module_of_that_name() -> None:
    producer, worker = Service("billing"), Service("billing")
    invoice = producer.declare("invoice", payload=int, result=int)

    @worker.job(name="invoice")
    async def handle(number: int) -> int:
        return -number

    async with sandbox() as box:
        await invoice.create(7)
        await box.run_all()
        assert [job.result for job in box.created(invoice)] == [-7]


async def test_of_two_services_with_one_name_the_one_in_use_is_meant() -> None:
    def service(answer: str) -> Service:
        made = Service("twin")

        @made.job
        async def ask() -> str:
            return answer

        return made

    used, newer = service("used"), service("newer")
    async with sandbox() as box:
        await used.find("ask").create()
        await box.run_all()
        await newer.find("ask").create()
        await box.run_all()
        assert [job.result for job in box.created()] == ["used", "newer"]


async def test_deadlines_pass_by_the_sandbox_clock() -> None:
    async with sandbox() as box:
        await confirm.create(Order(1, "ada"), deadline="1h")
        await confirm.create(Order(2, "ada"), deadline="1h", delay="2h")
        box.advance("30m")
        await box.run_all()
        box.advance("30m")
        assert await box.run_all() == 0
        states = [job.state for job in box.created(confirm)]
        assert states == [State.COMPLETED, State.EXPIRED]


async def test_a_job_that_is_created_too_late_holds_nothing_up() -> None:
    app = Service("app")

    @app.job
    async def news() -> None: ...

    @app.job
    async def too_late(moment: datetime) -> None:
        await news.create(deadline=moment)

    async with sandbox() as box:
        await too_late.create(box.now)
        await box.run_all(timeout="3s")
        assert [job.state for job in box.created(news)] == [State.EXPIRED]


async def test_a_process_of_its_own_is_this_one() -> None:
    async with sandbox() as box:
        await whose_process.create()
        await box.run_all()
        assert [job.result for job in box.created(whose_process)] == [os.getpid()]


async def test_jobs_run_one_after_the_other_in_their_order() -> None:
    app = Service("app")
    seen: list[str] = []

    @app.job
    async def slow(name: str) -> None:
        seen.append(f"{name} begins")
        for _ in range(5):
            await asyncio.sleep(0)
        seen.append(f"{name} ends")

    @app.job
    def plain(name: str) -> None:
        seen.append(name)

    async with sandbox() as box:
        await slow.create("a")
        await plain.create("b")
        await slow.create("c", priority=3)
        await box.run_all()
    assert seen == ["c begins", "c ends", "a begins", "a ends", "b"]


async def test_a_handler_may_wait_for_another_job_where_there_is_room_for_two() -> None:
    app = Service("app")

    @app.job
    async def child(number: int) -> int:
        return number * 2

    @app.job
    async def parent(number: int) -> int:
        return await (await child.create(number)).wait() + 1

    async with sandbox(concurrency=2) as box:
        await parent.create(4)
        await box.run_all()
        assert [job.result for job in box.created(parent)] == [9]
    async with sandbox() as box:
        await parent.create(4)
        with pytest.raises(SandboxStuck, match=r"app/parent still runs.*sandbox\(concurrency=2\)"):
            await box.run_all(timeout="200ms")


async def test_jobs_that_never_stop_creating_jobs_are_cut_short() -> None:
    app = Service("app")

    @app.job
    async def again(number: int) -> None:
        await again.create(number + 1)

    async with sandbox() as box:
        await again.create(0)
        with pytest.raises(SandboxStuck, match="within 200ms"):
            await box.run_all(timeout="200ms")


async def test_admission_is_the_real_one() -> None:
    app = Service("app")

    @app.job(per_key=PerKey.in_turn("user/{user}"))
    async def once(user: dict[str, str]) -> None: ...

    async with sandbox() as box:
        first = await send.create("letter", dedupe="letter-1")
        assert await send.create("letter", dedupe="letter-1") == first
        with pytest.raises(ConfigurationError):
            await send.create("letter", dealy="1h")  # type: ignore[call-arg]
        await once.create({"user": "ada"})
        await once.create({"user": "ada"})
        assert await box.run_all() == 3
        box.assert_empty()


async def test_operators_steer_what_is_in_the_sandbox() -> None:
    async with sandbox() as box:
        ref = await confirm.create(Order(7, "ada"))
        box.fail_next(confirm, ConnectionError, times=3)
        await box.run_all(advance=True)
        assert [job.state for job in box.created(confirm)] == [State.DEAD]
        await box.operator.replay(ref.id)
        await box.run_all()
        assert await ref.wait("10s") == 7


async def test_what_cannot_be_claimed_stays_where_it_is() -> None:
    async with sandbox() as box:
        await send.create("letter")
        await box.engine.set_queue(QueueSettings("post", "send", paused=True))
        assert await box.run_all() == 0
        await box.engine.set_queue(QueueSettings("post", "send"))
        assert await box.run_all() == 1


async def test_created_jobs_are_found_by_the_name_of_their_type_too() -> None:
    async with sandbox() as box:
        await send.create("letter")
        assert [job.payload for job in box.created("send")] == ["letter"]
        assert [job.payload for job in box.created("post/send")] == ["letter"]
        with pytest.raises(ConfigurationError, match=r"no job type 'sendd'.*Did you mean 'send'\?"):
            box.created("sendd")
        wrong: Any = box
        with pytest.raises(ConfigurationError, match=r"Pass the job itself, created\(confirm\)"):
            wrong.created(7)
        with pytest.raises(ConfigurationError, match=r"Pass the job itself: fail_next\(confirm"):
            wrong.fail_next("send", ValueError)


async def test_a_handler_that_waits_for_another_job_is_told_how_to_run_both() -> None:
    app = Service("app")

    @app.job
    async def child(number: int) -> int:
        return number

    @app.job
    async def parent(number: int) -> str:
        try:
            return str(await (await child.create(number)).wait("20ms"))
        except WaitTimeout as late:
            return str(late)

    async with sandbox() as box:
        await parent.create(4)
        await box.run_all()
        (job,) = box.created(parent)
        assert "needs sandbox(concurrency=2)." in (job.result or "")


async def test_locks_outside_of_handlers_are_those_of_the_sandbox() -> None:
    async with sandbox() as box, Service("app").lock("letters", 7):
        assert [lock.name for lock in await box.operator.locks()] == ["letters/7"]


async def test_an_object_that_is_no_connection_creates_the_job_at_once() -> None:
    async with sandbox() as box:
        await send.create("letter", tx=object())
        assert await box.run_all() == 1
        assert SENT == ["letter"]


async def test_many_jobs_run_in_little_time() -> None:
    async with sandbox() as box:
        await send.create_many(f"letter {number}" for number in range(1000))
        assert await box.run_all() == 1000
        assert [f"letter {number}" for number in range(1000)] == SENT


async def test_a_sandbox_that_is_over_runs_nothing_but_still_tells() -> None:
    async with sandbox() as box:
        await send.create("letter")
    assert [job.payload for job in box.created(send)] == ["letter"]
    with pytest.raises(ConfigurationError, match="inside the with block"):
        await box.run_all()


async def test_a_handler_that_runs_everything_is_told_that_it_need_not() -> None:
    app = Service("app")
    async with sandbox() as box:

        @app.job(retry=Retry.never())
        async def greedy() -> None:
            await box.run_all()

        await greedy.create()
        with pytest.raises(HandlerFailed, match="the jobs it creates run as well"):
            await box.run_all()


async def test_a_worker_that_the_program_starts_itself_works_in_the_sandbox() -> None:
    app = Service("app", "sqlite:////nowhere/app.db")

    @app.job
    async def double(number: int) -> int:
        return number * 2

    async with sandbox() as box, app, app.worker(poll="20ms"):
        ref = await double.create(4)
        assert await ref.wait("10s") == 8
        assert await box.run_all() == 0
