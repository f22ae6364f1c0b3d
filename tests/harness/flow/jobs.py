"""The service under fault: one type for each promise. Handlers record when they run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.harness.faults.recorder import Log
from tests.harness.flow.rules import ACTIVE, BURST, RATE
from trellis import ActiveJob, Fail, Limit, Outcome, Retry, Service

FOLDER: Final = Path(os.environ.get("FAULTS_FOLDER", "."))

app: Final = Service("flow")
_PATIENT: Final = Retry.fixed("100ms", attempts=60)
_logs: dict[int, Log] = {}
_numbers: Final = count()


@contextmanager
def recorded(job: ActiveJob[Any], kind: str) -> Iterator[None]:
    """Write down when the handler begins and ends."""
    pid = os.getpid()
    if pid not in _logs:
        _logs[pid] = Log(FOLDER / "effects" / f"{pid}.jsonl")
    facts = {"run": next(_numbers), "pid": pid}
    _logs[pid].write(event="begin", job=job.id, kind=kind, **facts)
    try:
        yield
    finally:
        _logs[pid].write(event="end", **facts)


@app.job(retry=_PATIENT, limit=Limit(active=ACTIVE))
async def limited(job: ActiveJob[int]) -> None:
    with recorded(job, "limited"):
        await asyncio.sleep(job.payload / 1000)


@app.job(retry=_PATIENT, limit=Limit(rate=f"{RATE}/1s", burst=BURST))
async def rated(job: ActiveJob[int]) -> None:
    with recorded(job, "rated"):
        pass


@app.job(retry=_PATIENT)
async def hooked(job: ActiveJob[int]) -> int:
    with recorded(job, "hooked"):
        if job.payload % 3 == 0:
            raise Fail("every third one fails")
        return job.payload


@hooked.on_success(retry=_PATIENT)
async def succeeded(job: ActiveJob[Outcome]) -> None:
    with recorded(job, "hook"):
        pass


@hooked.on_failure(retry=_PATIENT)
async def failed(job: ActiveJob[Outcome]) -> None:
    with recorded(job, "hook"):
        pass


@hooked.on_finished(retry=_PATIENT)
async def finished(job: ActiveJob[Outcome]) -> None:
    with recorded(job, "hook"):
        pass


@app.job(retry=_PATIENT)
async def member(job: ActiveJob[int]) -> int:
    with recorded(job, "member"):
        await asyncio.sleep(0.005)
        if job.payload % 11 == 0:
            raise Fail("every eleventh one fails")
        if job.payload % 13 == 0:
            await job.spawn(child, job.payload)
        return job.payload


@app.job(retry=_PATIENT)
async def child(job: ActiveJob[int]) -> int:
    with recorded(job, "member"):
        return job.payload


@app.job(retry=_PATIENT)
async def collect(job: ActiveJob[None]) -> int:
    with recorded(job, "collect"):
        assert job.batch is not None
        return len([member async for member in job.batch.members()])


@app.job(retry=_PATIENT)
async def first(job: ActiveJob[int]) -> int:
    with recorded(job, "step"):
        if job.payload % 7 == 0:
            raise Fail("every seventh chain breaks")
        return job.payload + 1


@app.job(retry=_PATIENT)
async def second(job: ActiveJob[int]) -> int:
    with recorded(job, "step"):
        return job.payload * 2


@app.job(retry=_PATIENT)
async def third(job: ActiveJob[int]) -> int:
    with recorded(job, "step"):
        return job.payload + 3


@app.schedule(every="1s", missed="all")
@app.job(retry=_PATIENT)
async def tick(job: ActiveJob[None]) -> None:
    with recorded(job, "tick"):
        pass
