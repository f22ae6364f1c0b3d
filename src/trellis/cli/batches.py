"""`trellis batches`: list batches, show their members, seal or cancel them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import rich_click as click

from trellis.cli.app import CommandGroup, operate
from trellis.cli.format import counted, short_duration, state_cell
from trellis.cli.options import (
    debug_option,
    form_options,
    json_option,
    reason_option,
    url_option,
)
from trellis.cli.output import (
    Cell,
    Column,
    Form,
    complain,
    visible,
    write_each,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from trellis.core.batches import BatchState
    from trellis.insight.batches import BatchProgress, BatchView, MemberView
    from trellis.insight.graph import JobGraph
    from trellis.operations.operator import Operator

_ID = click.argument("batch_id", metavar="ID")
_LABEL_WIDTH: Final = 10
_limit = click.option(
    "--limit", metavar="N", default=50, type=click.IntRange(1), help="At most N (50)."
)
_STYLES: Final = {"open": "yellow", "sealed": "cyan", "finished": "green", "cancelled": "red"}


@click.command("batches", cls=CommandGroup, default="list")
def batches() -> None:
    """List batches, show their members, seal or cancel them."""


# -- reading -------------------------------------------------------------------------------------


@batches.command("list")
@click.option(
    "--state",
    type=click.Choice(("open", "sealed", "finished", "cancelled")),
    help="Only those in this state.",
)
@_limit
@form_options
@url_option
@debug_option
def list_command(*, state: BatchState | None, limit: int, form: Form, url: str | None) -> None:
    """List batches with their progress, the newest first."""
    from trellis.insight.views import as_json

    found = operate(url, lambda jobs: jobs.batches.find(state=state, limit=limit))
    write_each(form, found, document=as_json, name=lambda batch: batch.id, table=_table)
    if form is Form.TABLE and not found:
        complain("There is no such batch. A program opens one with service.batch().")


def _table(found: list[BatchView]) -> None:
    columns = (
        Column("ID"),
        Column("STATE"),
        Column("DONE", is_number=True),
        Column("MEMBERS", is_number=True),
        Column("AGE", is_number=True),
        Column("NAME", shrinks=True),
        Column("NOTE"),
    )
    now = datetime.now(UTC)
    write_table(columns, (_row(batch, now) for batch in found))


def _row(batch: BatchView, now: datetime) -> tuple[str | Cell, ...]:
    progress = batch.progress
    return (
        batch.id,
        Cell(batch.state, _STYLES[batch.state]),
        "-" if progress is None else _percent(progress),
        "-" if progress is None else f"{progress.total:,}",
        short_duration(now - batch.created_at),
        batch.name or f"{batch.service}, then {batch.then or 'nothing'}",
        "" if progress is None else _note(progress),
    )


def _percent(progress: BatchProgress) -> str:
    """Return how far a batch is; rounded down, so that 100 % means that all has finished."""
    return f"{int(progress.percent)} %"


def _note(progress: BatchProgress) -> str:
    return f"{progress.unsuccessful:,} unsuccessful" if progress.unsuccessful else ""


@batches.command("show")
@_ID
@click.option("--members/--no-members", default=True, help="Also list the members (yes).")
@click.option("--tree", is_flag=True, help="Show it as a tree, with the batches in it.")
@click.option("--dot", is_flag=True, help="Write it for Graphviz: ... --dot | dot -Tsvg > b.svg")
@_limit
@json_option
@url_option
@debug_option
def show_command(
    batch_id: str,
    *,
    members: bool,
    tree: bool,
    dot: bool,
    limit: int,
    as_json: bool,
    url: str | None,
) -> None:
    """Show a batch: how far it is, its members and the batches in it."""
    if tree + dot + as_json > 1:
        raise click.UsageError("Use only one of --tree, --dot and --json.")
    if tree or dot:
        _draw(operate(url, lambda jobs: jobs.batches.graph(batch_id, limit)), dot=dot)
        return
    batch, some = operate(url, lambda jobs: _load(jobs, batch_id, limit if members else 0))
    if as_json:
        from trellis.insight.views import as_json as document

        write_json({**document(batch), "members": document(some)})
        return
    for label, text in _details(batch):
        write_line(f"{label:<{_LABEL_WIDTH}} {visible(text)}".rstrip())
    if some:
        write_line("")
        columns = (Column("ID"), Column("TYPE"), Column("STATE"), Column("ERROR", shrinks=True))
        write_table(columns, map(_member_row, some))
    total = 0 if batch.progress is None else batch.progress.total
    if len(some) < total and members:
        complain(f"{len(some):,} of {total:,} members. Show more with --limit.")


async def _load(jobs: Operator, batch_id: str, limit: int) -> tuple[BatchView, list[MemberView]]:
    batch = await jobs.batches.get(batch_id)
    some: list[MemberView] = []
    if limit:
        async for member in jobs.batches.members(batch.id):
            some.append(member)
            if len(some) >= limit:
                break
    return batch, some


def _draw(graph: JobGraph, *, dot: bool) -> None:
    from trellis.cli.job_graph import write_tree
    from trellis.insight.pictures import as_dot

    if dot:
        write_line(as_dot(graph))
    else:
        write_tree(graph)
    hidden = sum(batch.hidden for batch in graph.batches)
    if hidden or graph.is_cut:
        complain(f"{counted(hidden, 'member')} not shown. Show more with --limit.")


def _member_row(member: MemberView) -> tuple[str | Cell, ...]:
    error = "" if member.error is None else str(member.error)
    return member.id, member.type, state_cell(member.state), error


def _details(batch: BatchView) -> list[tuple[str, str]]:
    name = f" ({batch.name})" if batch.name else ""
    lines = [("batch", f"{batch.id}{name}, service {batch.service}"), ("state", batch.state)]
    if batch.progress is not None:
        counts = ", ".join(f"{number:,} {state}" for state, number in batch.progress.counts.items())
        text = f"{_percent(batch.progress)} of {counted(batch.progress.total, 'member')}"
        if batch.progress.batches:
            text += f" and {counted(batch.progress.batches, 'batch', 'batches')}"
        lines.append(("progress", f"{text}: {counts}" if counts else text))
    when = "all have succeeded" if batch.fire_on == "success" else "all have finished"
    if batch.then is not None:
        lines.append(("then", f"{batch.then} when {when}"))
    if batch.fan_in is not None:
        lines.append(("fan-in", f"job {batch.fan_in}"))
    if batch.on_failure == "cancel_rest":
        lines.append(("on failure", "the rest is cancelled"))
    if batch.parent is not None:
        lines.append(("part of", f"batch {batch.parent}"))
    lines += [("contains", f"batch {child.id}, {child.state}") for child in batch.children]
    if batch.state == "open":
        advice = f"trellis batches seal {batch.id}"
        lines.append(("note", f"It takes members. If its creator is gone, seal it: {advice}"))
    return lines


# -- changing ------------------------------------------------------------------------------------


@batches.command("seal")
@_ID
@reason_option
@json_option
@url_option
@debug_option
def seal_command(batch_id: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """Let a batch finish without further members, because its creator is gone."""
    _change(url, lambda jobs: jobs.batches.seal(batch_id, reason=reason), as_json=as_json)


@batches.command("cancel")
@_ID
@reason_option
@json_option
@url_option
@debug_option
def cancel_command(batch_id: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """Cancel the members that have not finished, and create no fan-in job."""
    _change(url, lambda jobs: jobs.batches.cancel(batch_id, reason=reason), as_json=as_json)


def _change(
    url: str | None, change: Callable[[Operator], Awaitable[BatchView]], *, as_json: bool
) -> None:
    from trellis.insight.views import as_json as document

    batch = operate(url, change)
    if as_json:
        write_json(document(batch))
    complain(f"Batch {batch.id} is {batch.state}.")


@batches.command("retry-failed")
@_ID
@reason_option
@json_option
@url_option
@debug_option
def retry_failed_command(batch_id: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """Run the members that failed or are dead again; the batch itself does not fire again."""
    number = operate(url, lambda jobs: jobs.batches.retry_failed(batch_id, reason=reason))
    if as_json:
        write_json({"retried": number})
    if number:
        complain(f"{counted(number)} of the batch waiting to run again.")
    else:
        complain("No member of the batch is failed or dead, so nothing was changed.")
