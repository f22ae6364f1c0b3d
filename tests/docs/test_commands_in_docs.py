"""Every `trellis` command in the documents exists, with the options that it is shown with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.docs.test_readme import PAGES
from tests.harness import ROOT
from trellis.cli.app import trellis

#: A command in code of a document, up to what ends it in a shell or in prose.
COMMAND = re.compile(r"(?<![\w.-])(?:manage\.py |python -m )?trellis ((?:\\\n|[^`|&;>#\n])*)")
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(trellis [^`]+)`")


def commands(text: str) -> Iterator[list[str]]:
    blocks = [
        block for language, block in BLOCK.findall(text) if language not in {"python", "text"}
    ]
    shown = "\n".join([*blocks, *INLINE.findall(BLOCK.sub("", text))])
    for found in COMMAND.findall(shown):
        try:
            words = shlex.split(found.replace("\\\n", " ").rstrip("\"'.,:) "))
        except ValueError:  # part of a sentence or a program
            continue
        if words and words[0] in trellis.list_commands(click.Context(trellis)):
            yield words


def problem(words: list[str]) -> str | None:
    """Return what is wrong with a command line; None if nothing is."""
    command: click.Command = trellis
    rest = list(words)
    while rest and isinstance(command, click.Group):
        below = command.get_command(click.Context(command), rest[0])
        if below is None:
            is_default = rest[0].startswith(("-", "[")) or ":" in rest[0]
            return None if is_default else f"there is no command {rest[0]!r}"
        command, rest = below, rest[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    unknown = sorted({*given} - known - {"--help", "-h", "--url", "--app"})
    return f"no option {unknown}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_the_documents_show_exists(page: Path) -> None:
    found = {" ".join(words): problem(words) for words in commands(page.read_text())}
    assert {line: wrong for line, wrong in found.items() if wrong} == {}


def test_commands_are_found_in_the_guides() -> None:
    found = [words for page in PAGES for words in commands(page.read_text())]
    assert len(found) > 100
    assert problem(["jobs", "list", "--nonsense"]) == "no option ['--nonsense']"
    assert problem(["jobs", "nonsense"]) == "there is no command 'nonsense'"
