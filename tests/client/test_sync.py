"""Code without an event loop: the `_sync` twins and the portal they go through."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import pytest

from trellis import Accepted, Job, JobCancelled, PerKey, Rejected, Service, State
from trellis.core.job import JobId
from trellis.errors import CalledFromLoop
from trellis.portal import Portal, call, portal


@pytest.fixture
def shop(url: str) -> Iterator[Service]:
    with Service("shop", url) as shop:
        yield shop


def greeting(service: Service) -> Job[str, str]:
    @service.job
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    return greet


@contextmanager
def working(service: Service) -> Iterator[None]:
    """Run a worker on the loop of a separate thread."""
    started, done = threading.Event(), threading.Event()

    async def work() -> None:
        async with service.worker(poll="20ms"):
            started.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    started.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_plain_program_creates_a_job_and_waits_for_its_result(shop: Service) -> None:
    greet = greeting(shop)
    with working(shop):
        ref = greet.create_sync("world")
        assert ref.wait_sync("20s") == "Hello, world!"
        refs = greet.create_many_sync(["ada", "bob"])
        assert [each.wait_sync("20s") for each in refs] == ["Hello, ada!", "Hello, bob!"]
        assert ref.status_sync().state is State.COMPLETED
        assert [event.kind for event in ref.events_sync(follow=True)][-1] == "completed"
        assert list(ref.logs_sync(follow=True)) == []


def test_every_way_to_act_on_a_job_has_a_twin(shop: Service) -> None:
    job = shop.declare("one", result=str, per_key=PerKey("one"))
    answer = job.submit_sync()
    assert isinstance(answer, Accepted)
    assert isinstance(job.submit_sync(), Rejected)
    assert answer.ref.adjust_sync(priority=2).priority == 2
    assert answer.ref.cancel_sync("enough").state is State.CANCELLED
    with pytest.raises(JobCancelled):
        answer.ref.wait_sync("10s")
    assert answer.ref.clone_sync().status_sync().state is State.PENDING
    assert greeting(shop).run_inline_sync("ada") == "Hello, ada!"


async def test_a_handler_in_a_thread_creates_further_jobs_of_the_same_request(
    service: Service,
) -> None:
    greet = greeting(service)

    @service.job
    def delegate(name: str) -> list[str]:
        ref = greet.create_sync(name)
        return [ref.id, ref.wait_sync("20s")]

    async with service.worker(poll="20ms"):
        ref = await delegate.create("ada")
        further, greeted = await ref.wait("20s")
    assert greeted == "Hello, ada!"
    engine = await service.connection.engine()
    one, two = (await engine.load([JobId(ref.id), JobId(further)])).records
    assert one is not None
    assert two is not None
    assert two.definition.context == one.definition.context


def test_a_twin_is_named_and_documented_after_its_method(shop: Service) -> None:
    ref = greeting(shop).ref("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert ref.wait_sync.__name__ == "wait_sync"
    assert ref.wait_sync.__doc__ == "`wait`, for code without an event loop."


async def test_a_twin_called_on_a_running_loop_says_what_to_await(service: Service) -> None:
    greet = greeting(service)
    ref = greet.ref("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    twins: dict[str, Callable[[], object]] = {
        "create": lambda: greet.create_sync("x"),
        "submit": lambda: greet.submit_sync("x"),
        "create_many": lambda: greet.create_many_sync(["x"]),
        "wait": ref.wait_sync,
        "events": ref.events_sync,
        "open": service.open_sync,
    }
    for name, blocking in twins.items():
        with pytest.raises(CalledFromLoop, match=rf"{name}_sync .* Write: await {name}\(\.\.\.\)"):
            blocking()


def test_a_twin_called_on_the_portals_own_loop_would_wait_for_itself(shop: Service) -> None:
    greet = greeting(shop)

    async def from_inside() -> None:
        greet.create_sync("x")

    with pytest.raises(CalledFromLoop, match="on Trellis's own loop"):
        call(from_inside)


def test_threads_share_the_portal(shop: Service) -> None:
    greet = greeting(shop)
    with ThreadPoolExecutor(8) as pool:
        refs = list(pool.map(greet.create_sync, map(str, range(40))))
    assert len({ref.id for ref in refs}) == 40
    assert all(ref.status_sync().state is State.PENDING for ref in refs)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("trellis-portal") == 1


def test_a_coroutine_in_the_portal_sees_the_callers_context_variables() -> None:
    colour: ContextVar[str] = ContextVar("colour")
    colour.set("green")

    async def look() -> str:
        return colour.get()

    assert call(look) == "green"


def test_an_iterator_that_is_left_early_is_closed() -> None:
    closed = threading.Event()

    async def count() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            closed.set()

    numbers = portal.each(count())
    assert next(numbers) == 0
    del numbers
    gc.collect()
    assert closed.wait(10)


def test_a_closed_portal_starts_again() -> None:
    async def where() -> int:
        return threading.get_ident()

    own = Portal()
    first = own.call(where)
    own.close()
    own.close()
    assert own.call(where) != threading.get_ident()
    own.close()
    assert first != threading.get_ident()


def test_an_interrupted_call_ends_its_coroutine() -> None:
    cancelled = threading.Event()
    main = threading.get_ident()

    async def never() -> None:
        while sys._current_frames()[main].f_code.co_name != "wait":  # noqa: ASYNC110 - its signal
            await asyncio.sleep(0)
        try:
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a caller may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            call(never)
    finally:
        signal.signal(signal.SIGINT, before)
    assert cancelled.wait(10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on_with_the_same_service_and_so_does_its_parent(
    tmp_path: Path,
) -> None:
    with Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}") as shop:
        greet = greeting(shop)
        before = greet.create_sync("before")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # should it hang, it must not stay
            try:
                os.write(writing, greet.create_sync("child").id.encode())
                before.status_sync()
            except BaseException as error:  # noqa: BLE001 - reported to the parent
                os.write(writing, repr(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            childs = pipe.read()
        os.waitpid(child, 0)
        after = greet.create_sync("after")
        assert greet.ref(childs).status_sync().state is State.PENDING
        with working(shop):
            assert [each.wait_sync("20s") for each in (before, greet.ref(childs), after)] == [
                "Hello, before!",
                "Hello, child!",
                "Hello, after!",
            ]


def test_a_program_that_never_says_goodbye_ends_in_silence(tmp_path: Path) -> None:
    program = f"""
        from trellis import Service

        shop = Service("shop", "sqlite:///{tmp_path / "jobs.db"}")
        greet = shop.declare("greet", payload=str, result=str)
        ref = greet.create_sync("ada")
        for event in ref.events_sync(follow=True):
            print(event.kind)
            break
    """
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "created\n", "")
    assert not list(tmp_path.glob("*-wal")), "the engine was closed in order"
