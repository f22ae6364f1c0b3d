"""Waiting for jobs: one line per job as it ends, and an exit code by how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from trellis.cli.escaping import safe_json, visible
from trellis.cli.exits import FAILED, OK, TIMED_OUT, complain
from trellis.cli.place import operate
from trellis.cli.writing import write_json, write_line
from trellis.core.durations import SECOND
from trellis.core.states import SUCCEEDED
from trellis.declaration import checks
from trellis.errors import WaitTimeout
from trellis.insight.views import JobView, as_json
from trellis.operations.operator import Operator


def wait_for(url: str | None, ids: Sequence[str], patience: str | None, *, machine: bool) -> int:
    """Wait until these jobs have ended; return the exit code."""

    async def work(jobs: Operator) -> int:
        # All are found before any is awaited, so that a wrong id is told at once.
        whole = [(await jobs.get(each)).id for each in ids]
        ended = await wait_for_each(jobs, whole, patience)
        documents = [await document(jobs, job) for job in ended]
        if machine:
            write_json(documents[0] if len(ids) == 1 and documents else documents)
        elif len(ids) == 1 and documents and documents[0]["state"] in SUCCEEDED:
            write_line(safe_json(documents[0]["result"], indent=2))
        return exit_code(ended, len(whole))

    return operate(url, work)


def exit_code(ended: Sequence[JobView], asked: int) -> int:
    """Return the exit code for jobs that were awaited."""
    if len(ended) < asked:
        return TIMED_OUT
    return OK if all(job.state in SUCCEEDED for job in ended) else FAILED


async def wait_for_each(jobs: Operator, ids: Sequence[str], patience: str | None) -> list[JobView]:
    """Return those that end within the time that all have together, telling how each ended."""
    loop = asyncio.get_running_loop()
    until = None if patience is None else loop.time() + checks.span("timeout", patience) / SECOND
    ended = []
    for job_id in ids:
        left = None if until is None else max(until - loop.time(), 0)
        try:
            ended.append(await jobs.wait(job_id, left))
        except WaitTimeout:
            why = await jobs.why(job_id)
            complain(f"Job {job_id} is still {why.job.state} after {patience}. {why.text}")
            for command in filter(None, (cause.command for cause in why.causes)):
                complain(f"  → {command}")
            continue
        complain(visible(_how(ended[-1])))
    return ended


def _how(job: JobView) -> str:
    why = f": {job.error.message}" if job.error is not None else ""
    return f"Job {job.id} ({job.name}) is {job.state}{why}"


async def document(jobs: Operator, job: JobView) -> dict[str, object]:
    """Return a job with its result, as JSON."""
    outcomes = await jobs.outcomes(job.id)
    return {**as_json(job), "result": outcomes[-1].result if outcomes else None}
