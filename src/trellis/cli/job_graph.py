"""`trellis jobs graph`: the jobs that are connected to one job, as a tree or for Graphviz."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.app import operate
from trellis.cli.options import debug_option, json_option, url_option
from trellis.cli.output import complain, visible, write_json, write_line

if TYPE_CHECKING:
    from trellis.insight.graph import JobGraph


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
    """Show the jobs that a job waits for, those that wait for it, and the jobs that created them.

    A job that follows several others stands below each of them. Payloads are not shown.
    """
    from trellis.insight.graph import as_dot
    from trellis.insight.views import as_json as document

    if dot and as_json:
        raise click.UsageError("Use only one of --dot and --json.")
    found = operate(url, lambda jobs: jobs.graph(job_id, limit))
    if as_json:
        write_json(document(found))
    elif dot:
        write_line(as_dot(found))
    else:
        _write_tree(found)
    if found.is_cut:
        complain(f"There are more than {limit:,} connected jobs. Show more with --limit.")


def _write_tree(found: JobGraph) -> None:
    from trellis.insight.graph import tree_lines

    for before, job, was_shown in tree_lines(found):
        name = visible(job.name)
        state = "(see above)" if was_shown else str(job.state)
        mark = "  ←" if job.id == found.job and not was_shown else ""
        write_line(f"{before}{job.id}  {name}  {state}{mark}")
