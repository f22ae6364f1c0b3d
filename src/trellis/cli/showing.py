"""One job on one screen: facts, error, payload, result, journal; each part only where it exists."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from trellis.cli.escaping import safe_json, visible, visible_block
from trellis.cli.place import operate
from trellis.cli.spoken import clock_time
from trellis.cli.terminal import output
from trellis.cli.writing import write_json
from trellis.core.durations import Instant, to_datetime, to_instant
from trellis.core.states import ENDED
from trellis.insight.time_expressions import roughly
from trellis.insight.views import JobEvent, JobView, OutcomeView, ProgressView, as_json
from trellis.insight.why import Why
from trellis.operations.operator import Operator

_LABEL = 12
_ENDLESS = 100_000
#: What the journal says in its own columns, or what is said elsewhere on the screen.
_SAID_ELSEWHERE = frozenset({"error", "result"})


class Whole(NamedTuple):
    """All that is known about a job."""

    job: JobView
    now: Instant
    why: Why
    progress: ProgressView | None
    outcomes: list[OutcomeView]
    journal: list[JobEvent]


def show_job(url: str | None, job_id: str, *, machine: bool) -> None:
    """Write all that is known about a job, for people or for a machine."""
    whole = operate(url, lambda jobs: _gather(jobs, job_id))
    if machine:
        write_json(_document(whole))
        return
    console = output() if sys.stdout.isatty() else output(width=_ENDLESS)
    for label, text in _lines(whole):
        if label is None:
            console.print(Text(text))
            continue
        # A long text is wrapped beside its label, not below it.
        line = Table.grid()
        line.add_column(width=_LABEL)
        line.add_column(overflow="fold")
        line.add_row(Text(label, "bold"), Text(text))
        console.print(line, soft_wrap=False)


async def _gather(jobs: Operator, job_id: str) -> Whole:
    job = await jobs.get(job_id)
    return Whole(
        job,
        await jobs.engine.now(),
        await jobs.why(job.id),
        await jobs.progress(job.id),
        await jobs.outcomes(job.id),
        await jobs.journal(job.id),
    )


def _document(whole: Whole) -> dict[str, Any]:
    return {
        **as_json(whole.job),
        "why": [cause._asdict() for cause in whole.why.causes],
        "progress": as_json(whole.progress),
        "outcomes": as_json(whole.outcomes),
        "journal": as_json(whole.journal),
    }


def _lines(whole: Whole) -> Iterator[tuple[str | None, str]]:
    """Yield labels and what stands beside them; a line without any begins at the margin."""
    yield from _facts(whole)
    if whole.progress is not None:
        yield from _progress(whole.progress)
    if whole.job.error is not None:
        error = whole.job.error
        yield None, ""
        yield "Error", visible(f"{error.code}: {error.message}")
        yield from _block(error.detail or "")
    yield None, ""
    yield "Payload", safe_json(whole.job.payload)
    for outcome in whole.outcomes:
        if outcome.result is not None:
            yield "Result", safe_json(outcome.result)
    yield None, ""
    widest = max((len(event.kind) for event in whole.journal), default=0)
    for number, event in enumerate(whole.journal):
        yield "" if number else "Journal", _event(event, widest)


def _facts(whole: Whole) -> Iterator[tuple[str | None, str]]:
    job = whole.job
    yield "Job", f"{job.id}  {visible(job.name)}"
    yield "State", f"{job.state}, attempt {job.attempt} of {job.max_attempts}"
    for number, cause in enumerate(whole.why.causes):
        yield "" if number else "Why", visible(cause.text)
        if cause.command:
            yield "", f"→ {visible(cause.command)}"
    yield "Created", _when(job.created_at, whole.now)
    if job.state not in ENDED and to_instant(job.run_at) > whole.now:
        yield "Starts", _when(job.run_at, whole.now)
    for label, moment in (("Deadline", job.deadline_at), ("Ended", job.finished_at)):
        if moment is not None:
            yield label, _when(moment, whole.now)
    yield "Queue", visible(job.queue) + (f", priority {job.priority}" if job.priority else "")
    if job.key is not None:
        yield "Key", visible(job.key)
    if job.tags:
        yield "Tags", visible(", ".join(f"{name}={value}" for name, value in job.tags.items()))
    if job.clone_of is not None:
        yield "Clone of", job.clone_of
    if job.generation:
        yield "Came back", "once" if job.generation == 1 else f"{job.generation:,} times"
    yield "Trace", visible(job.trace_id)


def _progress(said: ProgressView) -> Iterator[tuple[str | None, str]]:
    parts = [part for part in (said.phase, said.step, said.message) if part]
    if said.current is not None:
        total = "" if said.total is None else f" of {said.total:g}"
        parts.insert(0, f"{said.current:g}{total}")
    if parts:
        yield "Progress", visible(", ".join(parts))
    if said.items:
        yield "Items", visible(", ".join(f"{count:,} {name}" for name, count in said.items.items()))


def _block(text: str) -> Iterator[tuple[str | None, str]]:
    for line in visible_block(text).splitlines():
        yield None, f"    {line}"


def _event(event: JobEvent, widest: int) -> str:
    attempt = f"attempt {event.attempt}" if event.attempt else ""
    said = {name: value for name, value in event.data.items() if name not in _SAID_ELSEWHERE}
    if "run_at" in said and isinstance(said["run_at"], int):
        said["run_at"] = clock_time(to_datetime(said["run_at"]))
    extra = ", ".join(f"{name} {_plain(value)}" for name, value in said.items())
    moment = event.at.astimezone().strftime("%m-%d %H:%M:%S.%f")[:-3]
    return f"{moment}  {event.kind:<{widest}}  {attempt:<11}{visible(extra)}".rstrip()


def _plain(value: object) -> str:
    return value if isinstance(value, str) else safe_json(value)


def _when(moment: datetime, now: Instant) -> str:
    distance = to_instant(moment) - now
    words = f"in {roughly(distance)}" if distance > 0 else f"{roughly(distance)} ago"
    return f"{clock_time(moment)} ({words})"
