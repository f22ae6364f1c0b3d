"""One verb for many jobs: count first, ask, go through all of them, say what became of each.

Ids on the command line were named one by one, so they are not asked about. What a filter or stdin
chooses nobody has counted: on a terminal it is asked about, elsewhere only `--yes` will do.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import click

from trellis.cli.escaping import visible
from trellis.cli.exits import FAILED, NOT_FOUND, OK, REFUSED, CommandFailed, complain
from trellis.cli.listing import COLUMNS, job_row
from trellis.cli.naming import Targets
from trellis.cli.place import operate
from trellis.cli.spoken import counted
from trellis.cli.tables import write_table
from trellis.cli.terminal import progress_bar
from trellis.cli.writing import Form, write_each, write_json, write_line
from trellis.core.durations import to_datetime
from trellis.insight.filters import Filters
from trellis.insight.views import JobView, as_json
from trellis.operations.operator import Operator
from trellis.operations.selection import Progress, Selection, Tally, Verb

_SHOWN: Final = 20
_REFUSALS: Final = 5
_DONE: Final[dict[Verb, str]] = {
    "cancel": "cancelled or asked to stop",
    "retry": "waiting to run again",
    "replay": "waiting to run again",
    "dismiss": "dismissed",
    "clone": "cloned",
    "delete": "deleted",
}

Action = Callable[[Selection, Progress], Awaitable[Tally]]


class Order(NamedTuple):
    """What a bulk command was asked to do."""

    verb: Verb
    targets: Targets
    filters: Filters
    form: Form
    is_dry: bool
    is_sure: bool


def run_bulk(url: str | None, order: Order, action: Action) -> int:
    """Do it; return the exit code."""

    async def work(jobs: Operator) -> int:
        chosen = await _choose(jobs, order)
        count = await chosen.count()
        if order.is_dry:
            await _preview(jobs, chosen, order, count)
            return OK
        if not count:
            complain("No job fits; nothing to do.")
            return OK
        if order.targets.from_stdin or not order.targets.by_id:
            _ask(order, count)
        with progress_bar(order.verb.capitalize()) as report:
            tally = await action(chosen, lambda done: report(done, count))
        return _tell(order, tally)

    return operate(url, work)


async def _choose(jobs: Operator, order: Order) -> Selection:
    ids = order.targets.ids
    chosen = await jobs.pick(ids) if order.targets.by_id else jobs.find(**order.filters)
    if len(ids) == 1:
        await jobs.get(ids[0])  # a wrong id is an error, not a count
    return chosen.meant_for(order.verb)


def _ask(order: Order, count: int) -> None:
    if order.is_sure:
        return
    what = f"{order.verb} {counted(count)}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            f"This would {what}, and there is no terminal to ask on. Look with --dry-run, then add "
            "--yes."
        )
    if not click.confirm(f"{what.capitalize()}?", err=True):
        complain("Nothing was done.")
        raise CommandFailed(FAILED)


async def _preview(jobs: Operator, chosen: Selection, order: Order, count: int) -> None:
    """Show what would be done, and to which jobs."""
    now = to_datetime(await jobs.engine.now())
    views: list[JobView] = []
    async for job in chosen:
        if order.form is Form.TABLE and len(views) == _SHOWN:
            break
        views.append(job)
    write_each(
        order.form,
        views,
        document=as_json,
        name=lambda job: job.id,
        table=lambda rows: write_table(COLUMNS, (job_row(job, now) for job in rows)),
    )
    more = f", of which {len(views)} are shown" if len(views) < count else ""
    complain(f"Would {order.verb} {counted(count)}{more}. Nothing was done.")


def _tell(order: Order, tally: Tally) -> int:
    if order.form in (Form.JSON, Form.JSONL):
        write_json(_document(tally))
    elif order.form is Form.QUIET or order.verb == "clone":
        for job_id in tally.ids:
            write_line(job_id)
    parts = [f"{counted(tally.done)} {_DONE[order.verb]}"] if tally.done else []
    parts += [f"{tally.refused:,} refused"] if tally.refused else []
    parts += [f"{tally.missing:,} not found"] if tally.missing else []
    complain(f"{', '.join(parts)}.")
    for job_id, why in tally.refusals[:_REFUSALS]:
        complain(visible(f"  {job_id}: {why}"))
    if tally.refused:
        return REFUSED
    return NOT_FOUND if tally.missing else OK


def _document(tally: Tally) -> dict[str, object]:
    return {
        "done": tally.done,
        "refused": tally.refused,
        "missing": tally.missing,
        "ids": tally.ids,
        "refusals": [{"id": job_id, "reason": why} for job_id, why in tally.refusals],
    }
