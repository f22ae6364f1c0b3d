"""`trellis jobs show`, `why` and `logs`: everything about one job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import rich_click as click

from trellis.cli.app import operate
from trellis.cli.audit import entry_in_words
from trellis.cli.options import debug_option, json_option, url_option
from trellis.cli.output import (
    Form,
    as_typed,
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
    from trellis.insight.attempts import AttemptView
    from trellis.insight.audit import AuditView
    from trellis.insight.graph import LinkView
    from trellis.insight.views import (
        ErrorView,
        JobEvent,
        JobLogLine,
        JobView,
        OutcomeView,
        ProgressView,
    )
    from trellis.insight.why import Why
    from trellis.operations.operator import Operator

_LABEL_WIDTH: Final = 12
_UNLIMITED: Final = 100_000
#: How many links of a job are shown in each direction, and how many children.
_LINKS: Final = 10
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
    attempts: list[AttemptView]
    journal: list[JobEvent]
    links: list[LinkView]
    #: Jobs that it has created, the newest first; one more than are shown, if there are more.
    children: tuple[JobView, ...]
    audit: list[AuditView]


async def _load(jobs: Operator, job_id: str) -> JobDetails:
    job = await jobs.get(job_id)
    return JobDetails(
        job,
        await jobs.engine.now(),
        await jobs.why(job.id),
        await jobs.progress(job.id),
        await jobs.outcomes(job.id),
        await jobs.attempts(job.id),
        await jobs.journal(job.id),
        await jobs.links(job.id),
        (await jobs.find(parent=job.id).page(limit=_LINKS + 1)).jobs,
        await jobs.audit(target=job.id),
    )


def _document(details: JobDetails) -> dict[str, Any]:
    from trellis.insight.views import as_json

    return {
        **as_json(details.job),
        "why": [cause._asdict() for cause in details.why.causes],
        "progress": as_json(details.progress),
        "outcomes": as_json(details.outcomes),
        "attempts": as_json(details.attempts),
        "journal": as_json(details.journal),
        "links": as_json(details.links),
        "children": [child.id for child in details.children[:_LINKS]],
        "has_more_children": len(details.children) > _LINKS,
        "audit": as_json(details.audit),
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
        if error.data is not None:
            yield "", safe_json(error.data)
        for line in visible_block(error.detail or "").splitlines():
            yield None, f"    {line}"
    yield None, ""
    yield "Payload", safe_json(details.job.payload)
    yield from _configuration(details.job)
    for outcome in details.outcomes:
        if outcome.result is not None:
            yield "Result", safe_json(outcome.result)
    yield from _attempts(details)
    yield None, ""
    widest = max((len(event.kind) for event in details.journal), default=0)
    for number, event in enumerate(details.journal):
        yield "" if number else "Journal", _event(event, widest)
    for number, entry in enumerate(reversed(details.audit)):
        yield "" if number else "Audit", visible(entry_in_words(entry))


def _configuration(job: JobView) -> Iterator[Line]:
    if job.config_fingerprint is not None:
        yield "Config", safe_json(job.config)
        yield "", job.config_fingerprint
    if job.expect is not None:
        yield "Expects", visible(job.expect)


def _facts(details: JobDetails) -> Iterator[Line]:
    job = details.job
    yield "Job", f"{job.id}  {visible(job.name)}"
    yield "State", f"{job.state}, attempt {job.attempt} of {job.max_attempts}"
    for number, cause in enumerate(details.why.causes):
        yield "" if number else "Why", visible(cause.text)
        if cause.command:
            yield "", f"→ {visible(as_typed(cause.command))}"
    yield "Created", _when(job.created_at, details.now)
    yield from _times(job, details.now)
    yield "Queue", visible(job.queue) + (f", priority {job.priority}" if job.priority else "")
    if job.worker is not None:
        yield "Worker", visible(f"{job.worker} (process {job.worker_pid} on {job.worker_host})")
    for label, text in (("Key", job.key), ("Tenant", job.tenant)):
        if text is not None:
            yield label, visible(text)
    if job.dedupe is not None:
        yield "Dedupe", visible(job.dedupe) + _held(job, details.now)
    yield from _policy(job)
    yield from _belongings(details)
    yield "Trace", visible(job.trace_id)


def _relatives(job: JobView) -> Iterator[Line]:
    """Yield what it was created from, and the batch that it belongs to or follows."""
    for label, related in (
        ("Clone of", job.clone_of),
        ("Created by", job.parent),
        ("Batch", job.batch),
        ("Follows", None if job.fan_in_of is None else f"batch {job.fan_in_of}"),
    ):
        if related is not None:
            yield label, related


def _links(details: JobDetails) -> Iterator[Line]:
    """Yield the jobs it waits or waited for, and those that wait or waited for it."""
    own = details.job.id
    before = [each for each in details.links if each.job == own]
    label = "Waits for" if any(each.ended is None for each in before) else "Followed"
    for number, each in enumerate(before[:_LINKS]):
        how = "" if each.on == "success" else ", in any way it ends"
        yield "" if number else label, f"{each.prerequisite}  {each.ended or 'not ended'}{how}"
    behind = [each.job for each in details.links if each.prerequisite == own]
    for number, job_id in enumerate(behind[:_LINKS]):
        yield "" if number else "Followed by", job_id
    if max(len(before), len(behind)) > _LINKS:
        yield "", as_typed(f"... all of them: trellis jobs graph {own}")


def _children(details: JobDetails) -> Iterator[Line]:
    """Yield the jobs that its handler, or its end, has created."""
    for number, child in enumerate(details.children[:_LINKS]):
        yield "" if number else "Children", f"{child.id}  {visible(child.name)}  {child.state}"
    if len(details.children) > _LINKS:
        yield "", f"... all of them: trellis jobs list parent:{details.job.id}"


def _belongings(details: JobDetails) -> Iterator[Line]:
    job = details.job
    if job.tags:
        yield "Tags", visible(", ".join(f"{name}={value}" for name, value in job.tags.items()))
    if job.schedule is not None:
        from trellis.cli.format import local_time

        slot = "run by an operator" if job.slot is None else f"slot {local_time(job.slot)}"
        yield "Schedule", visible(f"{job.service}/{job.schedule}, {slot}")
    yield from _relatives(job)
    yield from _links(details)
    yield from _children(details)
    if job.generation:
        yield "Restarts", f"{job.generation:,}"


#: Where a value of the policy comes from, in words.
_SOURCES: Final = {
    "job": "set for this job",
    "worker": "declared by the worker that claimed it last",
    "creation": "declared when it was created; the worker that claims it decides",
}


def _policy(job: JobView) -> Iterator[Line]:
    """Yield what differs from the defaults in the policy in force, one line for each source."""
    from trellis.insight.policies import differs_from_default

    different = [each for each in job.policy if differs_from_default(each)]
    if not different:
        yield "Policy", "the defaults"
    label = "Policy"
    for source, words in _SOURCES.items():
        values = [each for each in different if each.source == source and each.name != "per_key"]
        if values:
            text = ", ".join(f"{each.name} {each.value}" for each in values)
            yield label, visible(f"{text} ({words})")
            label = ""
    for each in different:
        if each.name == "per_key":
            yield label, visible(f"per_key {each.value} (as when it was created)")


def _held(job: JobView, now: Instant) -> str:
    """Return how long the dedupe key holds."""
    while_ = "" if job.dedupe_while is None else f", while {job.dedupe_while}"
    until = "" if job.dedupe_until is None else f", until {_when(job.dedupe_until, now)}"
    return while_ + until


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


def _attempts(details: JobDetails) -> Iterator[Line]:
    """Yield a line per attempt: its number, worker, start, duration, end and error."""
    from trellis.cli.format import short_time
    from trellis.core.durations import to_datetime
    from trellis.insight.time_expressions import took

    if details.attempts:
        yield None, ""
    workers = [visible(each.worker or "-") for each in details.attempts]
    widest = max(map(len, workers), default=0)
    for number, (each, worker) in enumerate(zip(details.attempts, workers, strict=True)):
        duration = took((each.ended_at or to_datetime(details.now)) - each.claimed_at)
        end = each.ended_by or "running"
        error = "" if each.error is None else f"  {_error_after(end, each.error)}"
        if each.ended_by == "retry" and each.error is None:
            end = "handed back"
        text = (
            f"{each.claim}  {worker:<{widest}}  {short_time(each.claimed_at)}  {duration:>7}  {end}"
        )
        yield "" if number else "Attempts", text + visible(error)


def _error_after(end: str, error: ErrorView) -> str:
    """Return the first line of an error; with its code, unless the end says the same."""
    first_line = next(iter(error.message.strip().splitlines()), "")
    return first_line if error.code == end else f"{error.code}: {first_line}"


def _event(event: JobEvent, widest: int) -> str:
    from trellis.cli.format import local_time, short_time

    attempt = f"attempt {event.attempt}" if event.attempt else ""
    data = {name: value for name, value in event.data.items() if name not in _SHOWN_ELSEWHERE}
    if "run_at" in data:
        data["run_at"] = local_time(data["run_at"])
    was = data.pop("was", {})
    extra = ", ".join(
        f"{name} {_written(value)}" + (f" (was {_written(was[name])})" if name in was else "")
        for name, value in data.items()
    )
    return f"{short_time(event.at)}  {event.kind:<{widest}}  {attempt:<11}{visible(extra)}".rstrip()


def _written(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, str) else safe_json(value)


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
        causes = [
            cause._asdict() | {"command": cause.command and as_typed(cause.command)}
            for cause in found.causes
        ]
        write_json({"id": found.job.id, "causes": causes})
        return
    write_line(f"Job {found.job.id} ({visible(found.job.name)}): {found.job.state}.")
    for cause in found.causes:
        write_line(visible(cause.text))
        if cause.command is not None:
            write_line(f"  → {visible(as_typed(cause.command))}")


# -- logs ----------------------------------------------------------------------------------------


@click.command("logs")
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended.")
@json_option
@click.option("--jsonl", is_flag=True, help="Write one JSON document per line.")
@url_option
@debug_option
def logs(job_id: str, *, follow: bool, as_json: bool, jsonl: bool, url: str | None) -> None:
    """Show the log of a job, oldest line first; `#2` is a line of the second attempt."""
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
    named = dict(line.fields)
    traceback = named.pop("exception", None)
    fields = "".join(f" {name}={_log_value(value)}" for name, value in named.items())
    text = Text(f"{moment} #{line.claim} ", "dim")
    text.append(f"{line.level:<8}", _LEVEL_STYLES.get(line.level, ""))
    text.append(visible(line.message)).append(visible(fields), "dim")
    for each in visible_block(str(traceback or "")).splitlines():
        text.append(f"\n    {each}", "dim")
    return text


def _log_value(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else safe_json(value)
