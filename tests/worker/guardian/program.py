# ruff: noqa: ASYNC110, ASYNC230, ASYNC240, ASYNC251 - handlers that misbehave are what is tested
"""The program of the workers in these tests: handlers that misbehave in many ways."""

import asyncio
import ctypes
import fcntl
import json
import logging
import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from trellis import ActiveJob, PerKey, Retry, Service
from trellis.core.policy import decode_policy

app = Service("shop", "sqlite:///trellis.db")
soon = Retry.after("100ms", "100ms", "100ms", "100ms")


def begin(job: ActiveJob[object]) -> None:
    """Report that the handler was called, in one write, which survives a crash."""
    with Path("begun.txt").open("a") as file:
        file.write(json.dumps([job.id, job.attempt, os.getpid()]) + "\n")


def let_writes_end() -> None:
    """Return when no process writes to the file, in particular not this one.

    A thread that has begun a write needs the interpreter lock to end it, so a handler that holds
    that lock would keep the file locked.
    """
    with closing(sqlite3.connect("trellis.db", timeout=60, isolation_level=None)) as other:
        other.execute("begin immediate")
        other.execute("rollback")


@app.job
async def greet(job: ActiveJob[str]) -> str:
    begin(job)
    logging.getLogger("shop.greeting").info("about to greet")
    return f"Hello, {job.payload}!"


@app.job(retry=soon)
async def fail(job: ActiveJob[str]) -> None:
    begin(job)
    raise ValueError(job.payload)


@app.job(retry=soon)
async def wait_for(job: ActiveJob[str]) -> None:
    """Wait until a file is there."""
    begin(job)
    while not Path(job.payload).exists():
        await asyncio.sleep(0.02)


@app.job(retry=soon)
def wait_in_thread(job: ActiveJob[str]) -> None:
    """Wait until a file is there, where nothing can interrupt it."""
    begin(job)
    while not Path(job.payload).exists():
        time.sleep(0.02)


@app.job(retry=soon)
async def block_loop(job: ActiveJob[float]) -> None:
    begin(job)
    time.sleep(job.payload)


@app.job(retry=soon, timeout="500ms")
async def block_too_long(job: ActiveJob[None]) -> None:
    begin(job)
    if job.attempt == 1:
        time.sleep(600)


@app.job(retry=soon)
async def leave_slowly(job: ActiveJob[None]) -> None:
    """Take longer to be cancelled than a stopping worker waits."""
    begin(job)
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.8)


@app.job(retry=soon, timeout="500ms")
async def wait_a_little(job: ActiveJob[None]) -> None:
    begin(job)
    if job.attempt == 1:
        await asyncio.sleep(0.2)


@app.job(retry=soon, per_key=PerKey.in_turn("one"))
def sleep_keyed(job: ActiveJob[str]) -> None:
    begin(job)
    if not Path("begun-before").exists():
        Path("begun-before").touch()
        time.sleep(600)


@app.job(retry=soon)
def chatter(job: ActiveJob[str]) -> None:
    """Write more than a pipe holds to stderr, until a file is there."""
    begin(job)
    for _ in range(3000):
        print("x" * 100, file=sys.stderr)
    while not Path(job.payload).exists():
        print("still here", file=sys.stderr, flush=True)
        time.sleep(0.02)


@app.job(retry=soon)
def sleep_in_thread(job: ActiveJob[float]) -> None:
    begin(job)
    if job.attempt == 1:
        time.sleep(job.payload)


@app.job(retry=Retry.never(), timeout="300ms")
def hang(job: ActiveJob[None]) -> None:
    """Outlive the timeout, where nothing can interrupt it."""
    begin(job)
    time.sleep(600)


@app.job(retry=soon)
def keep_lock(job: ActiveJob[None]) -> None:
    """Run C code that never releases the interpreter lock."""
    begin(job)
    if job.attempt == 1:
        let_writes_end()
        re.match(r"(a+)+$", "a" * 60 + "b")


@app.job(retry=soon)
async def hold_loop(job: ActiveJob[str]) -> None:
    """Block the loop until the file's lock is free."""
    with Path(job.payload).open() as file:
        begin(job)
        fcntl.flock(file, fcntl.LOCK_EX)


@app.job(retry=soon)
def hold_interpreter(job: ActiveJob[str]) -> None:
    """Hold the interpreter lock until the file's lock is free."""
    flock = ctypes.PyDLL(None).flock
    with Path(job.payload).open() as file:
        begin(job)
        let_writes_end()
        flock(file.fileno(), fcntl.LOCK_EX)


@app.job(retry=soon)
async def exit_process(job: ActiveJob[int]) -> None:
    begin(job)
    os._exit(job.payload)


@app.job(retry=soon, max_crashes=1)
async def segfault(job: ActiveJob[None]) -> None:
    begin(job)
    ctypes.string_at(0)


@app.job(retry=soon)
async def eat_memory(job: ActiveJob[None]) -> None:
    begin(job)
    app.eaten = b"x" * (200 << 20)  # type: ignore[attr-defined]


@app.job(retry=soon, isolation="process")
def wait_apart(job: ActiveJob[str]) -> None:
    """Wait until a file is there, in a separate process."""
    begin(job)
    while not Path(job.payload).exists():
        time.sleep(0.02)


@app.job(retry=soon)
async def kill_itself(job: ActiveJob[None]) -> None:
    """End the process as the kernel does when it is out of memory."""
    begin(job)
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.job(retry=soon)
async def end_loop(job: ActiveJob[str]) -> None:
    """End the loop of the process, which unwinds the handlers beside this one."""
    begin(job)
    end_loop_by(job.payload)


def end_loop_by(way: str) -> None:
    match way:
        case "cancelling every task":
            for task in asyncio.all_tasks():
                task.cancel()
        case "stopping the loop":
            asyncio.get_running_loop().stop()
        case "closing descriptors":
            os.closerange(3, 1000)
        case _:
            raise ValueError(way)


@app.job
async def take_effect(job: ActiveJob[str]) -> None:
    """Have an effect once a file is there, in a task beside the handler's own."""
    begin(job)

    async def wait() -> None:
        while not Path(job.payload).exists():
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        group.create_task(wait())
    have_effect(job.id)


def have_effect(job_id: str) -> None:
    with Path("effects.txt").open("a") as file:
        file.write(f"{job_id} {os.getpid()}\n")


@app.job
async def fork(job: ActiveJob[str]) -> int:
    """Fork; the child goes on in this way, the parent returns its exit code."""
    begin(job)
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(have_effect, job.id)
    match job.payload:
        case "fork in a task":
            child = await asyncio.create_task(fork_here())
        case "fork in a pool":
            child = await asyncio.to_thread(os.fork)
        case _:
            child = os.fork()
    if not child:
        if job.payload == "await":
            await asyncio.sleep(0)
        return go_on_in_child(job.payload)
    return await asyncio.to_thread(exit_code, child)


async def fork_here() -> int:
    return os.fork()


@app.job
def fork_in_thread(job: ActiveJob[str]) -> int:
    begin(job)
    child = os.fork()
    return exit_code(child) if child else go_on_in_child(job.payload)


@app.job(retry=soon)
async def fork_and_die(job: ActiveJob[None]) -> None:
    """Die after the child has left the handler."""
    begin(job)
    child = os.fork() if job.attempt == 1 else 0
    if child:
        exit_code(child)
        os.kill(os.getpid(), signal.SIGKILL)


@app.job
def use_processes(job: ActiveJob[None]) -> list[int]:
    """Use processes as libraries do; return their exit codes."""
    begin(job)
    by_fork = multiprocessing.get_context("fork")
    with by_fork.Pool(1) as pool:
        computed = pool.apply(sum, ([1, 2],))
    process = by_fork.Process(target=sys.exit, args=(4,))
    process.start()
    process.join()
    endless = by_fork.Process(target=time.sleep, args=(3600,))
    endless.start()
    endless.terminate()
    endless.join()
    command = [sys.executable, "-c", "raise SystemExit(5)"]
    prepared = subprocess.run(command, check=False, preexec_fn=os.getpid)
    codes = (process.exitcode, endless.exitcode, prepared.returncode)
    return [computed, *(code or 0 for code in codes)]


def go_on_in_child(way: str) -> int:
    match way:
        case "raise":
            raise ValueError("raised in the child")
        case "sys.exit":
            sys.exit(3)
        case "os._exit":
            os._exit(6)
        case "exec":
            os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(7)"])  # noqa: S606
        case _:
            pass
    return sum(range(1000))


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def declare_here() -> None:
    """Declare a handler that other processes cannot find: as a suspect it runs alone in its own."""

    @app.job(retry=soon)
    async def end_loop_here(job: ActiveJob[str]) -> None:
        begin(job)
        end_loop_by(job.payload)


declare_here()

# The policies that a test wants its workers to declare.
for job_type in app.job_types:
    wanted = Path(f"{job_type.name}.policy")
    if wanted.exists():
        job_type.policy = decode_policy(wanted.read_text())
