"""`trellis workers`: the worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from trellis.cli.app import CommandGroup, operate
from trellis.cli.format import listed, short_duration
from trellis.cli.options import debug_option, form_options, json_option, reason_option, url_option
from trellis.cli.output import Cell, Column, Form, complain, write_each, write_json, write_table

if TYPE_CHECKING:
    from datetime import datetime

    from trellis.insight.worker_views import WorkerView
    from trellis.operations.operator import Operator

_STYLES: Final = {
    "live": "green",
    "draining": "yellow",
    "silent": "bold red",
    "offline": "red",
    "ended": "dim",
}


@click.command("workers", cls=CommandGroup, default="list")
def workers() -> None:
    """List the worker processes, and drain them."""


@workers.command("list")
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@form_options
@url_option
@debug_option
def list_command(*, ended: bool, form: Form, url: str | None) -> None:
    """List the worker processes, newest first."""
    from trellis.core.durations import to_datetime
    from trellis.insight.views import as_json

    async def load(jobs: Operator) -> tuple[list[WorkerView], datetime]:
        return await jobs.workers(ended=ended), to_datetime(await jobs.engine.now())

    found, now = operate(url, load)
    write_each(
        form,
        found,
        document=as_json,
        name=lambda worker: worker.id,
        table=lambda workers: _table(workers, now),
    )
    if form is Form.TABLE and not found:
        complain("No worker is running. Start one: trellis worker your_module:service")


def _table(found: list[WorkerView], now: datetime) -> None:
    # The default name of a worker contains its host.
    has_hosts = any(worker.host not in worker.name for worker in found)
    notes = [_note(worker) for worker in found]
    has_notes = any(notes)
    columns = (
        Column("ID"),
        Column("NAME", shrinks=True),
        *([Column("HOST", shrinks=True)] if has_hosts else []),
        Column("PID", is_number=True),
        Column("STATE"),
        Column("BUSY", is_number=True),
        Column("SEEN", is_number=True),
        Column("UPTIME", is_number=True),
        Column("VERSION"),
        Column("TYPES", shrinks=True),
        *([Column("NOTE", shrinks=True)] if has_notes else []),
    )
    write_table(
        columns,
        (
            (
                worker.id,
                worker.name,
                *([worker.host] if has_hosts else []),
                str(worker.pid),
                Cell(worker.state, _STYLES[worker.state]),
                worker.load,
                short_duration(now - worker.renewed_at),
                short_duration(now - worker.opened_at),
                worker.version or "-",
                listed(worker.types),
                *([Cell(note, "bold red")] if has_notes else []),
            )
            for worker, note in zip(found, notes, strict=True)
        ),
    )


def _note(worker: WorkerView) -> str:
    """Return what keeps a worker from working as it should; empty if nothing does."""
    notes = []
    if worker.blocked_loop is not None:
        job = f" by job {worker.blocked_loop.job_id}" if worker.blocked_loop.job_id else ""
        notes.append(f"loop blocked{job} at {worker.blocked_loop.where or 'an unknown line'}")
    if worker.lost_threads:
        types = ", ".join(sorted({each.type for each in worker.lost_threads}))
        notes.append(f"lost threads: {len(worker.lost_threads)} ({types})")
    return "; ".join(notes)


@workers.command("drain")
@click.argument("names", metavar="ID|NAME...", nargs=-1, required=True)
@reason_option
@json_option
@url_option
@debug_option
def drain_command(names: tuple[str, ...], *, reason: str, as_json: bool, url: str | None) -> None:
    """Ask worker processes to claim no more jobs, finish the ones they have, and end.

    They receive the request with their next renewal, within a third of their lease.
    """
    from trellis.insight.views import as_json as document

    async def drain(jobs: Operator) -> list[WorkerView]:
        return [await jobs.drain(name, reason=reason) for name in names]

    drained = operate(url, drain)
    if as_json:
        write_json(document(drained))
    for worker in drained:
        complain(f"Worker {worker.name} ({worker.id}) was asked to finish its jobs and end.")
