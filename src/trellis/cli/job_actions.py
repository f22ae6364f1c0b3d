"""Commands that change many jobs: `trellis jobs cancel`, `retry`, `clone`, `delete`, and for `dlq`.

Jobs that are named by id on the command line are changed without a question. Jobs that a filter or
stdin chooses are counted first: on a terminal the user is asked, elsewhere `--yes` is required.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import rich_click as click

from trellis.cli.app import FAILED, NOT_FOUND, OK, REFUSED, CommandFailed, operate
from trellis.cli.format import counted
from trellis.cli.options import (
    Targets,
    debug_option,
    filter_options,
    form_options,
    read_filters,
    read_targets,
    restrict_to_state,
    url_option,
)
from trellis.cli.output import Form, complain, progress_bar, visible, write_json, write_line

if TYPE_CHECKING:
    from trellis.insight.filters import Filters
    from trellis.insight.views import JobView
    from trellis.operations.operator import Operator
    from trellis.operations.selection import Progress, Selection, Tally, Verb

    Action = Callable[[Selection, Progress], Awaitable[Tally]]

_PREVIEWED: Final = 20
_REFUSALS_SHOWN: Final = 5
_EFFECTS: Final[dict[Verb, str]] = {
    "cancel": "cancelled or asked to stop",
    "retry": "waiting to run again",
    "replay": "waiting to run again",
    "dismiss": "dismissed",
    "clone": "cloned",
    "delete": "deleted",
}


class Request(NamedTuple):
    """What a command was asked to do."""

    verb: Verb
    targets: Targets
    filters: Filters
    form: Form
    dry_run: bool
    confirmed: bool


def action_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the targets, the filters, `--all`, `--yes`, `--dry-run` and the forms of output."""
    for add in (
        debug_option,
        url_option,
        form_options,
        click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="All jobs that allow it."),
        filter_options,
        click.argument("targets", metavar="[ID|FILTER|-]...", nargs=-1),
    ):
        command = add(command)
    return command


# -- commands ------------------------------------------------------------------------------------


@click.command("cancel")
@click.option("--force", is_flag=True, help="End running attempts now; do not wait for handlers.")
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the journal.")
@action_options
def cancel(*, force: bool, reason: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Cancel jobs: waiting ones at once; the handlers of running ones are asked to stop.

    Jobs are named by id (the beginning or the end is enough), by ids on stdin with `-`, or by the
    filters of `trellis jobs list`. Before filters change anything, the jobs are counted and you
    are asked.
    """

    def action(chosen: Selection, progress: Progress) -> Awaitable[Tally]:
        return chosen.cancel(reason, force=force, progress=progress)

    return run_action("cancel", action, given)


@click.command("retry")
@action_options
def retry(**given: Any) -> int:  # noqa: ANN401 - click's options
    """Run failed jobs again, each with a new budget of attempts.

    Jobs are named by id (the beginning or the end is enough), by ids on stdin with `-`, or by the
    filters of `trellis jobs list`. Before filters change anything, the jobs are counted and you
    are asked.
    """
    return run_action("retry", lambda chosen, progress: chosen.retry(progress=progress), given)


@click.command("clone")
@action_options
def clone(**given: Any) -> int:  # noqa: ANN401 - click's options
    """Create a new job from the definition of each job, and write the new ids.

    Jobs are named by id (the beginning or the end is enough), by ids on stdin with `-`, or by the
    filters of `trellis jobs list`. Before filters change anything, the jobs are counted and you
    are asked.
    """
    return run_action("clone", lambda chosen, progress: chosen.clone(progress=progress), given)


@click.command("delete")
@action_options
def delete(**given: Any) -> int:  # noqa: ANN401 - click's options
    """Delete ended jobs now, with their journals and logs. This cannot be undone.

    Jobs are named by id (the beginning or the end is enough), by ids on stdin with `-`, or by the
    filters of `trellis jobs list`. Before filters change anything, the jobs are counted and you
    are asked.
    """
    return run_action("delete", lambda chosen, progress: chosen.delete(progress=progress), given)


# -- execution -----------------------------------------------------------------------------------


def run_action(
    verb: Verb, action: Action, given: dict[str, Any], *, state: str | None = None
) -> int:
    """Run a command; return the exit code. `state` is the one state that the command handles."""
    targets = read_targets(given["targets"])
    filters = read_filters(targets.words, given)
    is_filtered = bool(filters)
    if state is not None:
        restrict_to_state(filters, state)
    if targets.by_id and (is_filtered or given["everything"]):
        raise click.UsageError("Name jobs by their ids or choose them by filters, not both.")
    if not (targets.by_id or is_filtered or given["everything"]):
        raise click.UsageError(
            f"Which jobs? Give ids, or filters such as type:sync since:1h, or {verb} --all."
        )
    request = Request(
        verb, targets, filters, given["form"], dry_run=given["dry_run"], confirmed=given["yes"]
    )
    return operate(given["url"], lambda jobs: _run(jobs, request, action))


async def _run(jobs: Operator, request: Request, action: Action) -> int:
    ids = request.targets.ids
    by_id = request.targets.by_id
    found = await jobs.pick(ids) if by_id else jobs.find(**request.filters)
    if len(ids) == 1:
        await jobs.get(ids[0])  # raises if a single id is wrong
    chosen = found.meant_for(request.verb)
    count = await chosen.count()
    if request.dry_run:
        await _preview(jobs, chosen, request, count)
        return OK
    if not count:
        complain("No job matches; nothing to do.")
        return OK
    if request.targets.from_stdin or not by_id:
        _confirm(request, count)
    with progress_bar(request.verb.capitalize()) as report:
        tally = await action(chosen, lambda done: report(done, count))
    return _write_result(request, tally)


def _confirm(request: Request, count: int) -> None:
    if request.confirmed:
        return
    what = f"{request.verb} {counted(count)}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            f"This would {what}, and there is no terminal to ask on. Check with --dry-run, then "
            "add --yes."
        )
    if not click.confirm(f"{what.capitalize()}?", err=True):
        complain("Nothing was done.")
        raise CommandFailed(FAILED)


async def _preview(jobs: Operator, chosen: Selection, request: Request, count: int) -> None:
    """Write the jobs that would be changed."""
    from trellis.cli.jobs import write_jobs
    from trellis.core.durations import to_datetime

    now = to_datetime(await jobs.engine.now())
    views: list[JobView] = []
    async for job in chosen:
        if request.form is Form.TABLE and len(views) == _PREVIEWED:
            break
        views.append(job)
    write_jobs(request.form, views, now)
    more = f", of which {len(views)} are shown" if len(views) < count else ""
    complain(f"Would {request.verb} {counted(count)}{more}. Nothing was done.")


def _write_result(request: Request, tally: Tally) -> int:
    """Write how many jobs were changed, refused and not found; return the exit code."""
    if request.form in (Form.JSON, Form.JSONL):
        refusals = [{"id": job_id, "reason": reason} for job_id, reason in tally.refusals]
        write_json(
            {
                "done": tally.done,
                "refused": tally.refused,
                "not_found": tally.missing,
                "ids": tally.ids,
                "refusals": refusals,
            }
        )
    elif request.form is Form.QUIET or request.verb == "clone":
        for job_id in tally.ids:
            write_line(job_id)
    parts = [f"{counted(tally.done)} {_EFFECTS[request.verb]}"] if tally.done else []
    parts += [f"{tally.refused:,} refused"] if tally.refused else []
    parts += [f"{tally.missing:,} not found"] if tally.missing else []
    complain(f"{', '.join(parts)}.")
    for job_id, reason in tally.refusals[:_REFUSALS_SHOWN]:
        complain(visible(f"  {job_id}: {reason}"))
    if tally.refused:
        return REFUSED
    return NOT_FOUND if tally.missing else OK
