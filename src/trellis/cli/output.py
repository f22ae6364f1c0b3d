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
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

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
#: A command in a sentence, and the service or the URL that it may name.
_COMMAND: Final = re.compile(
    r"(?<![\w./-])trellis (?P<words>[a-z]+( [a-z]+)?)\b(?P<service> your_module:service)?"
    r"(?P<url> --url [^\s`]+)?"
)
#: Commands without `--url` and `--app`, and commands whose arguments are services.
WITHOUT_URL: Final = frozenset(
    {"completion", "contract export", "contract import", "demo", "move", "nats permissions"}
)
OF_SERVICES: Final = frozenset({"worker", "queues plan", "queues accept"})
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
    sys.stderr.write(f"{visible_block(as_typed(text))}\n")


class _Given(NamedTuple):
    """What the command line in progress says about where the jobs are."""

    url: str | None = None
    apps: tuple[str, ...] = ()


_NOTHING: Final = _Given()
_given: ContextVar[_Given | None] = ContextVar("given", default=None)


def remember_place(arguments: Sequence[str]) -> None:
    """Remember the `--url` or `--app` of a command line, for the commands that it advises."""
    url, apps = None, []
    for number, argument in enumerate(arguments, 1):
        name, is_joined, value = argument.partition("=")
        value = value if is_joined else "".join(arguments[number : number + 1])
        if argument == "--":
            break
        if name == "--url":
            url = value
        elif name == "--app":
            apps.append(value)
    _given.set(_Given(url, tuple(apps)))


def as_typed(text: str) -> str:
    """Return the text with its commands as this user types them, ready to be pasted.

    They name the URL or the service that the present command names. A framework's command names
    itself in `TRELLIS_PROGRAM`: `python manage.py trellis`. It knows where the jobs are, so its
    advice needs no URL, unless the user has given one.
    """
    program, given = os.environ.get("TRELLIS_PROGRAM"), _given.get() or _NOTHING
    if not program and given == _NOTHING:
        return text
    return _COMMAND.sub(lambda found: _typed(found, program, given), text)


def _typed(found: re.Match[str], program: str | None, given: _Given) -> str:
    from trellis.cli.app import COMMANDS
    from trellis.engines.redaction import shown

    words, service, url = found["words"], found["service"] or "", found["url"] or ""
    name = words.partition(" ")[0]
    if name not in COMMANDS:
        return found[0]
    start = program or "trellis"
    if program and not given.url:
        url = ""
    rest = found.string[found.end() :].partition("\n")[0]
    # A server gives tokens only to callers that have one; the advice is for callers that have none.
    is_server = (given.url or "").startswith("http") and words == "tokens create"
    if url or " --url " in rest or {name, words} & WITHOUT_URL or is_server:
        return f"{start} {words}{service}{url}"
    apps, place = [shlex.quote(each) for each in given.apps], ""
    if given.url:
        place = f" --url {shlex.quote(shown(given.url))}"
    if apps and {name, words} & OF_SERVICES:
        service = f" {' '.join(apps)}"
    elif not given.url:
        place = "".join(f" --app {each}" for each in apps)
    return f"{start}{place} {words}{service}"


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
    table: Callable[[list[T]], object],
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
    #: Left out where the terminal is too narrow, together with all others of this kind.
    is_optional: bool = False


class Cell(NamedTuple):
    """A text and its style."""

    text: str
    style: str = ""


Row = Sequence[Cell | str]


def write_table(columns: Sequence[Column], rows: Iterable[Row]) -> bool:
    """Write a table to stdout, nothing if it has no rows; return whether it has all columns."""
    console = stdout_console()
    lines = _table_lines(columns, list(rows), console.width if sys.stdout.isatty() else None)
    if len(lines) == 1:
        return True
    for line in lines:
        if console.color_system is None:
            write_line("".join(cell.text for cell in line).rstrip())
        else:
            console.print(_styled(line))
    return len(lines[0]) == len(columns)


def make_table(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> Text:
    """Return a table of at most this width, as far as that is possible without cutting an id."""
    from rich.text import Text

    return Text("\n").join(_styled(line) for line in _table_lines(columns, rows, width))


def _styled(line: Sequence[Cell]) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    for cell in line:
        text.append(cell.text, cell.style)
    text.rstrip()
    return text


def _table_lines(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None
) -> list[list[Cell]]:
    """Return the header and the rows, each cell as wide as its column.

    Tables of rich take half a millisecond per row, which is long for thousands of jobs.
    """
    from rich.cells import cell_len, set_cell_size

    def padded(column: Column, cell: Cell, size: int) -> Cell:
        lacking = size - cell_len(cell.text)
        if lacking < 0:
            text = f"{set_cell_size(cell.text, size - 1).rstrip()}…"
            lacking = size - cell_len(text)
        else:
            text = cell.text
        text = " " * lacking + text if column.is_number else text + " " * lacking
        return Cell(text + " " * _GAP, cell.style)

    cells = [[_safe_cell(cell) for cell in row] for row in rows]
    wanted = [
        max([cell_len(column.title), *(cell_len(row[number].text) for row in cells)])
        for number, column in enumerate(columns)
    ]
    required = [number for number, column in enumerate(columns) if not column.is_optional]
    if len(required) < len(columns) and _excess(wanted, width) > 0:
        shown = [columns[number] for number in required]
        return _table_lines(shown, [[row[number] for number in required] for row in rows], width)
    sizes = _fit(columns, wanted, width)
    header = [Cell(column.title, "bold") for column in columns]
    return [
        [padded(*each) for each in zip(columns, line, sizes, strict=True)]
        for line in (header, *cells)
    ]


def _safe_cell(cell: Cell | str) -> Cell:
    return Cell(visible(cell)) if isinstance(cell, str) else cell._replace(text=visible(cell.text))


def _fit(columns: Sequence[Column], widths: list[int], limit: int | None) -> list[int]:
    """Narrow the widest columns that shrink until the table fits."""
    able = [number for number, column in enumerate(columns) if column.shrinks]
    excess = _excess(widths, limit)
    while excess > 0 and able:
        widest = max(able, key=widths.__getitem__)
        if widths[widest] <= _MIN_WIDTH:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _excess(widths: Sequence[int], limit: int | None) -> int:
    """Return by how much a table of these columns is too wide."""
    return 0 if limit is None else sum(widths) + _GAP * (len(widths) - 1) - limit


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
