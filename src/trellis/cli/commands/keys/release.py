"""`trellis keys release`: free a key that a lost attempt blocks."""

from __future__ import annotations

from typing import Literal

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option


@click.command("release")
@click.argument("held", metavar="KEY|ID")
@click.option(
    "--then",
    type=click.Choice(("retry", "fail")),
    default="retry",
    help="What becomes of the job that holds it (retry).",
)
@json_option
@url_option
@debug_option
def command(held: str, *, then: Literal["retry", "fail"], as_json: bool, url: str | None) -> None:
    """Free a key whose holder was lost, when you know that its work has stopped.

    Only keys of types with on_lost="block" are ever blocked. Name the key, or the job that holds
    it. A key whose holder still runs is not freed: cancel the job instead.
    """
    from trellis.cli.exits import complain  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.place import operate  # noqa: PLC0415 - as above
    from trellis.cli.writing import write_json  # noqa: PLC0415 - as above
    from trellis.insight.views import as_json as document  # noqa: PLC0415 - as above

    job = operate(url, lambda jobs: jobs.release_key(held, then))
    if as_json:
        write_json(document(job))
    complain(f"Key {job.key!r} is free; job {job.id} is {job.state}.")
