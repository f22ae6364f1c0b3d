"""The service under fault. Each handler records its own life in the effect log of its process.

What a handler returns, or raises, names the attempt it was, so that the checker sees whose result
was taken. A thread handler gets stuck if there is a ticket for its process (`stuck/<pid>`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from tests.harness.faults.recorder import Log
from trellis import ActiveJob, Fail, PerKey, Retry, Service

FOLDER: Final = Path(os.environ.get("FAULTS_FOLDER", "."))
STUCK_SECONDS: Final = 60
CRASH_CODE: Final = 23

app: Final = Service("faults")
_logs: dict[int, Log] = {}
_numbers = count()
_PATIENT: Final = Retry.fixed("100ms", attempts=60)


class Task(BaseModel):
    """What to do."""

    name: str
    ms: int = 0
    times: int = 0
    key: str = ""


class Oops(Exception):
    """A handler's own failure."""


def _log() -> Log:
    pid = os.getpid()
    if pid not in _logs:
        _logs[pid] = Log(FOLDER / "effects" / f"{pid}.jsonl")
    return _logs[pid]


def fence_of(job: ActiveJob[Task]) -> str:
    """Return the attempt this handler is."""
    return job.attempt_id


@contextmanager
def recorded(job: ActiveJob[Task], kind: str) -> Iterator[str]:
    """Write down when the handler begins and how it ends; yield the attempt's fence."""
    log, fence = _log(), fence_of(job)
    facts = {"run": next(_numbers), "pid": os.getpid()}
    key = job.key and f"{job._attempt.record.definition.type}/{job.key}"
    log.write(
        event="begin", job=job.id, fence=fence, attempt=job.attempt, key=key, kind=kind, **facts
    )
    try:
        yield fence
    except asyncio.CancelledError:
        log.write(event="end", how="interrupted", **facts)
        raise
    except BaseException:
        log.write(event="end", how="raised", **facts)
        raise
    log.write(event="end", how="returned", **facts)


@app.job(retry=_PATIENT)
async def quick(job: ActiveJob[Task]) -> dict[str, str]:
    with recorded(job, "quick") as fence:
        return {"by": fence}


@app.job(retry=_PATIENT)
async def sleep(job: ActiveJob[Task]) -> dict[str, str]:
    with recorded(job, "sleep") as fence:
        await asyncio.sleep(job.payload.ms / 1000)
        return {"by": fence}


def _in_thread(job: ActiveJob[Task], kind: str = "thread") -> dict[str, str]:
    is_stuck = (FOLDER / "stuck" / str(os.getpid())).exists()
    with recorded(job, "stuck" if is_stuck else kind) as fence:
        time.sleep(STUCK_SECONDS if is_stuck else job.payload.ms / 1000)
        return {"by": fence}


@app.job(retry=_PATIENT)
def thread(job: ActiveJob[Task]) -> dict[str, str]:
    return _in_thread(job)


@app.job(retry=Retry.fixed("100ms", attempts=20))
async def flaky(job: ActiveJob[Task]) -> dict[str, str]:
    with recorded(job, "flaky") as fence:
        if job.attempt <= job.payload.times:
            raise Oops(f"in {fence}")
        return {"by": fence}


@app.job(retry=_PATIENT, per_key=PerKey.in_turn("{key}"))
async def keyed(job: ActiveJob[Task]) -> dict[str, str]:
    with recorded(job, "keyed") as fence:
        await asyncio.sleep(job.payload.ms / 1000)
        return {"by": fence}


@app.job(retry=_PATIENT, per_key=PerKey.in_turn("{key}"))
def keyed_thread(job: ActiveJob[Task]) -> dict[str, str]:
    return _in_thread(job, "keyed_thread")


@app.job(retry=_PATIENT, per_key=PerKey.in_turn("{key}", active=2))
async def paired(job: ActiveJob[Task]) -> dict[str, str]:
    with recorded(job, "paired") as fence:
        await asyncio.sleep(job.payload.ms / 1000)
        return {"by": fence}


@app.job(retry=Retry.fixed("50ms", attempts=2))
async def doomed(job: ActiveJob[Task]) -> None:
    with recorded(job, "doomed") as fence:
        raise Oops(f"in {fence}")


@app.job(retry=_PATIENT)
async def refused(job: ActiveJob[Task]) -> None:
    with recorded(job, "refused"):
        raise Fail("nothing can be done")


@app.job(retry=_PATIENT)
async def crash(job: ActiveJob[Task]) -> dict[str, str]:
    with recorded(job, "crash") as fence:
        if _crashed_so_far(job.id) < job.payload.times:
            _log().write(event="crash", run=-1, pid=os.getpid(), job=job.id)
            os._exit(CRASH_CODE)
        return {"by": fence}


def _crashed_so_far(job_id: str) -> int:
    """Count this job's crashes in a file, one byte each: no memory of ours survives them."""
    path = FOLDER / "crashed" / job_id
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        before = file.tell()
        file.write(b".")
    return before
