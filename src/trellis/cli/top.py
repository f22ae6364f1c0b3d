"""`trellis jobs top`: a live view of types, workers and running jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import rich_click as click

from trellis.cli.app import operate
from trellis.cli.format import (
    RATE_COLUMNS,
    listed,
    oldest,
    rate_cells,
    short_duration,
    state_cell,
    window_in_words,
)
from trellis.cli.options import debug_option, json_option, url_option
from trellis.cli.output import (
    Cell,
    Column,
    Row,
    as_typed,
    is_interactive,
    make_table,
    stdout_console,
    write_json,
)
from trellis.core.states import State

if TYPE_CHECKING:
    import asyncio

    from rich.console import Console, RenderableType
    from rich.text import Text

    from trellis.insight.overview import Overview, RunningJob
    from trellis.insight.views import JobView
    from trellis.operations.operator import Operator

_UNLIMITED: Final = 1000
_BAR_WIDTH: Final = 10
_SHORT_ID: Final = 8


@click.command("top")
@click.option("--interval", metavar="DURATION", default="1s", help="The time between updates (1s).")
@click.option("--once", is_flag=True, help="Show it once and exit, as without a terminal.")
@json_option
@url_option
@debug_option
def top(*, interval: str, once: bool, as_json: bool, url: str | None) -> None:
    """Watch types, workers and running jobs. `q` or Ctrl-C ends it.

    Ids are shown by their last 8 characters, which every command takes. OLDEST is how long the job
    has waited that could have started first; RUN/MIN and FAIL/MIN are attempts that began and that
    failed, MEDIAN is the time that half of the jobs took at most. Without a terminal it is shown
    once.
    """
    from trellis.core.durations import SECOND
    from trellis.declaration import checks
    from trellis.insight.overview import overview
    from trellis.insight.views import as_json as document

    # A bare number counts seconds, as for `watch`.
    asked = int(interval) if interval.isdecimal() else interval
    pause = checks.positive_duration("--interval", asked) / SECOND
    console = stdout_console()
    is_live = is_interactive(console) and not once and not as_json

    async def work(jobs: Operator) -> None:
        seen = await overview(jobs.engine)
        if as_json:
            write_json(document(seen))
        elif is_live:
            await _show_live(jobs, console, seen, pause)
        else:
            _write_once(console, seen)

    try:
        operate(url, work)
    except KeyboardInterrupt:
        if not is_live:
            raise
        # Ctrl-C is the regular end of a live view.


def _write_once(console: Console, seen: Overview) -> None:
    console = console if console.file.isatty() else stdout_console(width=_UNLIMITED)
    for part in _view(seen, None, console.width):
        with console.capture() as captured:
            console.print(part)
        stdout_console().print("\n".join(line.rstrip() for line in captured.get().splitlines()))


async def _show_live(jobs: Operator, console: Console, seen: Overview, pause: float) -> None:
    import asyncio

    from rich.console import Group
    from rich.live import Live

    from trellis.insight.overview import overview

    loop = asyncio.get_running_loop()
    rate: float | None = None
    with (
        _quit_key(loop) as ended,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not ended.is_set():
            live.update(Group(*_view(seen, rate, console.width)), refresh=True)
            await _pause(ended, pause)
            began = loop.time()
            latest = await overview(jobs.engine)
            # Reading takes at most half of the time, even where there is much to read.
            await _pause(ended, max(loop.time() - began - pause, 0))
            seconds = (latest.as_of - seen.as_of).total_seconds()
            rate = max(latest.ended - seen.ended, 0) / seconds if seconds > 0 else None
            seen = latest


@contextmanager
def _quit_key(loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.Event]:
    """Yield an event that is set when `q` is typed; the terminal is restored afterwards."""
    import asyncio
    import os
    import sys
    import termios
    import tty

    ended = asyncio.Event()
    if not sys.stdin.isatty():
        yield ended
        return
    number = sys.stdin.fileno()

    def read_key() -> None:
        if b"q" in os.read(number, 64).lower():
            ended.set()

    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    loop.add_reader(number, read_key)
    try:
        yield ended
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


async def _pause(ended: asyncio.Event, seconds: float) -> None:
    """Wait this long, or until `q` is typed."""
    import asyncio

    with suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), seconds)


def _view(seen: Overview, rate: float | None, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    yield _summary(seen, rate)
    if seen.types or seen.rates:
        yield Text()
        yield _types(seen, width)
    for rates in list(seen.rates.values())[:1]:
        yield Text(window_in_words(rates), "dim")
    yield Text()
    if seen.workers:
        yield _workers(seen, width)
    else:
        advice = "No worker is running. Start one: trellis worker your_module:service"
        yield Text(as_typed(advice), "yellow")
    if seen.running:
        yield Text()
        yield _running(seen, width)
    if seen.blocked:
        yield Text()
        yield _blocked(seen, width)


def _summary(seen: Overview, rate: float | None) -> Text:
    from rich.text import Text

    text = Text(seen.as_of.astimezone().strftime("%H:%M:%S"), "bold")
    for state, number in seen.states.items():
        cell = state_cell(State(state))
        text.append("  ").append(f"{number:,} {cell.text}", cell.style)
    if not seen.states:
        text.append("  no jobs")
    if seen.draining:
        text.append("  draining everywhere", "bold yellow")
    return text if rate is None else text.append(f"  {rate:,.0f} ended/s", "bold")


def _types(seen: Overview, width: int) -> RenderableType:
    columns = (
        Column("TYPE", shrinks=True),
        Column("WAITING", is_number=True),
        Column("OLDEST", is_number=True),
        Column("ACTIVE", is_number=True),
        Column("FAILED", is_number=True),
        *RATE_COLUMNS,
    )

    def row(name: str) -> Row:
        counts, rates = seen.types.get(name, {}), seen.rates.get(name)
        return (
            name,
            _number(counts, State.PENDING, State.RETRY),
            "-" if rates is None else oldest(rates, seen.as_of),
            _number(counts, State.ACTIVE),
            _number(counts, State.FAILED, State.DEAD),
            *(("-", "-", "-") if rates is None else rate_cells(rates)),
        )

    return make_table(columns, [row(name) for name in sorted({*seen.types, *seen.rates})], width)


def _number(counts: Mapping[str, int], *states: State) -> str:
    """Return how many jobs are in these states."""
    number = sum(counts.get(state, 0) for state in states)
    return f"{number:,}" if number else "-"


def _workers(seen: Overview, width: int) -> RenderableType:
    columns = (
        Column("WORKER", shrinks=True),
        Column("PID", is_number=True),
        Column("STATE"),
        Column("BUSY", is_number=True),
        Column("SEEN", is_number=True),
        Column("TYPES", shrinks=True),
    )
    rows = [
        (
            worker.name,
            str(worker.pid),
            Cell(worker.state, "" if worker.state == "live" else "yellow"),
            worker.load,
            short_duration(seen.as_of - worker.renewed_at),
            listed(worker.types),
        )
        for worker in seen.workers
    ]
    return make_table(columns, rows, width)


def _running(seen: Overview, width: int) -> RenderableType:
    columns = (
        Column("RUNNING"),
        Column("TYPE", shrinks=True),
        Column("TRY", is_number=True),
        Column("TIME", is_number=True),
        Column("NOTE", shrinks=True),
    )
    rows = [
        (
            _short(each.job),
            each.job.name,
            f"{each.job.attempt}/{each.job.max_attempts}",
            short_duration(seen.as_of - (each.job.claimed_at or seen.as_of)),
            _progress(each) or _last_error(each.job),
        )
        for each in seen.running
    ]
    return make_table(columns, rows, width)


def _blocked(seen: Overview, width: int) -> RenderableType:
    columns = (
        Column("BLOCKED"),
        Column("TYPE", shrinks=True),
        Column("SINCE", is_number=True),
        Column("NOTE", shrinks=True),
    )
    rows = [
        (
            _short(job),
            job.name,
            short_duration(seen.as_of - job.updated_at),
            f"its worker was lost; then: trellis keys release {_short(job)}",
        )
        for job in seen.blocked
    ]
    return make_table(columns, rows, width)


def _short(job: JobView) -> str:
    """Return the end of an id, which differs even for jobs that were created together."""
    return job.id[-_SHORT_ID:]


def _last_error(job: JobView) -> str:
    return "" if job.error is None else f"last: {job.error.message.strip()}"


def _progress(running: RunningJob) -> str:
    progress = running.progress
    if progress is None:
        return ""
    words = [part for part in (progress.phase, progress.step, progress.message) if part]
    if progress.current is not None and progress.total:
        part = min(max(progress.current / progress.total, 0), 1)
        filled = round(part * _BAR_WIDTH)
        words.insert(0, f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {part:4.0%}")
    elif progress.current is not None:
        words.insert(0, f"{progress.current:g}")
    return " ".join(words)
