"""A live picture of what is going on; where there is no terminal, one picture."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from trellis.cli.place import operate
from trellis.cli.spoken import briefly, listed, state_cell
from trellis.cli.tables import Cell, Column, make_table
from trellis.cli.terminal import is_lively, output
from trellis.cli.writing import write_json
from trellis.core.durations import SECOND
from trellis.core.states import State
from trellis.declaration import checks
from trellis.insight.overview import COUNTED_STATES, Overview, RunningJob, overview
from trellis.insight.views import as_json
from trellis.operations.operator import Operator

_ENDLESS: Final = 1000
_BAR: Final = 10


def show_top(url: str | None, interval: str, *, once: bool, machine: bool) -> None:
    """Show what is going on until interrupted, or once."""
    # A bare number counts seconds, as for `watch`.
    asked = int(interval) if interval.isdecimal() else interval
    pause = checks.positive_span("--interval", asked) / SECOND
    console = output()
    is_live = is_lively(console)

    async def work(jobs: Operator) -> None:
        seen = await overview(jobs.engine)
        if machine:
            write_json(as_json(seen))
        elif once or not is_live:
            print_once(console, seen)
        else:
            await _live(jobs, console, seen, pause)

    try:
        operate(url, work)
    except KeyboardInterrupt:
        if once or not is_live:
            raise
        # The way out of a live picture.


def print_once(console: Console, seen: Overview) -> None:
    """Write one picture."""
    console = console if console.file.isatty() else output(width=_ENDLESS)
    for part in _picture(seen, None, console.width):
        with console.capture() as captured:
            console.print(part)
        output().print("\n".join(line.rstrip() for line in captured.get().splitlines()))


async def _live(jobs: Operator, console: Console, seen: Overview, pause: float) -> None:
    loop = asyncio.get_running_loop()
    pace: float | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Group(*_picture(seen, pace, console.width)), refresh=True)
            await asyncio.sleep(pause)
            began = loop.time()
            latest = await overview(jobs.engine)
            # At most half of the time goes into looking, however much there is to see.
            await asyncio.sleep(max(loop.time() - began - pause, 0))
            seconds = (latest.as_of - seen.as_of).total_seconds()
            pace = max(latest.ended - seen.ended, 0) / seconds if seconds > 0 else None
            seen = latest


def _picture(seen: Overview, pace: float | None, width: int) -> Iterator[RenderableType]:
    yield _summary(seen, pace)
    if seen.types:
        yield Text()
        yield _types(seen, width)
    yield Text()
    if seen.workers:
        yield _workers(seen, width)
    else:
        yield Text("No worker is running. Start one: trellis worker your_module:service", "yellow")
    if seen.running:
        yield Text()
        yield _running(seen, width)


def _summary(seen: Overview, pace: float | None) -> Text:
    text = Text(seen.as_of.astimezone().strftime("%H:%M:%S"), "bold")
    for state, number in seen.states.items():
        cell = state_cell(State(state))
        text.append("  ").append(f"{number:,} {cell.text}", cell.style)
    if not seen.states:
        text.append("  no jobs")
    return text if pace is None else text.append(f"  {pace:,.0f} ended/s", "bold")


def _types(seen: Overview, width: int) -> RenderableType:
    columns = [Column("TYPE", gives_way=True)]
    columns += [Column(state.upper(), is_number=True) for state in COUNTED_STATES]
    rows = [
        (name, *(f"{counts[state]:,}" if counts.get(state) else "-" for state in COUNTED_STATES))
        for name, counts in seen.types.items()
    ]
    return make_table(columns, rows, width)


def _workers(seen: Overview, width: int) -> RenderableType:
    columns = (
        Column("WORKER", gives_way=True),
        Column("PID", is_number=True),
        Column("STATE"),
        Column("BUSY", is_number=True),
        Column("SEEN", is_number=True),
        Column("TYPES", gives_way=True),
    )
    rows = [
        (
            worker.name,
            str(worker.pid),
            Cell(worker.state, "" if worker.state == "live" else "yellow"),
            worker.load,
            briefly(seen.as_of - worker.renewed_at),
            listed(worker.types),
        )
        for worker in seen.workers
    ]
    return make_table(columns, rows, width)


def _running(seen: Overview, width: int) -> RenderableType:
    columns = (
        Column("RUNNING"),
        Column("TYPE", gives_way=True),
        Column("TRY", is_number=True),
        Column("FOR", is_number=True),
        Column("PROGRESS", gives_way=True),
    )
    rows = [
        (
            each.job.id,
            each.job.name,
            f"{each.job.attempt}/{each.job.max_attempts}",
            briefly(seen.as_of - (each.job.claimed_at or seen.as_of)),
            _how_far(each),
        )
        for each in seen.running
    ]
    return make_table(columns, rows, width)


def _how_far(running: RunningJob) -> str:
    said = running.progress
    if said is None:
        return ""
    words = [part for part in (said.phase, said.step, said.message) if part]
    if said.current is not None and said.total:
        part = min(max(said.current / said.total, 0), 1)
        filled = round(part * _BAR)
        words.insert(0, f"{'█' * filled}{'░' * (_BAR - filled)} {part:4.0%}")
    elif said.current is not None:
        words.insert(0, f"{said.current:g}")
    return " ".join(words)
