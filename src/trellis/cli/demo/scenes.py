"""The scenes of the demo: each creates jobs, most do damage, and all check the outcome.

Times come from the journal, which is written by the engine's clock on the same machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

from trellis.cli.demo.jobs import (
    BACKOFF,
    MAX_CRASHES,
    Deposit,
    Order,
    Picture,
    call_unreliable_service,
    deposit,
    load_everything,
    print_invoice,
    render_film,
    ship_order,
    thumbnail,
    write_report,
)
from trellis.cli.demo.runner import GRACE, LEASE, Demo, Execution, Observation, Scene
from trellis.cli.output import progress_bar
from trellis.client.ref import JobRef
from trellis.core.durations import SECOND, micros
from trellis.core.events import Event, EventKind
from trellis.core.job import JobId
from trellis.engines.values import JobFilter
from trellis.errors import JobDead
from trellis.insight import time_expressions

_BURST: Final = 400
_ACCOUNTS: Final = ("ada", "bob", "cleo")
_DEPOSITS: Final = 24
_FRAMES: Final = 12
_FRAMES_BEFORE: Final = 3
#: What a worker promises on top of the grace period.
_STOP_SECONDS: Final = GRACE + 2.0

SCENES: Final[list[Scene]] = []
_Play = Callable[[Demo], Awaitable[Observation]]


def _scene(
    name: str, title: str, promise: str, *, workers: int = 1, has_bar: bool = False
) -> Callable[[_Play], _Play]:
    """Add a scene."""

    def add(play: _Play) -> _Play:
        SCENES.append(Scene(name, title, promise, play, workers, has_bar))
        return play

    return add


# -- without failures of workers -----------------------------------------------------------------


@_scene("burst", "A burst of jobs", "every job runs, and runs once", workers=2, has_bar=True)
async def _burst(demo: Demo) -> Observation:
    began = time.monotonic()
    album = demo.folder / "album.txt"
    refs = await thumbnail.create_many([Picture(number=n, album=album) for n in range(_BURST)])
    demo.screen.step(f"{_BURST} jobs created in {_took(time.monotonic() - began)}")
    results = await _results(demo, refs)
    took = time.monotonic() - began
    right = sum(result == number for number, result in enumerate(results))
    runs = Counter(album.read_text(encoding="utf-8").split())
    once = sum(count == 1 for count in runs.values())
    ran = "each ran once" if once == _BURST else f"{_BURST - once} did NOT run once"
    return Observation(f"{right} results after {_took(took)}, {ran}", right == once == _BURST)


async def _results(demo: Demo, refs: Sequence[JobRef[int]]) -> list[int]:
    """Wait for all results and show how many there are."""
    waiting = asyncio.gather(*(ref.wait("60s") for ref in refs))
    where = JobFilter(types=(thumbnail.name,))
    try:
        with progress_bar("  thumbnails", demo.screen.console, transient=False) as progress:
            while not waiting.done():
                counts = (await demo.engine.count(where, "state")).groups
                progress(counts.get("completed", 0), len(refs))
                await asyncio.sleep(0.1)
            progress(len(refs), len(refs))
        return await waiting
    finally:
        # After an interrupt no task may be left waiting on an engine that is being closed.
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@_scene("retry", "A handler that fails twice", "a failed job is retried after its backoff")
async def _retry(demo: Demo) -> Observation:
    ref = await call_unreliable_service.create("the bank")
    async for event in ref.events(follow=True):
        if event.kind is EventKind.RETRY:
            wait, why = BACKOFF[event.attempt - 1], event.data["error"].message
            demo.screen.step(f"attempt {event.attempt} failed ({why}), next in {wait}")
    await ref.wait("30s")
    waits = [
        after.at - before.at
        for before, after in pairwise(await demo.journal(ref))
        if (before.kind, after.kind) == (EventKind.RETRY, EventKind.STARTED)
    ]
    in_words = " and ".join(f"{wait / SECOND:.2f} s" for wait in waits)
    enough = len(waits) == len(BACKOFF) and all(
        wait >= micros(promised) for wait, promised in zip(waits, BACKOFF, strict=True)
    )
    return Observation(f"worked on attempt {len(waits) + 1}, after waits of {in_words}", enough)


@_scene("in-turn", "Many deposits to three accounts", "jobs of one key run one at a time, in order")
async def _in_turn(demo: Demo) -> Observation:
    ledger = demo.folder / "ledger.txt"
    deposits = [
        Deposit(account=_ACCOUNTS[number % len(_ACCOUNTS)], number=number, ledger=ledger)
        for number in range(_DEPOSITS)
    ]
    refs = await deposit.create_many(deposits)
    demo.screen.step(f"{_DEPOSITS} deposits to {len(_ACCOUNTS)} accounts created at once")
    await asyncio.gather(*(ref.wait("30s") for ref in refs))
    entries = [line.split() for line in ledger.read_text(encoding="utf-8").splitlines()]
    overlaps = 0
    for account in _ACCOUNTS:
        # Number, begin and end of each deposit, by number.
        runs = sorted(tuple(map(int, each[1:4])) for each in entries if each[0] == account)
        overlaps += sum(later[1] < earlier[2] for earlier, later in pairwise(runs))
    processes = len({each[4] for each in entries})
    by = "one process" if processes == 1 else f"{processes} processes"
    found = f"{overlaps} before their turn" if overlaps else "none before its turn"
    text = f"{len(entries)} deposits by {by}, {found}"
    return Observation(text, len(entries) == _DEPOSITS and not overlaps)


@_scene(
    "dead-letter",
    "An order that cannot be shipped",
    "a job without attempts left is kept, and runs when replayed",
)
async def _dead_letter(demo: Demo) -> Observation:
    address = demo.folder / "address.txt"
    ref = await ship_order.create(Order(number=7, address=address))
    try:
        await ref.wait("30s")
    except JobDead:
        status = await ref.status()
    else:
        return Observation("the order was shipped without an address", held=False)
    demo.screen.step(f"attempt {status.attempt} failed ({status.error}), and was the last")
    demo.screen.step("the job is kept as a dead letter, for an operator")
    demo.screen.step("the address is added, and the job replayed")
    address.write_text("1 Trellis Lane", encoding="utf-8")
    await ref.replay()
    result = await ref.wait("30s")
    return Observation(f"dead after {status.attempt} attempts, then replayed: {result}", held=True)


# -- with failures of workers --------------------------------------------------------------------


@_scene(
    "crash",
    "A job that crashes whenever it runs",
    "a job that keeps crashing is set aside, its worker continues",
)
async def _crash(demo: Demo) -> Observation:
    workers = demo.running
    before = [await demo.process_of(worker) for worker in workers]
    ref = await load_everything.create()
    demo.screen.step("it runs in a separate process, which is killed every time")
    try:
        await ref.wait("30s")
    except JobDead:
        head = (await demo.record(ref)).head
    else:
        return Observation("the job completed although its process was killed", held=False)
    for event in await _retries(demo, ref):
        demo.screen.step(f"attempt {event.attempt}: {_error(event)[1].splitlines()[0]}")
    demo.screen.step(f"attempt {head.attempt}: the same again; the job is kept as a dead letter")
    unharmed = before == [await demo.process_of(worker) for worker in workers]
    lost = "no worker process lost" if unharmed else "a worker process LOST"
    is_loop = head.error is not None and head.error.code == "crash_loop"
    return Observation(
        f"a dead letter after {head.crashes} crashes, {lost}",
        is_loop and unharmed and head.crashes == MAX_CRASHES,
    )


@_scene(
    "process-killed",
    "A worker process is killed during a job",
    "a guardian releases the job of a killed process at once",
)
async def _process_killed(demo: Demo) -> Observation:
    ref, victim = await _film(demo)
    os.kill(victim.pid, signal.SIGKILL)
    killed_at = time.time()
    demo.screen.step(f"process {victim.pid} is killed (SIGKILL); its guardian notices")
    codes, after, finisher = await _handed_on(demo, ref, killed_at)
    text = f"released {after}, finished by {finisher.worker}"
    return Observation(text, codes == ["crash"] and finisher.pid != victim.pid)


@_scene(
    "worker-killed",
    "A worker and its guardian are killed during a job, as by a power cut",
    "other workers take over the job of a lost worker after its lease",
    workers=2,
)
async def _worker_killed(demo: Demo) -> Observation:
    ref, victim = await _film(demo)
    victim.worker.kill()
    killed_at = time.time()
    demo.screen.step(f"{victim.worker} and its guardian are killed, and no process reports it")
    demo.screen.step(f"{LEASE} s after its last heartbeat (the lease) its jobs are lost")
    demo.screen.step(f"{demo.start_worker()} is started to replace it")
    codes, after, finisher = await _handed_on(demo, ref, killed_at)
    text = f"taken over {after}, finished by {finisher.worker}"
    return Observation(text, codes == ["lease_lost"] and finisher.worker is not victim.worker)


async def _film(demo: Demo) -> tuple[JobRef[None], Execution]:
    """Create a film and wait until a worker renders it."""
    ref = await render_film.create(_FRAMES)
    execution = await demo.execution(ref)

    async def frame() -> int | None:
        activity = await demo.engine.activity(JobId(ref.id))
        progress = activity.progress if activity else None
        current = int(progress.current or 0) if progress else 0
        return current if current >= _FRAMES_BEFORE else None

    current = await demo.until(frame, "the film to be rendered")
    demo.screen.step(f"{execution} renders frame {current} of {_FRAMES}")
    return ref, execution


async def _handed_on(
    demo: Demo, ref: JobRef[None], killed_at: float
) -> tuple[list[str], str, Execution]:
    """Wait for the job; return the errors of its retries, when the first came, and its finisher."""
    await ref.wait("30s")
    retries = await _retries(demo, ref)
    after = f"after {_took(retries[0].at / SECOND - killed_at)}" if retries else "never"
    return [_error(event)[0] for event in retries], after, await demo.completion(ref)


@_scene(
    "zombie",
    "A worker freezes, and continues too late",
    "only one attempt settles a job, a late result is refused",
    workers=2,
)
async def _zombie(demo: Demo) -> Observation:
    folder = demo.folder / "report"
    folder.mkdir()
    ref = await write_report.create(folder)
    frozen = await demo.execution(ref)
    demo.screen.step(f"{frozen.worker} is writing a report")

    async def taken_over() -> bool:
        fence = (await demo.record(ref)).head.fence
        return fence is not None and fence.session != frozen.session

    async with demo.frozen(frozen):
        demo.screen.step(f"{frozen.worker} is frozen (SIGSTOP), and its lease expires")
        await demo.until(taken_over, "another worker to take over the report")
        demo.screen.step("another worker has begun the report again")
        (folder / "attempt-1").touch()
    demo.screen.step(f"{frozen.worker} continues (SIGCONT), and finishes its report too late")

    async def refusals() -> list[Event]:
        journal = await demo.journal(ref)
        return [event for event in journal if event.kind is EventKind.STALE_COMPLETION_IGNORED]

    async def answered() -> bool:
        return (await demo.record(ref)).head.finished_at is not None or bool(await refusals())

    await demo.until(answered, "an answer to the late report")
    refused = await refusals()
    for event in refused:
        demo.screen.step(f"the journal of the job notes: {event.kind}")
    (folder / "attempt-2").touch()
    result = await ref.wait("30s")
    finisher = await demo.completion(ref)
    is_refused = [event.fence.session for event in refused if event.fence] == [frozen.session]
    word = "refused" if is_refused else "NOT refused"
    text = f"the late report was {word}, {result} stands"
    return Observation(text, is_refused and finisher.session != frozen.session)


@_scene(
    "stuck",
    "A worker is asked to stop while a handler is stuck",
    f"SIGTERM hands work back within the grace ({GRACE} s) + 2 s",
    workers=2,
)
async def _stuck(demo: Demo) -> Observation:
    printer = demo.folder / "printer"
    ref = await print_invoice.create(printer)
    stopped = await demo.execution(ref)
    stopped.worker.terminate()
    asked_at = time.time()
    demo.screen.step(f"{stopped.worker} is asked to stop (SIGTERM), its handler hangs in a thread")

    async def ended() -> bool:
        return stopped.worker.has_ended

    await demo.until(ended, f"{stopped.worker} to stop")
    took = time.time() - asked_at
    handed_back = await _retries(demo, ref)
    printer.touch()
    await ref.wait("30s")
    finisher = await demo.completion(ref)
    text = f"ended after {_took(took)}, its job completed by {finisher.worker}"
    in_time = took <= _STOP_SECONDS and len(handed_back) == 1
    return Observation(text, in_time and finisher.worker is not stopped.worker)


def _took(seconds: float) -> str:
    return time_expressions.took(timedelta(seconds=seconds))


async def _retries(demo: Demo, ref: JobRef[Any]) -> list[Event]:
    return [event for event in await demo.journal(ref) if event.kind is EventKind.RETRY]


def _error(event: Event) -> tuple[str, str]:
    error: Any = (event.data or {}).get("error", ("", ""))
    return str(error[0]), str(error[1])
