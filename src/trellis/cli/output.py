"""Writing: data to stdout as tables, JSON or ids; sentences, progress and errors to stderr.

Tables are fitted to a terminal and written whole into a file or a pipe. Names, errors and log
lines of jobs may contain control characters that move the cursor, recolour the terminal or imitate
another line, so each of those is written as its number. `rich` is imported on first use, because
worker processes import this module and never need it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")
#: Takes the number done and the total.
Report = Callable[[int, int], None]

_INVISIBLE: Final = (
    "\x00-\x1f\x7f-\x9f"  # control characters: C0, DEL, C1
    "\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # zero width, line breaks, direction
    "\ud800-\udfff"  # surrogates, which cannot be encoded
)
_IN_A_LINE: Final = re.compile(f"[{_INVISIBLE}]")
_IN_A_BLOCK: Final = re.compile(f"(?!\n)[{_INVISIBLE}]")
_GAP: Final = 2
_MIN_WIDTH: Final = 8
_REPORT_SECONDS: Final = 2.0


# -- text ----------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Return the text on one line, without characters that act on a terminal."""
    return _IN_A_LINE.sub(_escaped, text)


def visible_block(text: str) -> str:
    """Return the text with its line breaks, without other characters that act on a terminal."""
    return _IN_A_BLOCK.sub(_escaped, text.replace("\r\n", "\n").expandtabs(4))


def _escaped(found: re.Match[str]) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(found[0])
    if named is not None:
        return named
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - one byte


def safe_json(value: object, indent: int | None = None) -> str:
    """Return JSON that is readable, valid, and safe for a terminal."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _IN_A_BLOCK.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# -- lines and documents -------------------------------------------------------------------------


class Form(StrEnum):
    """The form in which a command writes its results."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    QUIET = "quiet"


def complain(text: str) -> None:
    """Write a sentence to stderr."""
    sys.stderr.write(f"{visible_block(text)}\n")


def write_line(text: str) -> None:
    """Write a line of data to stdout."""
    sys.stdout.write(f"{text}\n")


def write_json(value: object) -> None:
    """Write one readable JSON document to stdout."""
    write_line(safe_json(value, indent=2))


def write_each(
    form: Form,
    found: Iterable[T],
    *,
    document: Callable[[T], Any],
    name: Callable[[T], str],
    table: Callable[[list[T]], None],
) -> None:
    """Write the results in the requested form."""
    match form:
        case Form.TABLE:
            table(list(found))
        case Form.JSON:
            write_json([document(each) for each in found])
        case Form.JSONL:
            for each in found:
                write_line(safe_json(document(each)))
        case Form.QUIET:
            for each in found:
                write_line(visible(name(each)))


# -- tables --------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One column of a table."""

    title: str
    #: Cut where the terminal is too narrow. Ids are never cut, because a cut id cannot be copied.
    shrinks: bool = False
    is_number: bool = False


class Cell(NamedTuple):
    """A text and its style."""

    text: str
    style: str = ""


Row = Sequence[Cell | str]


def write_table(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """Write a table to stdout."""
    width = stdout_console().width if sys.stdout.isatty() else None
    table = make_table(columns, list(rows), width)
    console = stdout_console(width=sum((column.width or 0) + _GAP for column in table.columns))
    with console.capture() as captured:
        console.print(table, soft_wrap=False)
    for line in captured.get().splitlines():
        write_line(line.rstrip())


def make_table(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> Table:
    """Return a table of at most this width, as far as that is possible without cutting an id."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[_safe_cell(cell) for cell in row] for row in rows]
    wanted = [
        max([cell_len(column.title), *(cell_len(row[number].text) for row in cells)])
        for number, column in enumerate(columns)
    ]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, size in zip(columns, _fit(columns, wanted, width), strict=True):
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=size,
        )
    for line in cells:
        table.add_row(*(Text(cell.text, style=cell.style) for cell in line))
    return table


def _safe_cell(cell: Cell | str) -> Cell:
    return Cell(visible(cell)) if isinstance(cell, str) else cell._replace(text=visible(cell.text))


def _fit(columns: Sequence[Column], widths: list[int], limit: int | None) -> list[int]:
    """Narrow the widest columns that shrink until the table fits."""
    able = [number for number, column in enumerate(columns) if column.shrinks]
    excess = 0 if limit is None else sum(widths) + _GAP * (len(widths) - 1) - limit
    while excess > 0 and able:
        widest = max(able, key=widths.__getitem__)
        if widths[widest] <= _MIN_WIDTH:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


# -- terminals -----------------------------------------------------------------------------------


def stdout_console(width: int | None = None) -> Console:
    """Return the console for results: stdout."""
    from rich.console import Console

    colours = _colours(sys.stdout)
    return Console(highlight=False, soft_wrap=True, width=width, color_system=colours)


def _colours(stream: TextIO) -> Literal["auto"] | None:
    """Return no colours where `NO_COLOR` is set and there is no terminal, despite `FORCE_COLOR`.

    On a terminal rich keeps bold and dim, which are not colours.
    """
    return None if os.environ.get("NO_COLOR") and not stream.isatty() else "auto"


def is_interactive(console: Console) -> bool:
    """Return whether the console can show moving output: a terminal that is not dumb."""
    return console.file.isatty() and not console.is_dumb_terminal


@contextmanager
def progress_bar(
    title: str, console: Console | None = None, *, transient: bool = True
) -> Iterator[Report]:
    """Show progress: a bar on a terminal, a line every few seconds elsewhere."""
    if console is None:
        from rich.console import Console

        console = Console(stderr=True, highlight=False, color_system=_colours(sys.stderr))
    if not is_interactive(console):
        yield _progress_lines(title, console)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=transient) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _progress_lines(title: str, console: Console) -> Report:
    reported_at = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at > _REPORT_SECONDS:
            reported_at = time.monotonic()
            console.print(f"{title}: {done:,} of {total:,}")

    return report
