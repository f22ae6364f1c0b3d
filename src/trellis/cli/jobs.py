"""`trellis jobs`: the group, and its commands about many jobs: list, count and wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from trellis.cli.app import FAILED, OK, TIMED_OUT, CommandGroup, operate
from trellis.cli.options import (
    columns_option,
    debug_option,
    filter_options,
    form_options,
    json_option,
    limit_option,
    read_filters,
    read_ids,
    url_option,
)
from trellis.cli.output import Form, complain, safe_json, visible, write_json, write_line
from trellis.core.states import SUCCEEDED

if TYPE_CHECKING:
    from datetime import datetime

    from trellis.insight.filters import Filters
    from trellis.insight.views import JobView
    from trellis.operations.operator import Operator
    from trellis.operations.selection import Found

_PAGE: Final = 500
_MODULES: Final = {
    **dict.fromkeys(("show", "why", "logs"), "trellis.cli.job_details"),
    "graph": "trellis.cli.job_graph",
    "items": "trellis.cli.job_items",
    "follow": "trellis.cli.job_feed",
    "top": "trellis.cli.top",
    **dict.fromkeys(("serve", "rebuild"), "trellis.cli.job_projection"),
    **dict.fromkeys(
        ("cancel", "move", "set", "retry", "clone", "delete"), "trellis.cli.job_actions"
    ),
}


@click.command("jobs", cls=CommandGroup, modules=_MODULES)
def jobs() -> None:
    """Look at jobs and change them.

    Jobs are chosen by the beginning or the end of their id, or by the same filter words everywhere,
    as in `trellis jobs list state:failed,dead type:shop/sync since:1h`.
    """


# -- list ----------------------------------------------------------------------------------------


@jobs.command("list")
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@filter_options
@columns_option
@limit_option
@form_options
@url_option
@debug_option
def list_command(
    words: tuple[str, ...],
    *,
    columns: tuple[str, ...],
    limit: int,
    form: Form,
    url: str | None,
    **options: Any,  # noqa: ANN401 - click's options
) -> None:
    """List jobs, newest first.

    A FILTER is a word such as `state:failed,dead`, `type:shop/sync`, `key:eu`, `tag:tenant=acme`,
    `since:1h`, `until:yesterday` or `error:timeout`; a job must match all of them. Each filter is
    also an option.
    """
    list_jobs(url, read_filters(words, options), form, limit, columns)


def list_jobs(
    url: str | None, filters: Filters, form: Form, limit: int, columns: Sequence[str]
) -> None:
    """Write the jobs that match."""

    async def work(jobs: Operator) -> None:
        found = jobs.find(**filters)
        views, now, more = await _read(found, limit)
        write_jobs(form, views, now, columns)
        if form is not Form.TABLE:
            return
        if more:
            total = f"{await found.count():,}"
            complain(f"The newest {len(views):,} of {total} jobs; --limit 0 lists all.")
        elif not views:
            complain("No job matches.")

    operate(url, work)


async def _read(found: Found, limit: int) -> tuple[list[JobView], datetime, bool]:
    """Return up to `limit` jobs (0: all), the engine's time, and whether there are more."""
    page = await found.page(limit=min(limit or _PAGE, _PAGE))
    views = list(page.jobs)
    while page.next_after is not None and (not limit or len(views) < limit):
        left = limit - len(views) if limit else _PAGE
        page = await found.page(after=page.next_after, limit=min(left, _PAGE))
        views += page.jobs
    return views, page.as_of, page.next_after is not None


def write_jobs(
    form: Form, views: Sequence[JobView], now: datetime, columns: Sequence[str] = ()
) -> None:
    """Write jobs in the requested form; a table has these columns, or the usual ones."""
    from trellis.cli.format import JOB_COLUMNS, write_job_table
    from trellis.cli.output import write_each
    from trellis.insight.views import as_json

    write_each(
        form,
        views,
        document=as_json,
        name=lambda job: job.id,
        table=lambda jobs: write_job_table(jobs, now, columns or JOB_COLUMNS),
    )


# -- count ---------------------------------------------------------------------------------------


@jobs.command("count")
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@filter_options
@click.option(
    "--by",
    metavar="GROUP",
    default="state",
    help="By state, type, queue, service, error, worker, tenant or tag:NAME (state).",
)
@json_option
@url_option
@debug_option
def count_command(
    words: tuple[str, ...],
    *,
    by: str,
    as_json: bool,
    url: str | None,
    **options: Any,  # noqa: ANN401 - click's options
) -> None:
    """Count jobs by state, type, queue, service, error, worker, tenant or the value of a tag.

    Takes the same filters as `trellis jobs list`.
    """
    from trellis.cli.output import Column, write_table

    filters = read_filters(words, options)
    counts = operate(url, lambda jobs: jobs.count(by, **filters))
    if as_json:
        write_json(counts)
        return
    columns = (Column(by.upper(), shrinks=True), Column("JOBS", is_number=True))
    write_table(columns, [(name or "-", f"{count:,}") for name, count in counts.items()])


# -- wait ----------------------------------------------------------------------------------------


@jobs.command("wait")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--timeout", metavar="DURATION", help="Wait at most this long, as in 30s; then exit 6."
)
@json_option
@url_option
@debug_option
def wait_command(
    ids: tuple[str, ...], *, timeout: str | None, as_json: bool, url: str | None
) -> int:
    """Wait until jobs have ended; `-` reads their ids from stdin.

    Exits with 0 if all completed, with 1 if one did not, and with 6 if one had not ended when the
    time was over. The result of a single job is written as JSON.
    """
    ids = read_ids(ids)

    async def work(jobs: Operator) -> int:
        # All ids are looked up first, so that a wrong one is reported before any waiting.
        full = [(await jobs.get(each)).id for each in ids]
        ended = await wait_for_each(jobs, full, timeout)
        documents = [await job_document(jobs, job) for job in ended]
        if as_json:
            write_json(documents[0] if len(ids) == 1 and documents else documents)
        elif len(ids) == 1 and documents and documents[0]["state"] in SUCCEEDED:
            write_line(safe_json(documents[0]["result"], indent=2))
        return exit_code(ended, len(full))

    return operate(url, work)


async def wait_for_each(jobs: Operator, ids: Sequence[str], limit: str | None) -> list[JobView]:
    """Return the jobs that end within one time limit for all; report how each of them ended."""
    import asyncio

    from trellis.core.durations import SECOND
    from trellis.declaration import checks
    from trellis.errors import WaitTimeout

    loop = asyncio.get_running_loop()
    until = None if limit is None else loop.time() + checks.duration("timeout", limit) / SECOND
    ended = []
    for job_id in ids:
        left = None if until is None else max(until - loop.time(), 0)
        try:
            job = await jobs.wait(job_id, left)
        except WaitTimeout:
            why = await jobs.why(job_id)
            complain(f"Job {job_id} is still {why.job.state} after {limit}. {why.text}")
            for command in filter(None, (cause.command for cause in why.causes)):
                complain(f"  → {command}")
            continue
        reason = f": {job.error.message}" if job.error is not None else ""
        complain(visible(f"Job {job.id} ({job.name}) is {job.state}{reason}"))
        ended.append(job)
    return ended


def exit_code(ended: Sequence[JobView], expected: int) -> int:
    """Return the exit code for jobs that were awaited."""
    if len(ended) < expected:
        return TIMED_OUT
    return OK if all(job.state in SUCCEEDED for job in ended) else FAILED


async def job_document(jobs: Operator, job: JobView) -> dict[str, object]:
    """Return a job with its result, as JSON."""
    from trellis.insight.views import as_json

    outcomes = await jobs.outcomes(job.id)
    return {**as_json(job), "result": outcomes[-1].result if outcomes else None}
