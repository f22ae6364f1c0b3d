"""`trellis jobs show`, `why` and `logs`: everything about one job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import rich_click as click

from trellis.cli.app import operate
from trellis.cli.options import debug_option, json_option, url_option
from trellis.cli.output import (
    Form,
    complain,
    safe_json,
    stdout_console,
    visible,
    visible_block,
    write_json,
    write_line,
)
from trellis.core.states import ENDED

if TYPE_CHECKING:
    from datetime import datetime

    from rich.text import Text

    from trellis.core.durations import Instant
    from trellis.insight.views import JobEvent, JobLogLine, JobView, OutcomeView, ProgressView
    from trellis.insight.why import Why
    from trellis.operations.operator import Operator

_LABEL_WIDTH: Final = 12
_UNLIMITED: Final = 100_000
#: Data of events that the page shows elsewhere.
_SHOWN_ELSEWHERE: Final = frozenset({"error", "result"})
_LEVEL_STYLES: Final = {
    "debug": "dim",
    "warning": "yellow",
    "error": "red",
    "critical": "bold red",
}
#: A label and its text; a line without a label starts at the margin.
Line = tuple[str | None, str]


# -- show ----------------------------------------------------------------------------------------


@click.command("show")
@click.argument("job_id", metavar="ID")
@json_option
@url_option
@debug_option
def show(job_id: str, *, as_json: bool, url: str | None) -> None:
    """Show one job: its definition, its state, its error and result, and its journal.

    The beginning or the end of the ID is enough while it is unique. Secrets are masked.
    """
    details = operate(url, lambda jobs: _load(jobs, job_id))
    if as_json:
        write_json(_document(details))
    else:
        _write_page(details)


class JobDetails(NamedTuple):
    """Everything that is stored about a job."""

    job: JobView
    now: Instant
    why: Why
    progress: ProgressView | None
    outcomes: list[OutcomeView]
    journal: list[JobEvent]


async def _load(jobs: Operator, job_id: str) -> JobDetails:
    job = await jobs.get(job_id)
    return JobDetails(
        job,
        await jobs.engine.now(),
        await jobs.why(job.id),
        await jobs.progress(job.id),
        await jobs.outcomes(job.id),
        await jobs.journal(job.id),
    )


def _document(details: JobDetails) -> dict[str, Any]:
    from trellis.insight.views import as_json

    return {
        **as_json(details.job),
        "why": [cause._asdict() for cause in details.why.causes],
        "progress": as_json(details.progress),
        "outcomes": as_json(details.outcomes),
        "journal": as_json(details.journal),
    }


def _write_page(details: JobDetails) -> None:
    from rich.table import Table
    from rich.text import Text

    console = stdout_console() if sys.stdout.isatty() else stdout_console(width=_UNLIMITED)
    for label, text in _lines(details):
        if label is None:
            console.print(Text(text))
            continue
        # A long text is wrapped beside its label.
        line = Table.grid()
        line.add_column(width=_LABEL_WIDTH)
        line.add_column(overflow="fold")
        line.add_row(Text(label, "bold"), Text(text))
        console.print(line, soft_wrap=False)


def _lines(details: JobDetails) -> Iterator[Line]:
    yield from _facts(details)
    if details.progress is not None:
        yield from _progress(details.progress)
    if details.job.error is not None:
        error = details.job.error
        yield None, ""
        yield "Error", visible(f"{error.code}: {error.message}")
        for line in visible_block(error.detail or "").splitlines():
            yield None, f"    {line}"
    yield None, ""
    yield "Payload", safe_json(details.job.payload)
    for outcome in details.outcomes:
        if outcome.result is not None:
            yield "Result", safe_json(outcome.result)
    yield None, ""
    widest = max((len(event.kind) for event in details.journal), default=0)
    for number, event in enumerate(details.journal):
        yield "" if number else "Journal", _event(event, widest)


def _facts(details: JobDetails) -> Iterator[Line]:
    job = details.job
    yield "Job", f"{job.id}  {visible(job.name)}"
    yield "State", f"{job.state}, attempt {job.attempt} of {job.max_attempts}"
    for number, cause in enumerate(details.why.causes):
        yield "" if number else "Why", visible(cause.text)
        if cause.command:
            yield "", f"→ {visible(cause.command)}"
    yield "Created", _when(job.created_at, details.now)
    yield from _times(job, details.now)
    yield "Queue", visible(job.queue) + (f", priority {job.priority}" if job.priority else "")
    if job.key is not None:
        yield "Key", visible(job.key)
    if job.tags:
        yield "Tags", visible(", ".join(f"{name}={value}" for name, value in job.tags.items()))
    if job.clone_of is not None:
        yield "Clone of", job.clone_of
    if job.generation:
        yield "Restarts", f"{job.generation:,}"
    yield "Trace", visible(job.trace_id)


def _times(job: JobView, now: Instant) -> Iterator[Line]:
    from trellis.core.durations import to_instant

    if job.state not in ENDED and to_instant(job.run_at) > now:
        yield "Starts", _when(job.run_at, now)
    for label, moment in (("Deadline", job.deadline_at), ("Ended", job.finished_at)):
        if moment is not None:
            yield label, _when(moment, now)


def _progress(progress: ProgressView) -> Iterator[Line]:
    parts = [part for part in (progress.phase, progress.step, progress.message) if part]
    if progress.current is not None:
        total = "" if progress.total is None else f" of {progress.total:g}"
        parts.insert(0, f"{progress.current:g}{total}")
    if parts:
        yield "Progress", visible(", ".join(parts))
    if progress.items:
        items = (f"{count:,} {name}" for name, count in progress.items.items())
        yield "Items", visible(", ".join(items))


def _event(event: JobEvent, widest: int) -> str:
    from trellis.cli.format import local_time
    from trellis.core.durations import to_datetime

    attempt = f"attempt {event.attempt}" if event.attempt else ""
    data = {name: value for name, value in event.data.items() if name not in _SHOWN_ELSEWHERE}
    if "run_at" in data and isinstance(data["run_at"], int):
        data["run_at"] = local_time(to_datetime(data["run_at"]))
    extra = ", ".join(
        f"{name} {value if isinstance(value, str) else safe_json(value)}"
        for name, value in data.items()
    )
    moment = event.at.astimezone().strftime("%m-%d %H:%M:%S.%f")[:-3]
    return f"{moment}  {event.kind:<{widest}}  {attempt:<11}{visible(extra)}".rstrip()


def _when(moment: datetime, now: Instant) -> str:
    from trellis.cli.format import local_time
    from trellis.core.durations import to_instant
    from trellis.insight.time_expressions import roughly

    distance = to_instant(moment) - now
    words = f"in {roughly(distance)}" if distance > 0 else f"{roughly(distance)} ago"
    return f"{local_time(moment)} ({words})"


# -- why -----------------------------------------------------------------------------------------


@click.command("why")
@click.argument("job_id", metavar="ID")
@json_option
@url_option
@debug_option
def why(job_id: str, *, as_json: bool, url: str | None) -> None:
    """Explain why a job is not running, and name the command that helps."""
    found = operate(url, lambda jobs: jobs.why(job_id))
    if as_json:
        write_json({"id": found.job.id, "causes": [cause._asdict() for cause in found.causes]})
        return
    write_line(f"Job {found.job.id} ({visible(found.job.name)}): {found.job.state}.")
    for cause in found.causes:
        write_line(visible(cause.text))
        if cause.command is not None:
            write_line(f"  → {visible(cause.command)}")


# -- logs ----------------------------------------------------------------------------------------


@click.command("logs")
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended.")
@json_option
@click.option("--jsonl", is_flag=True, help="Write one JSON document per line.")
@url_option
@debug_option
def logs(job_id: str, *, follow: bool, as_json: bool, jsonl: bool, url: str | None) -> None:
    """Show the log of a job, oldest line first."""
    if as_json and jsonl:
        raise click.UsageError("Use only one of --json and --jsonl.")
    form = Form.JSON if as_json else Form.JSONL if jsonl else Form.TABLE
    operate(url, lambda jobs: _write_logs(jobs, job_id, form, follow=follow))


async def _write_logs(jobs: Operator, job_id: str, form: Form, *, follow: bool) -> None:
    from trellis.insight.views import as_json

    console = stdout_console()
    documents = []
    is_empty = True
    async for line in jobs.logs(job_id, follow=follow):
        is_empty = False
        match form:
            case Form.JSON:
                documents.append(as_json(line))
            case Form.JSONL:
                write_line(safe_json(as_json(line)))
            case _:
                console.print(_log_text(line))
        sys.stdout.flush()
    if form is Form.JSON:
        write_json(documents)
    if is_empty:
        complain("The job has logged nothing.")
    if follow:
        complain(f"The job is {(await jobs.get(job_id)).state}.")


def _log_text(line: JobLogLine) -> Text:
    from rich.text import Text

    moment = line.at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    fields = "".join(f" {name}={_log_value(value)}" for name, value in line.fields.items())
    text = Text(f"{moment} ", "dim")
    text.append(f"{line.level:<8}", _LEVEL_STYLES.get(line.level, ""))
    return text.append(visible(line.message)).append(visible(fields), "dim")


def _log_value(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else safe_json(value)
