"""What jobs a command line names: ids, `-` for ids on stdin, or filter words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import click


class Targets(NamedTuple):
    """What was named."""

    ids: tuple[str, ...]
    words: tuple[str, ...]
    #: The ids came through stdin: nobody has counted them.
    from_stdin: bool

    @property
    def by_id(self) -> bool:
        """Whether jobs were named; none on stdin is none, and never everything."""
        return self.from_stdin or bool(self.ids)


def read_targets(given: Sequence[str]) -> Targets:
    """Tell ids from filter words: only words have a colon."""
    words = tuple(each for each in given if ":" in each)
    ids = tuple(each for each in given if ":" not in each)
    if words and ids:
        raise click.UsageError(
            f"{ids[0]!r} is an id and {words[0]!r} a filter. Name jobs or choose them, not both."
        )
    return Targets(read_ids(ids), words, "-" in ids)


def read_ids(given: Sequence[str]) -> tuple[str, ...]:
    """Return the ids, with those on stdin in the place of `-`; each once."""
    ids: list[str] = []
    for each in given:
        ids += sys.stdin.read().split() if each == "-" else [each]
    return tuple(dict.fromkeys(ids))
