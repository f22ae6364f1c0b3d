"""`trellis queues`: how many jobs each queue has, and whether it is paused or draining."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.app import CommandGroup, operate
from trellis.cli.format import counted
from trellis.cli.options import debug_option, form_options, json_option, url_option
from trellis.cli.output import Cell, Column, Form, complain, write_each, write_json, write_table

if TYPE_CHECKING:
    from trellis.insight.views import QueueView
    from trellis.operations.operator import Operator

    Change = Callable[[Operator, str], Awaitable[QueueView]]


@click.command("queues", cls=CommandGroup, default="list")
def queues() -> None:
    """List queues; pause, drain or resume them."""


@queues.command("list")
@form_options
@url_option
@debug_option
def list_command(*, form: Form, url: str | None) -> None:
    """List every queue that has jobs or settings."""
    from trellis.insight.views import as_json

    found = operate(url, lambda jobs: jobs.queues())
    write_each(
        form,
        found,
        document=as_json,
        name=lambda queue: f"{queue.service}/{queue.queue}",
        table=_table,
    )
    if form is Form.TABLE and not found:
        complain("There is no queue: no job was created here, or all have been removed.")


def _table(found: list[QueueView]) -> None:
    columns = (
        Column("QUEUE", shrinks=True),
        Column("WAITING", is_number=True),
        Column("ACTIVE", is_number=True),
        Column("NOTE"),
    )
    write_table(
        columns,
        (
            (
                f"{queue.service}/{queue.queue}",
                f"{queue.waiting:,}",
                f"{queue.active:,}",
                Cell(_note(queue), "yellow"),
            )
            for queue in found
        ),
    )


def _note(queue: QueueView) -> str:
    return ", ".join(word for word in ("paused", "draining") if getattr(queue, word))


def _changing(command: Callable[..., None]) -> Callable[..., None]:
    """Add what the commands that change queues take."""
    for add in (
        debug_option,
        url_option,
        json_option,
        click.argument("names", metavar="SERVICE/QUEUE...", nargs=-1, required=True),
    ):
        command = add(command)
    return command


@queues.command("pause")
@_changing
def pause_command(names: tuple[str, ...], *, as_json: bool, url: str | None) -> None:
    """Start no more jobs of these queues; new ones are still accepted."""
    _change(url, names, lambda jobs, name: jobs.pause(name), "is paused", as_json=as_json)


@queues.command("resume")
@_changing
def resume_command(names: tuple[str, ...], *, as_json: bool, url: str | None) -> None:
    """Start and accept jobs of these queues again."""
    _change(url, names, lambda jobs, name: jobs.resume(name), "is open", as_json=as_json)


@queues.command("drain")
@_changing
def drain_command(names: tuple[str, ...], *, as_json: bool, url: str | None) -> None:
    """Accept no new jobs in these queues; the jobs in them are still run."""
    _change(url, names, lambda jobs, name: jobs.drain_queue(name), "is draining", as_json=as_json)


def _change(
    url: str | None, names: tuple[str, ...], change: Change, effect: str, *, as_json: bool
) -> None:
    """Change these queues and report the effect."""
    from trellis.insight.views import as_json as document

    async def work(jobs: Operator) -> list[tuple[QueueView, bool]]:
        changed = []
        for name in names:
            queue = await change(jobs, name)
            jobs_there = await jobs.find(service=queue.service, queue=queue.queue).count()
            changed.append((queue, bool(jobs_there)))
        return changed

    changed = operate(url, work)
    if as_json:
        write_json([document(queue) for queue, _ in changed])
    for queue, is_known in changed:
        name = f"{queue.service}/{queue.queue}"
        complain(f"Queue {name} {effect}; {counted(queue.waiting)} waiting there.")
        if not is_known:
            complain(f"  No job of {name} is stored. Check the name.")
