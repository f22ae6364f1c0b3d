"""`trellis move`: move jobs between SQLite, PostgreSQL and NATS JetStream."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.app import current_actor, engine_at
from trellis.cli.format import counted
from trellis.cli.options import debug_option, json_option, reason_option
from trellis.cli.output import progress_bar, write_json, write_line
from trellis.engines import is_nats
from trellis.engines.audit import By
from trellis.engines.redaction import shown

if TYPE_CHECKING:
    from trellis.operations.transfer import Moved


@click.command("move")
@click.option("--from", "source", metavar="URL", required=True, help="Where the jobs are.")
@click.option("--to", "target", metavar="URL", required=True, help="Where they go.")
@click.option("--history", is_flag=True, help="Also move ended jobs, not only dead ones.")
@click.option("--dry-run", is_flag=True, help="Change nothing; write what would be moved.")
@reason_option
@json_option
@debug_option
def move(
    *, source: str, target: str, history: bool, dry_run: bool, reason: str, as_json: bool
) -> None:
    """Move the jobs of a store to another: sqlite, postgresql or nats.

    Waiting, delayed, retrying and dead jobs are moved, with ids, journals, logs, keys, batches,
    schedules and their ledgers, the settings of queues and the audit. Stop the workers first: the
    command refuses while a worker is live or a job is active. The target must have its tables
    or streams: trellis migrate --url URL.

    The source is made read-only before the first job is copied, so that no job can be created,
    started or changed in it and no job can run in both stores. If the command is interrupted, run
    it again: it continues.
    """
    import asyncio

    moved = asyncio.run(
        _move(source, target, By(current_actor(), reason), history=history, dry_run=dry_run)
    )
    if as_json:
        write_json(_document(source, target, moved))
    else:
        write_line(_sentence(source, target, moved))


async def _move(source: str, target: str, by: By, *, history: bool, dry_run: bool) -> Moved:
    from trellis.operations.transfer import Endpoint, move

    async with AsyncExitStack() as stack:
        engines = [engine_at(url, create=False) for url in (source, target)]
        for engine in engines:
            stack.push_async_callback(engine.close)
            await engine.open()
        exporter = None
        if is_nats(source):
            from trellis.admin.export import stream_exporter

            exporter = await stack.enter_async_context(stream_exporter(source))
        here = Endpoint(engines[0], shown(source), exporter)
        there = Endpoint(engines[1], shown(target))
        with progress_bar("Moving jobs") as progress:
            return await move(here, there, by, history=history, dry_run=dry_run, progress=progress)


def _document(source: str, target: str, moved: Moved) -> dict[str, Any]:
    return {
        "from": shown(source),
        "to": shown(target),
        "finished": moved.is_finished,
        "states": moved.states,
        "moved": moved.copied,
        "already_moved": moved.known,
        "not_moved": moved.left,
        "queue_settings": moved.queues,
        "schedules": moved.schedules,
    }


def _sentence(source: str, target: str, moved: Moved) -> str:
    total = sum(moved.states.values())
    states = ", ".join(f"{count:,} {state}" for state, count in moved.states.items()) or "none"
    ended = f" {counted(moved.left)} that ended stay at the source; --history moves them, too."
    rest = ended if moved.left else ""
    if not moved.is_finished:
        known = f", of which {moved.known:,} were moved before" if moved.known else ""
        what = f"Would move {counted(total)} ({states}) to {shown(target)}{known}."
        return f"{what}{rest} Nothing was done."
    before = f"; {moved.known:,} were moved before" if moved.known else ""
    return (
        f"{counted(moved.copied)} moved to {shown(target)} ({states}{before}).{rest} "
        f"{shown(source)} can only be read from now on; set TRELLIS_URL to the new URL."
    )
