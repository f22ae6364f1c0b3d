"""How times, states and counts are said in tables and sentences."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from trellis.cli.tables import Cell
from trellis.core.states import State

_STYLES: Final = {
    State.ACTIVE: "cyan",
    State.RETRY: "yellow",
    State.COMPLETED: "green",
    State.COMPLETED_WITH_ERRORS: "yellow",
    State.FAILED: "red",
    State.STALE: "red",
    State.DEAD: "bold red",
    State.EXPIRED: "red",
    State.CANCELLED: "dim",
    State.SKIPPED: "dim",
    State.DISMISSED: "dim",
}
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))


def state_cell(state: State) -> Cell:
    """Return a state in its colour."""
    return Cell(state.value, _STYLES.get(state, ""))


def briefly(span: timedelta) -> str:
    """Say how long, in one unit of which there are at least two: 90s, 3m, 26h, 4d."""
    seconds = round(abs(span.total_seconds()))
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{round(seconds / size)}{unit}"
    return f"{seconds}s"


def clock_time(moment: datetime) -> str:
    """Say a moment where the reader is, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def counted(number: int, noun: str = "job") -> str:
    """Say how many."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: tuple[str, ...], most: int = 3) -> str:
    """Say a few names and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
