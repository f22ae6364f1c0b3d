"""The scenes with an accident: each does harm on purpose, then looks what became of the job.

Moments are those of the journal, which are the engine's, and ours of the same machine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

from trellis.cli.demo.jobs import (
    MOST_CRASHES,
    load_everything,
    print_invoice,
    render_film,
    write_report,
)
from trellis.cli.demo.stage import GRACE, LEASE, Runner, Stage
from trellis.cli.demo.telling import Seen
from trellis.client.ref import JobRef
from trellis.core.durations import SECOND
from trellis.core.events import Event, EventKind
from trellis.core.job import JobId
from trellis.errors import JobDead

_FRAMES: Final = 12
_SEEN_FRAMES: Final = 3
#: What the worker promises on top of the grace.
_MORE: Final = 2.0


async def crash(stage: Stage) -> Seen:
    """Create a job that takes its process down whenever it runs."""
    workers = stage.present
    before = [await stage.process_of(worker) for worker in workers]
    ref = await load_everything.create()
    stage.tell.say("it runs in a process of its own, which is killed every time")
    try:
        await ref.wait("30s")
    except JobDead:
        head = (await stage.record(ref)).head
    else:
        return Seen("the job survived its own death", holds=False)
    for event in _retries(await stage.journal(ref)):
        stage.tell.say(f"attempt {event.attempt}: {_error(event)[1].splitlines()[0]}")
    stage.tell.say(f"attempt {head.attempt}: the same again; the job is kept as a dead letter")
    after = [await stage.process_of(worker) for worker in workers]
    unhurt = before == after
    lost = "no worker process lost" if unhurt else "a worker process LOST"
    words = f"a dead letter after {head.crashes} crashes, {lost}"
    is_loop = head.error is not None and head.error.code == "crash_loop"
    return Seen(words, is_loop and unhurt and head.crashes == MOST_CRASHES)


async def process_killed(stage: Stage) -> Seen:
    """Kill the worker process alone: its guardian lives."""
    ref = await render_film.create(_FRAMES)
    victim = await _rendering(stage, ref)
    os.kill(victim.pid, signal.SIGKILL)
    killed = time.time()
    stage.tell.say(f"process {victim.pid} is killed (SIGKILL); its guardian sees it")
    await ref.wait("30s")
    handed_on = _retries(await stage.journal(ref))
    finisher = await stage.settler_of(ref)
    words = f"handed on {_since(killed, handed_on)}, finished by {finisher.worker}"
    codes = [_error(event)[0] for event in handed_on]
    return Seen(words, codes == ["crash"] and finisher.pid != victim.pid)


async def worker_killed(stage: Stage) -> Seen:
    """Kill a worker as a power cut does: nobody is left to tell."""
    ref = await render_film.create(_FRAMES)
    victim = await _rendering(stage, ref)
    victim.worker.kill()
    killed = time.time()
    stage.tell.say(f"{victim.worker} and its guardian are killed: nobody is left to tell")
    stage.tell.say(f"a worker that is silent for {LEASE} s (its lease) loses its jobs")
    stage.tell.say(f"{stage.start_worker()} is started in its place")
    await ref.wait("30s")
    handed_on = _retries(await stage.journal(ref))
    finisher = await stage.settler_of(ref)
    words = f"taken over {_since(killed, handed_on)}, finished by {finisher.worker}"
    codes = [_error(event)[0] for event in handed_on]
    return Seen(words, codes == ["lease_lost"] and finisher.worker is not victim.worker)


async def zombie(stage: Stage) -> Seen:
    """Freeze a worker, and wake it up when another has its job."""
    desk = stage.folder / "desk"
    desk.mkdir()
    ref = await write_report.create(desk)
    frozen = await stage.runner_of(ref)
    stage.tell.say(f"{frozen.worker} is writing a report")

    async def taken_over() -> bool:
        fence = (await stage.record(ref)).head.fence
        return fence is not None and fence.session != frozen.session

    async with stage.frozen(frozen):
        stage.tell.say(f"{frozen.worker} is frozen (SIGSTOP), and its lease runs out")
        await stage.until(taken_over, "another worker to take the report over")
        stage.tell.say("another worker has begun the report anew")
        (desk / "attempt-1").touch()
    stage.tell.say(f"{frozen.worker} wakes up (SIGCONT), and hands in its report too late")

    async def answered() -> bool:
        record = await stage.record(ref)
        return record.head.finished_at is not None or bool(await _refused(stage, ref))

    await stage.until(answered, "an answer to the late report")
    refused = await _refused(stage, ref)
    for event in refused:
        stage.tell.say(f"the journal of the job notes: {event.kind}")
    (desk / "attempt-2").touch()
    result = await ref.wait("30s")
    finisher = await stage.settler_of(ref)
    is_right = [event.fence.session for event in refused if event.fence] == [frozen.session]
    word = "refused" if is_right else "NOT refused"
    words = f"the late report was {word}, {result} stands"
    return Seen(words, is_right and finisher.session != frozen.session)


async def stuck(stage: Stage) -> Seen:
    """Tell a worker to stop whose handler never ends."""
    printer = stage.folder / "printer"
    ref = await print_invoice.create(printer)
    told = await stage.runner_of(ref)
    told.worker.tell_to_stop()
    at = time.time()
    stage.tell.say(f"{told.worker} is told to stop (SIGTERM), its handler hangs in a thread")

    async def gone() -> bool:
        return told.worker.is_gone

    await stage.until(gone, f"{told.worker} to stop")
    took = time.time() - at
    handed_back = _retries(await stage.journal(ref))
    printer.touch()
    await ref.wait("30s")
    finisher = await stage.settler_of(ref)
    words = f"gone after {took:.1f} s, its job done by {finisher.worker}"
    in_time = took <= GRACE + _MORE and len(handed_back) == 1
    return Seen(words, in_time and finisher.worker is not told.worker)


async def _rendering(stage: Stage, ref: JobRef[object]) -> Runner:
    """Wait until a film is being rendered; return by whom."""
    runner = await stage.runner_of(ref)
    frame = 0

    async def under_way() -> bool:
        nonlocal frame
        activity = await stage.engine.activity(JobId(ref.id))
        progress = activity.progress if activity else None
        frame = int(progress.current or 0) if progress else 0
        return frame >= _SEEN_FRAMES

    await stage.until(under_way, "the film to be rendered")
    stage.tell.say(f"{runner} renders frame {frame} of {_FRAMES}")
    return runner


async def _refused(stage: Stage, ref: JobRef[object]) -> list[Event]:
    journal = await stage.journal(ref)
    return [event for event in journal if event.kind is EventKind.STALE_COMPLETION_IGNORED]


def _retries(journal: Sequence[Event]) -> list[Event]:
    return [event for event in journal if event.kind is EventKind.RETRY]


def _error(event: Event) -> tuple[str, str]:
    error: Any = (event.data or {}).get("error", ("", ""))
    return str(error[0]), str(error[1])


def _since(moment: float, events: Sequence[Event]) -> str:
    return f"after {events[0].at / SECOND - moment:.1f} s" if events else "never"
