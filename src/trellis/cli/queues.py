"""`trellis queues`: how many jobs each queue has, and whether it is paused or draining."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.aging import aging
from trellis.cli.app import CommandGroup, operate
from trellis.cli.contract_plan import accept_command, plan_command
from trellis.cli.drain import drain_in_words
from trellis.cli.format import RATE_COLUMNS, counted, oldest, rate_cells, window_in_words
from trellis.cli.limits import limit_in_words, limits_command, set_command
from trellis.cli.options import debug_option, form_options, json_option, reason_option, url_option
from trellis.cli.output import Cell, Column, Form, complain, write_each, write_json, write_table

if TYPE_CHECKING:
    from datetime import datetime

    from trellis.insight.shared_views import DrainView, QueueView
    from trellis.operations.operator import Operator

    Change = Callable[[Operator, str, str], Awaitable[QueueView]]


@click.command("queues", cls=CommandGroup, default="list")
def queues() -> None:
    """List queues; pause, drain, limit or resume them; plan contract changes."""


queues.add_command(set_command)
queues.add_command(limits_command)
queues.add_command(plan_command)
queues.add_command(accept_command)


queues.add_command(aging)


@queues.command("list")
@form_options
@url_option
@debug_option
def list_command(*, form: Form, url: str | None) -> None:
    """List every queue that has jobs or settings.

    OLDEST is how long the job has waited that could have started first. RUN/MIN and FAIL/MIN are
    attempts that began and that failed, per minute; MEDIAN is the time that half of the jobs took
    at most.
    """
    from trellis.core.durations import to_datetime
    from trellis.insight.views import as_json

    async def load(jobs: Operator) -> tuple[list[QueueView], list[DrainView], datetime]:
        found, drains = await jobs.queues(), await jobs.drain_history(1)
        return found, drains, to_datetime(await jobs.engine.now())

    found, drains, now = operate(url, load)
    write_each(
        form,
        found,
        document=as_json,
        name=lambda queue: f"{queue.service}/{queue.queue}",
        table=lambda queues: _table(queues, now),
    )
    if form is Form.TABLE and not found:
        complain("There is no queue: no job was created here, or all have been removed.")
    if form is Form.TABLE and drains and drains[0].on:
        complain(drain_in_words(drains[0]))


def _table(found: list[QueueView], now: datetime) -> None:
    columns = (
        Column("QUEUE"),
        Column("WAITING", is_number=True),
        Column("OLDEST", is_number=True),
        Column("ACTIVE", is_number=True),
        *(column._replace(is_optional=True) for column in RATE_COLUMNS),
        Column("NOTE"),
    )
    has_rates = write_table(
        columns,
        (
            (
                f"{queue.service}/{queue.queue}",
                f"{queue.waiting:,}",
                oldest(queue.rates, now),
                f"{queue.active:,}",
                *rate_cells(queue.rates),
                Cell(_note(queue), "yellow"),
            )
            for queue in found
        ),
    )
    if found and has_rates:
        complain(window_in_words(found[0].rates))


def _note(queue: QueueView) -> str:
    words = [word for word in ("paused", "draining") if getattr(queue, word)]
    if queue.limit is not None:
        words.append(limit_in_words(queue.limit))
    return ", ".join(words)


def _changing(command: Callable[..., None]) -> Callable[..., None]:
    """Add what the commands that change queues take."""
    for add in (
        debug_option,
        url_option,
        json_option,
        reason_option,
        click.argument("names", metavar="SERVICE/QUEUE...", nargs=-1, required=True),
    ):
        command = add(command)
    return command


@queues.command("pause")
@_changing
def pause_command(names: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - click's options
    """Start no more jobs of these queues; new ones are still accepted."""
    _change(names, lambda jobs, name, reason: jobs.pause(name, reason=reason), "is paused", **given)


@queues.command("resume")
@_changing
def resume_command(names: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - click's options
    """Start and accept jobs of these queues again."""
    _change(names, lambda jobs, name, reason: jobs.resume(name, reason=reason), "is open", **given)


@queues.command("drain")
@_changing
def drain_command(names: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - click's options
    """Accept no new jobs in these queues; the jobs in them are still run."""
    _change(
        names,
        lambda jobs, name, reason: jobs.drain_queue(name, reason=reason),
        "is draining",
        **given,
    )


def _change(
    names: tuple[str, ...],
    change: Change,
    effect: str,
    *,
    reason: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Change these queues and report the effect."""
    from contextlib import suppress

    from trellis.errors import ProjectionUnavailable
    from trellis.insight.views import as_json as document

    async def work(jobs: Operator) -> list[tuple[QueueView, int | None]]:
        changed = []
        for name in names:
            queue = await change(jobs, name, reason)
            found: int | None = None
            with suppress(ProjectionUnavailable):
                found = await jobs.find(service=queue.service, queue=queue.queue).count()
            changed.append((queue, found))
        return changed

    changed = operate(url, work)
    if as_json:
        write_json([document(queue) for queue, _ in changed])
    for queue, found in changed:
        name = f"{queue.service}/{queue.queue}"
        if found is None:
            complain(f"Queue {name} {effect}. No admin runtime answers that could count its jobs.")
            continue
        complain(f"Queue {name} {effect}; {counted(queue.waiting)} waiting there.")
        if not found:
            complain(f"  No job of {name} is stored. Check the name.")
