"""Telling people what they see: a sentence per line, and at the end what was promised and seen.

On a terminal sentences are wrapped between words and kept below their title; elsewhere a sentence
is one line, whatever its length.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trellis.cli.escaping import visible
from trellis.cli.terminal import Report, is_lively, output, progress_bar, waiting


class Seen(NamedTuple):
    """What was seen of a promise."""

    words: str
    holds: bool


class Finding(NamedTuple):
    """A promise and what was seen of it."""

    promised: str
    seen: Seen


class Teller:
    """Speaks to the audience."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = output() if console is None else console

    def open(self, text: str) -> None:
        """Say something at the beginning or the end."""
        self._write(Text(visible(text)))

    def title(self, text: str) -> None:
        """Announce a scene."""
        self._console.print()
        self._write(Text(visible(text), style="bold"))

    def say(self, text: str) -> None:
        """Say what happens."""
        self._write(Text(visible(text)), indent=2)

    def judge(self, seen: Seen) -> None:
        """Say how a scene ended."""
        self._write(Text.assemble(_word(seen), f": {visible(seen.words)}"), indent=2)

    def bar(self, title: str) -> AbstractContextManager[Report]:
        """Show how far something is."""
        return progress_bar(f"  {title}", self._console, stays=True)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Show that something goes on."""
        async with waiting(self._console):
            yield

    def sum_up(self, findings: Sequence[Finding]) -> None:
        """Show what was promised and what was seen."""
        self._show(findings)
        held = sum(finding.seen.holds for finding in findings)
        self.open(f"{held} of {len(findings)} promises held.")

    def _show(self, findings: Sequence[Finding]) -> None:
        if not self._console.file.isatty():
            self._console.print()
            for promised, seen in findings:
                self._write(Text(f"{_word(seen).plain:<8}{promised}"))
                self._write(Text(visible(seen.words)), indent=8)
            self._console.print()
            return
        table = Table("", "what was promised", "what was seen", box=SIMPLE_HEAD, pad_edge=False)
        for promised, seen in findings:
            table.add_row(_word(seen), promised, Text(visible(seen.words)))
        self._console.print(table, soft_wrap=False)

    def _write(self, text: Text, indent: int = 0) -> None:
        if is_lively(self._console):
            self._console.print(Padding(text, (0, 0, 0, indent), expand=False), soft_wrap=False)
        else:
            self._console.print(Text(" " * indent).append_text(text), soft_wrap=True)


def _word(seen: Seen) -> Text:
    return Text("held", style="green") if seen.holds else Text("BROKEN", style="bold red")
