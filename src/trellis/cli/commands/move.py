"""`trellis move`: carry the jobs of a SQLite file to PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.options import debug_option, engine_at, json_option
from trellis.engines.redaction import shown

if TYPE_CHECKING:
    from trellis.operations.transfer import Moved


@click.command("move")
@click.option("--from", "source", metavar="URL", required=True, help="Where the jobs are: sqlite.")
@click.option("--to", "target", metavar="URL", required=True, help="Where they go: postgresql.")
@click.option("--history", is_flag=True, help="Take ended jobs along too, not only dead ones.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be moved.")
@json_option
@debug_option
def command(*, source: str, target: str, history: bool, dry_run: bool, as_json: bool) -> None:
    """Move the jobs of a SQLite file to a PostgreSQL database.

    Waiting, delayed, retrying and dead jobs go, with ids, journals, logs, keys and the settings of
    queues. Stop the workers first: it refuses while one lives or a job is active. The target must
    have its tables: trellis migrate --url URL.

    The file is sealed before the first job is copied: it can be read, but nobody can create, start
    or change a job in it any more, so no job can run in both places. If this is interrupted, run
    it again: it goes on where it was.
    """
    import asyncio  # noqa: PLC0415 - loaded when asked for

    from trellis.cli.writing import write_json, write_line  # noqa: PLC0415 - as above

    moved = asyncio.run(_move(source, target, history=history, dry_run=dry_run))
    if as_json:
        write_json(_document(source, target, moved))
    else:
        write_line(_sentence(source, target, moved))


async def _move(source: str, target: str, *, history: bool, dry_run: bool) -> Moved:
    from trellis.cli.terminal import progress_bar  # noqa: PLC0415 - loaded when asked for
    from trellis.operations.transfer import Endpoint, move  # noqa: PLC0415 - as above

    here = Endpoint(engine_at(source, create=False), shown(source))
    there = Endpoint(engine_at(target, create=False), shown(target))
    try:
        await here.engine.open()
        await there.engine.open()
        with progress_bar("Moving jobs") as progress:
            return await move(here, there, history=history, dry_run=dry_run, progress=progress)
    finally:
        await there.engine.close()
        await here.engine.close()


def _document(source: str, target: str, moved: Moved) -> dict[str, Any]:
    return {
        "from": shown(source),
        "to": shown(target),
        "finished": moved.is_finished,
        "states": moved.states,
        "moved": moved.carried,
        "already_there": moved.known,
        "left_behind": moved.left,
        "queue_settings": moved.queues,
    }


def _sentence(source: str, target: str, moved: Moved) -> str:
    from trellis.cli.spoken import counted  # noqa: PLC0415 - loaded when asked for

    total = sum(moved.states.values())
    states = ", ".join(f"{count:,} {state}" for state, count in moved.states.items()) or "none"
    left = f" {counted(moved.left)} that ended stay behind; --history takes them along."
    rest = left if moved.left else ""
    if not moved.is_finished:
        there = f", of which {moved.known:,} are there already" if moved.known else ""
        what = f"Would move {counted(total)} ({states}) to {shown(target)}{there}."
        return f"{what}{rest} Nothing was done."
    before = f"; {moved.known:,} were there already" if moved.known else ""
    return (
        f"{counted(moved.carried)} moved to {shown(target)} ({states}{before}).{rest} "
        f"{shown(source)} can only be read from now on; set TRELLIS_URL to the new URL."
    )
