"""Which sandbox a service uses: nested, side by side, in other loops and threads, afterwards."""

from __future__ import annotations

import asyncio
import os
import threading
import unittest
from pathlib import Path

import pytest

from tests.testing.shop import SENT, Order, checkout_sync, confirm, post, send, shop
from trellis import EngineError, JobNotFound, Service
from trellis.errors import CalledFromLoop, ConfigurationError, EngineClosed
from trellis.testing import HandlerFailed, sandbox


def test_services_are_bound_as_before_when_the_sandbox_is_over(tmp_path: Path) -> None:
    app = Service("app", f"sqlite:///{tmp_path / 'jobs.db'}")
    job = app.declare("count", payload=int, result=int)
    before = job.create_sync(1)
    with sandbox() as box:
        assert (app.url, shop.url, post.url) == ("memory://", "memory://", "memory://")
        inside = job.create_sync(2)
        assert [each.payload for each in box.created()] == [2]
    assert app.url == f"sqlite:///{tmp_path / 'jobs.db'}"
    assert shop.url == "sqlite:////nowhere/shop.db"
    assert before.status_sync().id == before.id
    with pytest.raises(JobNotFound):
        inside.status_sync()
    with pytest.raises(EngineError, match="nowhere"):
        checkout_sync(1, "ada")


def test_an_error_inside_leaves_nothing_behind() -> None:
    with pytest.raises(ValueError, match="the test failed"), sandbox():
        raise ValueError("the test failed")
    assert shop.url == "sqlite:////nowhere/shop.db"


def test_no_sandbox_sees_the_jobs_of_another() -> None:
    with sandbox() as first:
        send.create_sync("one")
    with sandbox() as second:
        send.create_sync("two")
        assert second.run_all_sync() == 1
    assert [job.payload for job in first.created()] == ["one"]
    assert [job.payload for job in second.created()] == ["two"]
    assert SENT == ["two"]


def test_the_innermost_sandbox_is_used_and_each_runs_its_own_jobs() -> None:
    with sandbox() as outer:
        checkout_sync(1, "outer")
        with sandbox() as inner:
            checkout_sync(2, "inner")
            outer.run_all_sync()
            assert SENT == ["order 1 to outer"]
            inner.run_all_sync()
        checkout_sync(3, "outer")
        outer.run_all_sync()
    assert SENT == ["order 1 to outer", "order 2 to inner", "order 3 to outer"]
    assert [len(box.created()) for box in (outer, inner)] == [4, 2]


async def test_sandboxes_side_by_side_do_not_meet() -> None:
    both_inside = asyncio.Barrier(3)

    async def one_test(name: str) -> list[str]:
        async with sandbox() as box:
            await both_inside.wait()
            await confirm.create(Order(1, name))
            await both_inside.wait()
            await box.run_all()
            return [job.payload for job in box.created(send)]

    names = ["ada", "bob", "eve"]
    found = await asyncio.gather(*(one_test(name) for name in names))
    assert found == [[f"order 1 to {name}"] for name in names]


def test_sandboxes_in_threads_side_by_side_do_not_meet() -> None:
    both_inside = threading.Barrier(2)
    found: dict[str, list[str]] = {}

    def one_test(name: str) -> None:
        with sandbox() as box:
            both_inside.wait(10)
            checkout_sync(1, name)
            both_inside.wait(10)
            box.run_all_sync()
            found[name] = [job.payload for job in box.created(send)]

    threads = [threading.Thread(target=one_test, args=(name,)) for name in ("ada", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"ada": ["order 1 to ada"], "bob": ["order 1 to bob"]}


def test_several_loops_and_plain_threads_are_in_the_same_sandbox() -> None:
    with sandbox() as box:
        asyncio.run(_send("first loop"))
        asyncio.run(_send("second loop"))
        thread = threading.Thread(target=send.create_sync, args=("thread",))
        thread.start()
        thread.join()
        assert box.run_all_sync() == 3
        assert asyncio.run(box.run_all()) == 0
    assert SENT == ["first loop", "second loop", "thread"]


async def _send(text: str) -> None:
    await send.create(text)


def test_a_plain_handler_runs_in_the_thread_of_a_plain_test() -> None:
    app = Service("app")
    seen: list[object] = []
    local = threading.local()
    local.transaction = "the test's own"

    @app.job
    def plain() -> None:
        with pytest.raises(RuntimeError):  # else Django's ORM would refuse to work
            asyncio.get_running_loop()
        seen.append(local.transaction)
        inner.create_sync()

    @app.job
    def inner() -> None:
        seen.append(threading.current_thread())

    with sandbox() as box:
        plain.create_sync()
        assert box.run_all_sync() == 2
    assert seen == ["the test's own", threading.current_thread()]


def test_a_plain_transaction_is_accepted_too() -> None:
    with sandbox() as box:
        send.create_sync("letter", tx=object())
        assert [job.payload for job in box.created(send)] == ["letter"]


def test_a_plain_handlers_failure_reaches_the_plain_test() -> None:
    app = Service("app")

    @app.job
    def broken() -> None:
        raise StopIteration

    with sandbox() as box:
        broken.create_sync()
        with pytest.raises(HandlerFailed, match="StopIteration"):
            box.run_all_sync()


async def test_the_plain_call_is_refused_in_a_loop() -> None:
    with sandbox() as box, pytest.raises(CalledFromLoop, match=r"await box\.run_all"):
        box.run_all_sync()


async def test_a_wait_ends_with_the_sandbox() -> None:
    for leave_plainly in (True, False):
        box = sandbox()
        await box.__aenter__()
        ref = await send.create("letter")
        waiting = asyncio.create_task(ref.wait())
        await asyncio.sleep(0)
        if leave_plainly:
            box.__exit__(None, None, None)
        else:
            await box.__aexit__(None, None, None)
        with pytest.raises(EngineClosed):
            await waiting


async def test_a_service_entered_in_the_sandbox_may_be_left_after_it() -> None:
    app = Service("app", "sqlite:////nowhere/app.db")
    with sandbox():
        await app.__aenter__()
    await app.__aexit__(None, None, None)


async def test_a_task_that_outlives_its_sandbox_is_no_longer_in_it() -> None:
    go_on = asyncio.Event()

    async def linger() -> None:
        await go_on.wait()
        await send.create("late")

    with sandbox() as first:
        task = asyncio.create_task(linger())
    with sandbox() as second:
        go_on.set()
        await task
    assert [len(box.created()) for box in (first, second)] == [0, 1]


def test_a_sandbox_is_entered_once() -> None:
    with sandbox() as box, pytest.raises(ConfigurationError, match="Make another"), box:
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_stays_out_of_the_real_engines() -> None:
    with sandbox() as box:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                send.create_sync("from the child")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert box.created() == []


class PlainTest(unittest.TestCase):
    """A test case as Django's users write them."""

    def setUp(self) -> None:
        self.box = self.enterContext(sandbox())

    def test_an_order_is_confirmed(self) -> None:
        checkout_sync(7, "ada")
        self.box.run_all_sync()
        assert SENT == ["order 7 to ada"]

    def test_nothing_is_left_of_the_other_test(self) -> None:
        assert self.box.created() == []


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.box = await self.enterAsyncContext(sandbox())

    async def test_an_order_is_confirmed(self) -> None:
        await confirm.create(Order(8, "bob"))
        await self.box.run_all()
        assert SENT == ["order 8 to bob"]
