"""Commands that change many jobs: `trellis jobs cancel`, `move`, `set`, `retry`, ..., and of `dlq`.

Jobs that are named by id on the command line are changed without a question. Jobs that a filter or
stdin chooses are counted first: on a terminal the user is asked, elsewhere `--yes` is required.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from inspect import cleandoc
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
    reason_option,
    restrict_to_state,
    url_option,
)
from trellis.cli.output import Form, complain, progress_bar, visible, write_json, write_line

if TYPE_CHECKING:
    from trellis.insight.filters import Filters
    from trellis.insight.views import JobView
    from trellis.operations.operator import Operator
    from trellis.operations.selection import Progress, Selection, Tally, Verb

    Action = Callable[[Operator, Selection, Progress], Awaitable[Tally]]

_PREVIEWED: Final = 20
_REFUSALS_SHOWN: Final = 5
#: Filters that match ended jobs only.
_OF_ENDED_JOBS: Final = frozenset({"--failed", "--finished-after", "--finished-before"})
_EFFECTS: Final[dict[Verb, str]] = {
    "cancel": "cancelled",
    "move": "moved",
    "set": "changed",
    "retry": "waiting to run again",
    "retry items": "waiting to run again for failed items",
    "replay": "waiting to run again",
    "dismiss": "dismissed",
    "clone": "cloned",
    "delete": "deleted",
}


class Wording(NamedTuple):
    """What a command does, in the words before and after the number of jobs."""

    before: str
    after: str = ""

    def about(self, count: int) -> str:
        """Return what would be done to this many jobs."""
        return f"{self.before} {counted(count)}{self.after}"


class Request(NamedTuple):
    """What a command was asked to do."""

    verb: Verb
    wording: Wording
    targets: Targets
    filters: Filters
    form: Form
    dry_run: bool
    confirmed: bool


#: How each of these commands takes its jobs, for its help.
_NAMING: Final = """

Jobs are named by id (the beginning or the end is enough), by ids on stdin with `-`, or by the
filters of `trellis jobs list`. Before filters change anything, the jobs are counted and you
are asked.
"""


def action_options(
    command: Callable[..., Any], without: Collection[str] = ()
) -> Callable[..., Any]:
    """Add the targets, the filters, `--all`, `--yes`, `--dry-run` and the forms of output.

    `without` are the filters that have no option; the help says how jobs are named.
    """
    command.__doc__ = cleandoc(command.__doc__ or "") + _NAMING
    for add in (
        debug_option,
        url_option,
        form_options,
        click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="All jobs that allow it."),
        partial(filter_options, without=without),
        click.argument("targets", metavar="[ID|FILTER|-]...", nargs=-1),
    ):
        command = add(command)
    return command


# -- commands ------------------------------------------------------------------------------------


@click.command("cancel")
@click.option("--force", is_flag=True, help="End running attempts now; do not wait for handlers.")
@reason_option
@action_options
def cancel(*, force: bool, reason: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Cancel jobs: waiting ones at once; the handlers of running ones are asked to stop."""

    def action(_: Operator, chosen: Selection, progress: Progress) -> Awaitable[Tally]:
        return chosen.cancel(reason, force=force, progress=progress)

    return run_action("cancel", action, given)


@click.command("move")
@click.option("--queue", required=True, metavar="NAME", help="The queue to wait in.")
@reason_option
@partial(action_options, without={"--queue", *_OF_ENDED_JOBS})
def move(*, queue: str, reason: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Move jobs that wait or run to another queue of their service.

    Workers run the jobs of their types in any queue, unless --queues narrows them. Filters name
    the present queue with `queue:NAME`.
    """

    def action(_: Operator, chosen: Selection, progress: Progress) -> Awaitable[Tally]:
        return chosen.adjust(queue=queue, reason=reason, progress=progress)

    wording = Wording("move", f" to queue {visible(queue)}")
    return run_action("move", action, given, wording=wording)


@click.command("set")
@click.option("--priority", type=click.IntRange(-4, 4), metavar="N", help="-4 last, 4 first.")
@click.option("--run-at", metavar="WHEN", help="Start no earlier: 10m, 18:00, 2030-01-01, now.")
@click.option("--attempts", type=click.IntRange(1), metavar="N", help="How many it has in all.")
@reason_option
@partial(action_options, without=_OF_ENDED_JOBS)
def set(  # noqa: A001 - the name of the command
    *,
    priority: int | None,
    run_at: str | None,
    attempts: int | None,
    reason: str,
    **given: Any,  # noqa: ANN401 - click's options
) -> int:
    """Change the priority, the due time or the attempts of jobs that wait or run.

    The due time of a running job cannot change. All other policies are those of the worker that
    claims the job: change them in the code.
    """
    values = {"priority": priority, "due time": run_at, "attempts": attempts}
    changes = [f"{name} {value}" for name, value in values.items() if value is not None]
    if not changes:
        raise click.UsageError("What should change? Give --priority, --run-at or --attempts.")
    if run_at is not None:
        _moment(run_at, datetime.now(UTC))  # refuses what is no time before anything is asked

    async def action(jobs: Operator, chosen: Selection, progress: Progress) -> Tally:
        moment = None if run_at is None else _moment(run_at, await _engine_time(jobs))
        return await chosen.adjust(
            priority=priority,
            run_at=moment,
            attempts=attempts,
            reason=reason,
            progress=progress,
        )

    wording = Wording(f"set {visible(', '.join(changes))} for")
    return run_action("set", action, given, wording=wording)


def _moment(text: str, now: datetime) -> datetime:
    from trellis.insight.time_expressions import parse_moment

    return parse_moment(text, now, "future")


async def _engine_time(jobs: Operator) -> datetime:
    from trellis.core.durations import to_datetime

    return to_datetime(await jobs.engine.now())


@click.command("retry")
@click.option(
    "--failed-items",
    is_flag=True,
    help="Only for the items that are not finished; also of dead and partly completed jobs.",
)
@reason_option
@action_options
def retry(*, failed_items: bool, reason: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Run failed jobs again, each with a new budget of attempts.

    With --failed-items, handlers that ask for `job.items.pending(...)` do only what earlier
    attempts have not finished.
    """

    def action(_: Operator, chosen: Selection, progress: Progress) -> Awaitable[Tally]:
        return chosen.retry(failed_items=failed_items, reason=reason, progress=progress)

    if failed_items:
        wording = Wording("retry the failed items of")
        return run_action("retry items", action, given, wording=wording)
    return run_action("retry", action, given)


@click.command("clone")
@reason_option
@action_options
def clone(*, reason: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Create a new job from the definition of each job, and write the new ids."""

    def action(_: Operator, chosen: Selection, progress: Progress) -> Awaitable[Tally]:
        return chosen.clone(reason=reason, progress=progress)

    return run_action("clone", action, given)


@click.command("delete")
@reason_option
@action_options
def delete(*, reason: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Delete ended jobs now, with their journals and logs. This cannot be undone."""

    def action(_: Operator, chosen: Selection, progress: Progress) -> Awaitable[Tally]:
        return chosen.delete(reason=reason, progress=progress)

    return run_action("delete", action, given)


# -- execution -----------------------------------------------------------------------------------


def run_action(
    verb: Verb,
    action: Action,
    given: dict[str, Any],
    *,
    wording: Wording | None = None,
    state: str | None = None,
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
            "Which jobs? Give ids, or filters such as type:sync since:1h, or --all."
        )
    _leave_out_impossible(verb, filters)
    request = Request(
        verb,
        wording or Wording(verb),
        targets,
        filters,
        given["form"],
        dry_run=given["dry_run"],
        confirmed=given["yes"],
    )
    return operate(given["url"], lambda jobs: _run(jobs, request, action))


def _leave_out_impossible(verb: Verb, filters: Filters) -> None:
    """Remove the named states that never allow the verb; raise if no named state allows it."""
    from trellis.insight.filters import read_states
    from trellis.operations.selection import ALLOWED

    named = read_states(filters.get("state"))
    possible = [state for state in named if state in ALLOWED[verb]]
    left_out = ", ".join(state for state in named if state not in possible)
    if not left_out:
        return
    also = " Bring dead letters back with: trellis dlq replay" if verb == "retry" else ""
    also = also if "dead" in named else ""
    if not possible:
        allowed = ", ".join(sorted(ALLOWED[verb]))
        raise click.UsageError(
            f"This is not possible for jobs that are {left_out}, only for: {allowed}. Nothing was "
            f"done.{also}"
        )
    complain(f"Left out, because this is not possible for them: jobs that are {left_out}.{also}")
    filters["state"] = possible


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
        tally = await action(jobs, chosen, lambda done: report(done, count))
    return _write_result(request, tally)


def _confirm(request: Request, count: int) -> None:
    if request.confirmed:
        return
    what = request.wording.about(count)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            f"This would {what}, and there is no terminal to ask on. Check with --dry-run, then "
            "add --yes."
        )
    with _interrupted_at_once():
        is_confirmed = click.confirm(f"{what[0].upper()}{what[1:]}?", err=True)
    if not is_confirmed:
        complain("Nothing was done.")
        raise CommandFailed(FAILED)


@contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """Let Ctrl-C end a question: asyncio only cancels the task, which waits for the answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _preview(jobs: Operator, chosen: Selection, request: Request, count: int) -> None:
    """Write the jobs that would be changed."""
    from trellis.cli.jobs import write_jobs

    now = await _engine_time(jobs)
    views: list[JobView] = []
    async for job in chosen:
        if request.form is Form.TABLE and len(views) == _PREVIEWED:
            break
        views.append(job)
    write_jobs(request.form, views, now)
    more = f", of which {len(views)} are shown" if len(views) < count else ""
    complain(f"Would {request.wording.about(count)}{more}. Nothing was done.")


def _write_result(request: Request, tally: Tally) -> int:
    """Write how many jobs were changed, refused and not found; return the exit code."""
    if request.form in (Form.JSON, Form.JSONL):
        refusals = [{"id": job_id, "reason": reason} for job_id, reason in tally.refusals]
        write_json(
            {
                "done": tally.done,
                "asked_to_stop": tally.asked,
                "refused": tally.refused,
                "not_found": tally.missing,
                "ids": tally.ids,
                "refusals": refusals,
            }
        )
    elif request.form is Form.QUIET or request.verb == "clone":
        for job_id in tally.ids:
            write_line(job_id)
    done = tally.done - tally.asked
    parts = [f"{counted(done)} {_EFFECTS[request.verb]}"] if done else []
    parts += [f"{counted(tally.asked)} asked to stop"] if tally.asked else []
    parts += [f"{tally.refused:,} refused"] if tally.refused else []
    parts += [f"{tally.missing:,} not found"] if tally.missing else []
    complain(f"{', '.join(parts)}.")
    for job_id, reason in tally.refusals[:_REFUSALS_SHOWN]:
        complain(visible(f"  {job_id}: {reason}"))
    if tally.refused:
        return REFUSED
    return NOT_FOUND if tally.missing else OK
