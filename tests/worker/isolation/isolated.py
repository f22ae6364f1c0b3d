"""Handlers for the tests of isolation: at the top of a module, where another process finds them."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from trellis import (
    ActiveJob,
    Cancelled,
    Fail,
    PerKey,
    Retry,
    RetryIn,
    Service,
    Snooze,
)

shop = Service("shop", "sqlite:///somewhere-else.db")
attic = Service("attic", "memory://")
ruin = Service("ruin", "memory://")
ONCE = Retry.never()
LATER = Retry.fixed(
    "2h",
    attempts=3,
    never_on=(LookupError,),
    backoff=lambda attempt, error: f"{attempt + 2}h" if isinstance(error, OSError) else None,
)


@shop.lifespan
@asynccontextmanager
async def resources() -> AsyncIterator[dict[str, Any]]:
    beat = asyncio.create_task(asyncio.sleep(0))
    yield {"process": os.getpid(), "beat": beat}
    if "SHOP_CLOSED" in os.environ:
        here(os.environ["SHOP_CLOSED"])
    if "SHOP_STAYS_OPEN" in os.environ:
        time.sleep(600)  # noqa: ASYNC251 - it must block


@ruin.lifespan
@asynccontextmanager
async def broken_there() -> AsyncIterator[None]:
    if "trellis.worker.isolation.child" in sys.modules:
        raise ConnectionError("no database here")
    yield


def here(path: str) -> None:
    """Write the id of this process to a file, atomically."""
    draft = Path(f"{path}.{os.getpid()}")
    draft.write_text(str(os.getpid()))
    draft.rename(path)


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.002)


def lives(process: int) -> bool:
    """Return whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


# -- handlers that work ------------------------------------------------------------------------


@shop.job(isolation="process")
def where_plain(job: ActiveJob[str]) -> dict[str, Any]:
    print("garbage", job.payload, flush=True)
    return {
        "process": os.getpid(),
        "state": job.state["process"],
        "main": threading.current_thread() is threading.main_thread(),
        "inner": asyncio.run(asyncio.sleep(0, "an inner loop")),
        "job": [job.id, job.attempt, job.payload, job.context.request_id],
    }


@shop.job(isolation="process")
async def where_async(job: ActiveJob[str]) -> dict[str, Any]:
    await asyncio.sleep(0)
    await job.state["beat"]
    return {
        "process": os.getpid(),
        "state": job.state["process"],
        "job": [job.id, job.attempt, job.payload, job.context.request_id],
    }


@shop.job
def where_here() -> int:
    return os.getpid()


def region(vine: str) -> dict[str, str]:
    return {"region": os.environ.get("SHOP_REGION", "eu"), "vine": vine}


@shop.job(isolation="process", config=region)
def deploy(vine: str) -> str:
    return f"deployed {vine}"


@shop.job(isolation="process")
def piecemeal(job: ActiveJob[None]) -> list[str]:
    left = job.items.pending(["a", "b"])
    job.items.complete(left[0])
    for name in left[1:]:
        job.items.fail(name)
    return left


@shop.job(isolation="process")
def talk(job: ActiveJob[None]) -> str:
    for number in range(3):
        job.log.info("line", number=number)
        logging.getLogger("user").warning("record %d", number)
        job.progress(number, 3, step="count")
    job.phase("second")
    job.items.complete("good")
    job.items.fail("bad", "no such page")
    job.heartbeat()
    for number in range(2000):
        job.progress(number, 2000)
    return "done"


@shop.job(isolation="process", per_key=PerKey("tickets"))
def watch_lease(job: ActiveJob[None]) -> list[str]:
    first = job.lease
    job.heartbeat()
    ends = time.monotonic() + 20
    while job.lease == first and time.monotonic() < ends:
        time.sleep(0.002)
    return [lease.renewed_at.isoformat() for lease in (first, job.lease) if lease is not None]


@shop.job(isolation="process")
def lock_plain(job: ActiveJob[str]) -> str:
    with job.lock("ledger"):
        here(job.payload)
        wait_for(f"{job.payload}.free")
    wait_for(f"{job.payload}.end")
    return "freed before the end"


@shop.job(isolation="process", retry=ONCE)
async def lock_async(job: ActiveJob[str]) -> str:
    async with job.lock("ledger", wait=job.payload):
        return "got it"


@shop.job(isolation="process")
async def make_another(number: int) -> str:
    return (await where_here.create()).id


@attic.job(isolation="process")
def count(number: int) -> tuple[int, int]:
    return number + 1, os.getpid()


@attic.job(isolation="process", retry=ONCE)
async def make_in_memory() -> None:
    await count.create(1)


@ruin.job(isolation="process", retry=ONCE)
def never_called() -> None: ...


@shop.job(isolation="process")
def fork(job: ActiveJob[None]) -> str:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    who = "parent" if child else "copy"
    job.log.info(who)
    return who


# -- every way to end --------------------------------------------------------------------------


def too_much() -> str:
    return "x" * (2 << 20)


def no_json() -> object:
    return object()


def other_type() -> int:
    return "three"  # type: ignore[return-value]


@shop.job(isolation="process")
def complain() -> None:
    try:
        raise ValueError("no such order")  # noqa: TRY301 - the handler logs it
    except ValueError:
        logging.getLogger("user").exception("the order failed")


def fail() -> None:
    raise Fail("no such order", code="no_order", data={"order": 7})


def retry_in() -> None:
    raise RetryIn("1h", "busy")


def snooze() -> None:
    raise Snooze("1h")


def give_up() -> None:
    raise Cancelled("enough")


def break_down() -> None:
    raise ConnectionError("no answer")


def not_found() -> None:
    raise KeyError("order 7")


def leave() -> None:
    sys.exit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


async def close() -> None:
    raise GeneratorExit


def exhaust() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), limits[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


async def break_down_async() -> None:
    raise ConnectionError("no answer")


async def leave_async() -> None:
    sys.exit(3)


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


ENDINGS: list[Callable[[], Any]] = [
    too_much, no_json, other_type, fail, retry_in, snooze, give_up, break_down, leave, interrupt,
    not_found, close, exhaust, break_down_async, leave_async, cancel_itself,
]  # fmt: skip


# Each as a job in the worker and as a job in a separate process, which finds it by its name.
for _function in ENDINGS:
    _name = _function.__name__
    shop.job(name=f"{_name}-here", retry=LATER)(_function)
    _apart = shop.job(name=f"{_name}-apart", retry=LATER, isolation="process")(_function)
    setattr(sys.modules[__name__], _name, _apart)

# -- taking the process down -------------------------------------------------------------------


@shop.job(isolation="process", max_crashes=1)
def exit_at_once() -> None:
    os._exit(3)


@shop.job(isolation="process", max_crashes=1)
def segfault() -> None:
    ctypes.string_at(0)


@shop.job(isolation="process", max_crashes=1)
def kill_itself() -> None:
    grown = bytearray(300 << 20)
    os.kill(os.getpid(), signal.SIGKILL)
    del grown


@shop.job(isolation="process", max_crashes=1)
def close_files() -> str:
    os.closerange(3, 1000)
    return "who hears me?"


@shop.job(isolation="process", max_crashes=1)
def talk_nonsense(job: ActiveJob[None]) -> None:
    job.log.warning("before")
    os.write(200, b"\0\0\0\x04oops")
    time.sleep(60)


@shop.job(isolation="process", max_crashes=2, retry=Retry.fixed("1ms", attempts=5))
def crash_twice(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    os._exit(7)


@shop.job(max_crashes=2, retry=Retry.fixed("1ms", attempts=5))
def crash_as_suspect(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    os._exit(7)


# -- not ending --------------------------------------------------------------------------------


@shop.job(isolation="process", timeout="300ms", retry=ONCE, per_key=PerKey.in_turn("bell"))
def sleep_too_long(path: str) -> None:
    started = subprocess.Popen(["sleep", "600"])
    here(f"{path}.{started.pid}.started")
    here(path)
    time.sleep(600)


@shop.job(isolation="process", timeout="300ms", retry=ONCE)
async def clean_up(path: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        here(path)


@shop.job(isolation="process", timeout="300ms", retry=ONCE)
async def return_late(path: str) -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        here(path)
    return "in spite of all"


@shop.job(isolation="process", per_key=PerKey.in_turn("bell"))
def sleep(path: str) -> None:
    here(path)
    time.sleep(600)


@shop.job(isolation="process")
def keep_the_lock(path: str) -> None:
    here(path)
    re.match(r"(a+)+b", "a" * 60)


@shop.job(isolation="process", cancel_grace="1h")
def look(job: ActiveJob[str]) -> str:
    here(job.payload)
    while not job.stopping:
        job.raise_if_cancelled()
        time.sleep(0.002)
    return "finished"


@shop.job(isolation="process", schema_version=2)
def upgraded(words: list[str]) -> list[str]:
    return words


@upgraded.upgrade(from_version=1)
def split(old: str) -> list[str]:
    return old.split()


@shop.job(isolation="process")
async def part(job: ActiveJob[int]) -> int:
    return job.payload


@shop.job(isolation="process", retry=ONCE)
async def gather(job: ActiveJob[None]) -> list[int]:
    assert job.batch is not None
    return [member.result async for member in job.batch.members()]


@shop.job(isolation="process", retry=Retry.fixed("1ms", attempts=3))
async def plan_parts(job: ActiveJob[int]) -> str:
    """Create members in a batch; the first attempt dies after half of them."""
    async with shop.batch(then=gather, idempotency_key=f"plan/{job.id}") as batch:
        for number in range(job.payload):
            if job.attempt == 1 and number == job.payload // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            await batch.create(part, number)
    return batch.id
