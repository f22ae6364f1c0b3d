"""The formatting of times, states, counts and jobs in tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from trellis.cli.output import Cell, Column, Row, safe_json, write_table
from trellis.core.durations import SECOND
from trellis.core.states import WAITING, State
from trellis.insight.time_expressions import roughly, took

if TYPE_CHECKING:
    from trellis.insight.shared_views import RateView
    from trellis.insight.views import JobView

_STYLES: Final = {
    State.ACTIVE: "cyan",
    State.RETRY: "yellow",
    State.COMPLETED: "green",
    State.COMPLETED_WITH_ERRORS: "yellow",
    State.FAILED: "red",
    State.STALE: "red",
    State.DEAD: "bold red",
    State.EXPIRED: "red",
    State.CANCELLED: "dim",
    State.SKIPPED: "dim",
    State.DISMISSED: "dim",
}
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))
#: The columns of a list of jobs without `--columns`.
JOB_COLUMNS: Final = ("id", "state", "type", "attempt", "age", "note")

RATE_COLUMNS: Final = (
    Column("RUN/MIN", is_number=True),
    Column("FAIL/MIN", is_number=True),
    Column("MEDIAN", is_number=True),
)


def _note(job: JobView, now: datetime) -> str:
    """Return the most important fact about a job that no other column shows."""
    parts = []
    if job.blocked:
        parts.append("blocks its key")
    elif job.cancel_asked and job.state is State.ACTIVE:
        parts.append("asked to stop")
    if job.state in WAITING and job.run_at > now:
        parts.append(f"in {short_duration(job.run_at - now)}")
    if job.error is not None:
        parts.append(job.error.message.strip().partition("\n")[0])
    elif job.key is not None:
        parts.append(f"key {job.key}")
    return ", ".join(parts)


#: Every column of a list of jobs by its name, and what it shows of a job.
_JOB_CELLS: Final[dict[str, tuple[Column, Callable[[JobView, datetime], Cell | str]]]] = {
    "id": (Column("ID"), lambda job, _: job.id),
    "state": (Column("STATE"), lambda job, _: state_cell(job.state)),
    "type": (Column("TYPE", shrinks=True), lambda job, _: job.name),
    "queue": (Column("QUEUE", shrinks=True), lambda job, _: job.queue),
    "priority": (Column("PRIORITY", is_number=True), lambda job, _: str(job.priority)),
    "key": (Column("KEY", shrinks=True), lambda job, _: job.key or "-"),
    "tenant": (Column("TENANT", shrinks=True), lambda job, _: job.tenant or "-"),
    "attempt": (
        Column("ATTEMPT", is_number=True),
        lambda job, _: f"{job.attempt}/{job.max_attempts}",
    ),
    "age": (
        Column("AGE", is_number=True),
        lambda job, now: short_duration(now - job.created_at),
    ),
    "created": (Column("CREATED"), lambda job, _: local_time(job.created_at)),
    "run-at": (Column("RUN AT"), lambda job, _: local_time(job.run_at)),
    "finished": (
        Column("FINISHED"),
        lambda job, _: "-" if job.finished_at is None else local_time(job.finished_at),
    ),
    "worker": (Column("WORKER", shrinks=True), lambda job, _: job.worker or "-"),
    "payload": (Column("PAYLOAD", shrinks=True), lambda job, _: safe_json(job.payload)),
    "note": (Column("NOTE", shrinks=True), _note),
}
JOB_COLUMN_NAMES: Final = tuple(_JOB_CELLS)


def write_job_table(
    jobs: Sequence[JobView], now: datetime, columns: Sequence[str] = JOB_COLUMNS
) -> None:
    """Write a table of jobs with these columns."""
    chosen = [_JOB_CELLS[name] for name in columns]
    rows = ([cell(job, now) for _, cell in chosen] for job in jobs)
    write_table([column for column, _ in chosen], rows)


def state_cell(state: State) -> Cell:
    """Return a state in its colour."""
    return Cell(state.value, _STYLES.get(state, ""))


def short_duration(duration: timedelta) -> str:
    """Return a duration in the largest unit that gives at least two: 90s, 3m, 26h, 4d."""
    seconds = round(abs(duration.total_seconds()))
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{round(seconds / size)}{unit}"
    return f"{seconds}s"


def oldest(rates: RateView, now: datetime) -> str:
    """Return how long the job has waited that could have started first."""
    return "-" if rates.waiting_since is None else short_duration(now - rates.waiting_since)


def rate_cells(rates: RateView) -> Row:
    """Return the cells for `RATE_COLUMNS`."""
    return (
        _rate(rates.started_per_minute),
        Cell(_rate(rates.failed_per_minute), "red" if rates.failed_per_minute else ""),
        "-" if rates.median_seconds is None else took(timedelta(seconds=rates.median_seconds)),
    )


def _rate(per_minute: float) -> str:
    if not per_minute:
        return "-"
    return f"{per_minute:.1f}" if per_minute < 10 else f"{per_minute:,.0f}"  # noqa: PLR2004


def window_in_words(rates: RateView) -> str:
    """Return over which time rates were counted, as a sentence."""
    window = roughly(round(rates.window_seconds * SECOND))
    return f"RUN/MIN, FAIL/MIN and MEDIAN are of the last {window}."


def local_time(moment: datetime) -> str:
    """Return a moment in the reader's time zone, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short_time(moment: datetime) -> str:
    """Return a moment of this year in the reader's time zone, to the millisecond."""
    return moment.astimezone().strftime("%m-%d %H:%M:%S.%f")[:-3]


def counted(number: int, noun: str = "job", several: str = "") -> str:
    """Return a number with its noun: 1 job, 2,000 jobs."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def listed(names: tuple[str, ...], limit: int = 3) -> str:
    """Return the first names and how many more there are."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
