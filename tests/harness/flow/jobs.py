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
from tests.harness.flow.facts import wall
from tests.harness.flow.limits import ACTIVE, BURST, KEY_BURST, KEY_RATE, POST_ACTIVE, RATE
from trellis import ActiveJob, Fail, Limit, Outcome, PerKey, Retry, Service

FOLDER: Final = Path(os.environ.get("FAULTS_FOLDER", "."))

_PATIENT: Final = Retry.fixed("100ms", attempts=60)
#: However often a worker is killed under them, jobs are tried again.
app: Final = Service("flow", defaults={"retry": _PATIENT, "max_crashes": 60})
app.queue("post", limit=Limit(active=POST_ACTIVE))
_logs: dict[int, Log] = {}
_numbers: Final = count()


@contextmanager
def recorded(job: ActiveJob[Any], kind: str) -> Iterator[None]:
    """Write down when the handler begins and ends."""
    pid = os.getpid()
    if pid not in _logs:
        _logs[pid] = Log(FOLDER / "effects" / f"{pid}.jsonl")
    facts = {"run": next(_numbers), "pid": pid}
    attempt = job.attempt_id
    _logs[pid].write(event="begin", at=wall(), job=job.id, kind=kind, attempt=attempt, **facts)
    try:
        yield
    finally:
        _logs[pid].write(event="end", **facts)


@app.job(limit=Limit(active=ACTIVE))
async def limited(job: ActiveJob[int]) -> None:
    with recorded(job, "limited"):
        await asyncio.sleep(job.payload / 1000)


@app.job(limit=Limit(rate=f"{RATE}/1s", burst=BURST))
async def rated(job: ActiveJob[int]) -> None:
    with recorded(job, "rated"):
        pass


@app.job(per_key=PerKey.in_turn("{key}", rate=f"{KEY_RATE}/1s", burst=KEY_BURST))
async def keyed(job: ActiveJob[dict[str, str]]) -> None:
    with recorded(job, "keyed"):
        pass


@app.job(queue="post", fair="{tenant}")
async def mail(job: ActiveJob[dict[str, str]]) -> None:
    with recorded(job, "mail"):
        await asyncio.sleep(0.01)


@app.job(queue="post", fair="{tenant}")
async def letter(job: ActiveJob[dict[str, str]]) -> None:
    with recorded(job, "letter"):
        await asyncio.sleep(0.01)


@app.job
async def hooked(job: ActiveJob[int]) -> int:
    with recorded(job, "hooked"):
        if job.payload % 3 == 0:
            raise Fail("every third one fails")
        return job.payload


@hooked.on_success
async def succeeded(job: ActiveJob[Outcome]) -> None:
    with recorded(job, "hook"):
        pass


@hooked.on_failure
async def failed(job: ActiveJob[Outcome]) -> None:
    with recorded(job, "hook"):
        pass


@hooked.on_finished
async def finished(job: ActiveJob[Outcome]) -> None:
    with recorded(job, "hook"):
        pass


@app.job
async def member(job: ActiveJob[int]) -> int:
    with recorded(job, "member"):
        await asyncio.sleep(0.005)
        if job.payload % 11 == 0:
            raise Fail("every eleventh one fails")
        if job.payload % 13 == 0:
            await job.spawn(child, job.payload)
        return job.payload


@app.job
async def child(job: ActiveJob[int]) -> int:
    with recorded(job, "member"):
        return job.payload


@app.job
async def failing(job: ActiveJob[None]) -> None:
    with recorded(job, "member"):
        raise Fail("this one always fails")


@app.job
async def collect(job: ActiveJob[None]) -> int:
    with recorded(job, "collect"):
        assert job.batch is not None
        return len([member async for member in job.batch.members()])


@app.job
async def first(job: ActiveJob[int]) -> int:
    with recorded(job, "step"):
        if job.payload % 7 == 0:
            raise Fail("every seventh chain breaks")
        return job.payload + 1


@app.job
async def second(job: ActiveJob[int]) -> int:
    with recorded(job, "step"):
        return job.payload * 2


@app.job
async def third(job: ActiveJob[int]) -> int:
    with recorded(job, "step"):
        async with job.lock("third", wait="10s"):
            return job.payload + 3


@app.schedule(every="1s", missed="all")
@app.job
async def tick(job: ActiveJob[None]) -> None:
    with recorded(job, "tick"):
        pass
