"""Writing for people: colours and live bars on a terminal, plain lines everywhere else."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Literal, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars

_EVERY: Final = 2.0

Report = Callable[[int, int], None]


def people() -> Console:
    """Return the console for people: stderr, so that data on stdout stays clean."""
    return Console(stderr=True, highlight=False, color_system=_colours(sys.stderr))


def output(width: int | None = None) -> Console:
    """Return the console for results: stdout."""
    colours = _colours(sys.stdout)
    return Console(highlight=False, soft_wrap=True, width=width, color_system=colours)


def _colours(stream: TextIO) -> Literal["auto"] | None:
    """Say nothing but text where `NO_COLOR` is set and nobody looks, whatever `FORCE_COLOR` says.

    On a terminal rich leaves bold and dim, which are no colours.
    """
    return None if os.environ.get("NO_COLOR") and not stream.isatty() else "auto"


def is_lively(console: Console) -> bool:
    """Tell whether something may move there: a real terminal, and not a dumb one."""
    return console.file.isatty() and not console.is_dumb_terminal


@contextmanager
def progress_bar(
    title: str, console: Console | None = None, *, stays: bool = False
) -> Iterator[Report]:
    """Show how far something is: a bar on a terminal, a line now and then elsewhere.

    A bar goes when the work is done, unless it `stays`.
    """
    console = console or people()
    if not is_lively(console):
        yield _lines(title, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, console=console, transient=not stays) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@asynccontextmanager
async def waiting(console: Console) -> AsyncIterator[None]:
    """Show that something goes on: a spinner with the seconds on a terminal, lines elsewhere."""
    if is_lively(console):
        columns = (TextColumn(" "), SpinnerColumn(), TextColumn("{task.elapsed:.0f} s"))
        with Bars(*columns, console=console, transient=True) as bars:
            bars.add_task("", total=None)
            yield
        return
    ticking = asyncio.create_task(_count_seconds(console))
    try:
        yield
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])


async def _count_seconds(console: Console) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(_EVERY)
        console.print(f"  ... {time.monotonic() - began:.0f} s")


def _lines(title: str, console: Console) -> Report:
    told = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told > _EVERY:
            told = time.monotonic()
            console.print(f"{title}: {done:,} of {total:,}")

    return report
