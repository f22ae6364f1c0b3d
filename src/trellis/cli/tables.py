"""Tables: fitted to a terminal; into a file or a pipe they go whole, whatever their width.

Only columns that say so give way, and never an id: what cannot be copied is of no use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from trellis.cli.escaping import visible
from trellis.cli.terminal import output
from trellis.cli.writing import write_line

_GAP: Final = 2
_NARROWEST: Final = 8


class Column(NamedTuple):
    """One column of a table."""

    title: str
    #: Cut where the terminal is too narrow.
    gives_way: bool = False
    is_number: bool = False


class Cell(NamedTuple):
    """A text and its style."""

    text: str
    style: str = ""


Row = Sequence[Cell | str]


def write_table(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """Write a table to stdout."""
    width = output().width if sys.stdout.isatty() else None
    table = make_table(columns, list(rows), width)
    console = output(width=_width_of(table))
    with console.capture() as captured:
        console.print(table, soft_wrap=False)
    for line in captured.get().splitlines():
        write_line(line.rstrip())


def make_table(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> Table:
    """Return a table of at most this width, where that is possible without cutting an id."""
    cells = [[_safe(cell) for cell in row] for row in rows]
    widths = _fit(columns, [_natural(column, n, cells) for n, column in enumerate(columns)], width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, size in zip(columns, widths, strict=True):
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


def _safe(cell: Cell | str) -> Cell:
    return Cell(visible(cell)) if isinstance(cell, str) else cell._replace(text=visible(cell.text))


def _natural(column: Column, number: int, rows: Sequence[Sequence[Cell]]) -> int:
    return max([cell_len(column.title), *(cell_len(row[number].text) for row in rows)])


def _fit(columns: Sequence[Column], widths: list[int], most: int | None) -> list[int]:
    """Narrow the widest columns that give way until all fit."""
    able = [number for number, column in enumerate(columns) if column.gives_way]
    excess = 0 if most is None else sum(widths) + _GAP * (len(widths) - 1) - most
    while excess > 0 and able:
        widest = max(able, key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _width_of(table: Table) -> int:
    return sum((column.width or 0) + _GAP for column in table.columns)
