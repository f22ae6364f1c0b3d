"""`trellis jobs graph`: the jobs and batches around one job, as a tree or for Graphviz."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.app import operate
from trellis.cli.options import debug_option, json_option, url_option
from trellis.cli.output import complain, visible, write_json, write_line

if TYPE_CHECKING:
    from trellis.insight.graph import JobGraph
    from trellis.insight.pictures import Shape


@click.command("graph")
@click.argument("job_id", metavar="ID")
@click.option("--dot", is_flag=True, help="Write it for Graphviz: ... --dot | dot -Tsvg > jobs.svg")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=200, show_default=True, metavar="N",
    help="At most this number of jobs.",
)  # fmt: skip
@json_option
@url_option
@debug_option
def graph(job_id: str, *, dot: bool, limit: int, as_json: bool, url: str | None) -> None:
    """Show what is connected to a job: jobs it waits for, parents, children, batches.

    A job that follows several others stands below each of them. Of many children of a job, or
    members of a batch, some are shown. Payloads are not shown.
    """
    from trellis.insight.pictures import as_dot
    from trellis.insight.views import as_json as document

    if dot and as_json:
        raise click.UsageError("Use only one of --dot and --json.")
    found = operate(url, lambda jobs: jobs.graph(job_id, limit))
    if as_json:
        write_json(document(found))
    elif dot:
        write_line(as_dot(found))
    else:
        write_tree(found)
    if found.is_cut:
        complain(f"There are more than {limit:,} connected jobs. Show more with --limit.")


def write_tree(found: JobGraph) -> None:
    """Write a graph as a tree of lines."""
    from trellis.insight.pictures import tree_lines

    for before, shape, is_repeated in tree_lines(found):
        write_line(before + _in_words(shape, found.job, is_repeated=is_repeated))


def _in_words(shape: Shape, asked: str | None, *, is_repeated: bool) -> str:
    from trellis.cli.format import counted
    from trellis.insight.graph import GraphBatch, GraphJob
    from trellis.insight.pictures import Planned, Rest

    match shape:
        case GraphJob(id=name):
            state = "(see above)" if is_repeated else str(shape.state)
            mark = "  ←" if name == asked and not is_repeated else ""
            return f"{name}  {visible(shape.name)}  {state}{mark}"
        case GraphBatch():
            title = f"  {visible(shape.name)}" if shape.name else ""
            return f"batch {shape.id}{title}  {shape.state}, {counted(shape.members, 'member')}"
        case Rest(number, command):
            more = "more" if number is None else f"and {number:,} more"
            return f"… {more}: {command}"
        case Planned(name):
            return f"{visible(name)}  (not created yet)"
