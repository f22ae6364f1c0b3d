"""SQL is in files, one per verb, in the folder `statements` of an engine's package.

A file is a list of sections, each of which starts with a line that names it:

    -- name: commit_end          one statement, run under this name
    -- fragment: claim_tail      text that no engine runs alone

A line `-- include: claim_tail` inside a statement is replaced by that fragment, so that statements
which must agree share their text. The other fragments are the pieces of what cannot be written
down whole: filters with any number of conditions, settings and names that take no parameter. Words
in braces are filled in by the engine, from its own closed lists.

All other lines that start with `--` are comments: before the first section about the file, after
that about the section. A section has the same name in every dialect in which it has the same
meaning. The files of an engine are the complete list of what it does to a database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Final, NamedTuple

_HEADING: Final = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_INCLUDE: Final = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--[^\n]*(\n|\Z)", re.MULTILINE)


class Sections(NamedTuple):
    """The sections of an engine's files."""

    #: Statements: by file, then by name.
    files: dict[str, dict[str, str]]
    fragments: dict[str, str]


def read_sections(texts: Mapping[str, str]) -> Sections:
    r"""Return the sections in the texts of these files.

    >>> read_sections({"locks": "-- name: lock_list\n-- All of them.\nselect 1\n"})
    Sections(files={'locks': {'lock_list': 'select 1'}}, fragments={})
    """
    files: dict[str, dict[str, str]] = {}
    fragments: dict[str, str] = {}
    seen: set[str] = set()
    for file, text in texts.items():
        preface, *parts = _HEADING.split(text)
        if _without_comments(preface):
            raise ValueError(f"{file}.sql has text before its first section.")
        files[file] = {}
        for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if name in seen:
                raise ValueError(f"{file}.sql has a second section {name!r}.")
            seen.add(name)
            if kind == "name":
                files[file][name] = body
            else:
                fragments[name] = _without_comments(body)
    for statements in files.values():
        for name, body in statements.items():
            statements[name] = _without_comments(_include(body, fragments))
    return Sections(files, fragments)


def _include(text: str, fragments: dict[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1] not in fragments:
            raise ValueError(f"There is no fragment {match[1]!r}.")
        return fragments[match[1]]

    return _INCLUDE.sub(replace, text)


def _without_comments(text: str) -> str:
    return _COMMENT.sub("", text).strip()


@lru_cache(maxsize=8)
def load_sections(package: str) -> Sections:
    """Return the sections of an engine's package."""
    folder = resources.files(package) / "statements"
    files = sorted((file.name, file) for file in folder.iterdir() if file.name.endswith(".sql"))
    return read_sections({name.removesuffix(".sql"): file.read_text() for name, file in files})


@lru_cache(maxsize=8)
def load_statements(package: str) -> dict[str, str]:
    """Return every statement of an engine's package by name."""
    files = load_sections(package).files.values()
    return {name: text for statements in files for name, text in statements.items()}


@lru_cache(maxsize=8)
def load_migrations(package: str) -> tuple[tuple[int, str], ...]:
    """Return the numbered migrations of an engine's package, in order."""
    folder = resources.files(package) / "migrations"
    files = sorted(
        (file.name, file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")
    )
    return tuple((int(name.partition("_")[0]), text) for name, text in files)
