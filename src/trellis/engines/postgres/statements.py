"""The statements of this engine, for the schema the tables are in.

Every table is named with its schema: nothing depends on `search_path`, which a pooler may lose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from trellis.engines.sql.statements import load_migrations, load_sections

_PACKAGE: Final = "trellis.engines.postgres"
_QUALIFIER: Final = re.compile(r"\btrellis\.(?=[a-z])")
#: What a statement contains that may store something; also a function of ours, except the clock.
_STORES: Final = re.compile(
    r"\b(insert|update|delete|pg_notify)\b|\btrellis\.(?!clock\()[a-z_]+\(", re.IGNORECASE
)


@lru_cache(maxsize=8)
def statements(schema: str) -> dict[str, str]:
    """Return every statement by name."""
    files = load_sections(_PACKAGE).files.values()
    return {name: in_schema(text, schema) for file in files for name, text in file.items()}


@lru_cache(maxsize=8)
def fragments(schema: str) -> dict[str, str]:
    """Return every fragment by name."""
    found = load_sections(_PACKAGE).fragments
    return {name: in_schema(text, schema) for name, text in found.items()}


@lru_cache(maxsize=1)
def names_of_reads() -> frozenset[str]:
    """Return the names of the statements that store nothing."""
    return frozenset(n for n, text in statements("trellis").items() if not _STORES.search(text))


def names_in(files: Iterable[str]) -> list[str]:
    """Return the names of all statements in these files."""
    found = load_sections(_PACKAGE).files
    return [name for file in files for name in found[file]]


@lru_cache(maxsize=8)
def migrations(schema: str) -> tuple[tuple[int, str], ...]:
    """Return the numbered migrations, in order."""
    return tuple((number, in_schema(text, schema)) for number, text in load_migrations(_PACKAGE))


def in_schema(text: str, schema: str) -> str:
    """Return the text with our tables in that schema."""
    return text if schema == "trellis" else _QUALIFIER.sub(f"{schema}.", text)
