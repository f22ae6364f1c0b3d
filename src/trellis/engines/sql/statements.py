"""SQL lives in files, one per verb, in the folder `statements` of an engine's package.

A file is a list of sections, each of which starts with a line that names it:

    -- name: commit_end          one statement, run under this name
    -- fragment: claim_tail      text that no engine runs alone

A line `-- include: claim_tail` inside a statement is replaced by that fragment, so that statements
which must agree share their text. All other lines that start with `--` are comments: before the
first section about the file, after that about the section. A section has the same name in every
dialect in which it has the same meaning; the files of an engine are the complete list of what it
does to a database.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from typing import Final

_HEADING: Final = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_INCLUDE: Final = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--[^\n]*(\n|\Z)", re.MULTILINE)


def read_sections(files: dict[str, str]) -> dict[str, dict[str, str]]:
    r"""Return the statements in these texts: by file, then by name.

    >>> read_sections({"locks": "-- name: a\n-- why\nselect 1\n"})
    {'locks': {'a': 'select 1'}}
    """
    kinds: dict[str, dict[str, str]] = {"name": {}, "fragment": {}}
    names: dict[str, list[str]] = {}
    for file, text in files.items():
        preface, *parts = _HEADING.split(text)
        if _COMMENT.sub("", preface).strip():
            raise ValueError(f"{file}.sql has text before its first section.")
        names[file] = []
        for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if any(name in sections for sections in kinds.values()):
                raise ValueError(f"{file}.sql has a second section {name!r}.")
            kinds[kind][name] = body
            if kind == "name":
                names[file].append(name)
    fragments = {name: _bare(text) for name, text in kinds["fragment"].items()}
    whole = {name: _bare(_include(text, fragments)) for name, text in kinds["name"].items()}
    return {file: {name: whole[name] for name in found} for file, found in names.items()}


def _include(text: str, fragments: dict[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1] not in fragments:
            raise ValueError(f"There is no fragment {match[1]!r}.")
        return fragments[match[1]]

    return _INCLUDE.sub(replace, text)


def _bare(text: str) -> str:
    return _COMMENT.sub("", text).strip()


@lru_cache(maxsize=8)
def load_files(package: str) -> dict[str, dict[str, str]]:
    """Return every statement of an engine's package: by file, then by name."""
    folder = resources.files(package) / "statements"
    texts = {
        file.name.removesuffix(".sql"): file.read_text()
        for file in sorted(folder.iterdir(), key=lambda each: each.name)
        if file.name.endswith(".sql")
    }
    return read_sections(texts)


@lru_cache(maxsize=8)
def load_statements(package: str) -> dict[str, str]:
    """Return every statement of an engine's package by name."""
    files = load_files(package).values()
    return {name: text for sections in files for name, text in sections.items()}


@lru_cache(maxsize=8)
def load_migrations(package: str) -> tuple[tuple[int, str], ...]:
    """Return the numbered migrations of an engine's package, in order."""
    folder = resources.files(package) / "migrations"
    files = sorted(
        (file.name, file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")
    )
    return tuple((int(name.partition("_")[0]), text) for name, text in files)
