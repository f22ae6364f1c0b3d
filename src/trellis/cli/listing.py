"""Listing jobs: one row each, with the one fact that says most about it."""

from __future__ import annotations

from datetime import datetime

from trellis.cli.exits import complain
from trellis.cli.place import operate
from trellis.cli.spoken import briefly, counted, state_cell
from trellis.cli.tables import Column, Row, write_table
from trellis.cli.writing import Form, write_each
from trellis.core.states import WAITING, State
from trellis.insight.filters import Filters
from trellis.insight.views import JobView, as_json
from trellis.operations.operator import Operator
from trellis.operations.selection import Found

_PAGE = 500
COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("TYPE", gives_way=True),
    Column("TRY", is_number=True),
    Column("AGE", is_number=True),
    Column("NOTE", gives_way=True),
)


def list_jobs(url: str | None, filters: Filters, form: Form, limit: int) -> None:
    """Write the jobs that fit."""

    async def work(jobs: Operator) -> None:
        found = jobs.find(**filters)
        views, now, more = await _take(found, limit)
        write_each(
            form,
            views,
            document=as_json,
            name=lambda job: job.id,
            table=lambda rows: write_table(COLUMNS, (job_row(job, now) for job in rows)),
        )
        if form is Form.TABLE:
            await _tell_rest(found, len(views), more=more)

    operate(url, work)


async def _take(found: Found, limit: int) -> tuple[list[JobView], datetime, bool]:
    """Return up to `limit` jobs (0: all), the engine's time, and whether there are more."""
    page = await found.page(limit=min(limit or _PAGE, _PAGE))
    views = list(page.jobs)
    while page.next_after is not None and (not limit or len(views) < limit):
        left = limit - len(views) if limit else _PAGE
        page = await found.page(after=page.next_after, limit=min(left, _PAGE))
        views += page.jobs
    return views, page.as_of, page.next_after is not None


async def _tell_rest(found: Found, shown: int, *, more: bool) -> None:
    if more:
        complain(f"The newest {shown:,} of {counted(await found.count())}; --limit 0 lists all.")
    elif not shown:
        complain("No job fits.")


def job_row(job: JobView, now: datetime) -> Row:
    """Return a job's row."""
    return (
        job.id,
        state_cell(job.state),
        job.name,
        f"{job.attempt}/{job.max_attempts}",
        briefly(now - job.created_at),
        note_of(job, now),
    )


def note_of(job: JobView, now: datetime) -> str:
    """Say what is most worth knowing about a job."""
    parts = []
    if job.blocked:
        parts.append("blocks its key")
    elif job.cancel_asked and job.state is State.ACTIVE:
        parts.append("asked to stop")
    if job.state in WAITING and job.run_at > now:
        parts.append(f"in {briefly(job.run_at - now)}")
    if job.error is not None:
        parts.append(job.error.message.strip().partition("\n")[0])
    elif job.key is not None:
        parts.append(f"key {job.key}")
    return ", ".join(parts)
