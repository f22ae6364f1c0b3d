"""Writing results to stdout: as a table for people, as JSON or bare ids for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeVar

from trellis.cli.escaping import safe_json, visible

T = TypeVar("T")


class Form(StrEnum):
    """How a command writes what it has found."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    QUIET = "quiet"


def write_line(text: str) -> None:
    """Write a line of data."""
    sys.stdout.write(f"{text}\n")


def write_json(value: object) -> None:
    """Write one readable JSON document."""
    write_line(safe_json(value, indent=2))


def write_each(
    form: Form,
    found: Iterable[T],
    *,
    document: Callable[[T], Any],
    name: Callable[[T], str],
    table: Callable[[list[T]], None],
) -> None:
    """Write what was found in the form that was asked for."""
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
