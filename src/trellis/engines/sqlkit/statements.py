"""SQL lives in files, one statement each; the file's name is the statement's name.

So the folder listing is the complete list of what an engine ever does to a database, and two
dialects are compared by opening two files of one name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from typing import Final

_COMMENT: Final = re.compile(r"^\s*--[^\n]*\n", re.MULTILINE)


@lru_cache(maxsize=8)
def load_statements(package: str) -> dict[str, str]:
    """Return every statement of the `sql` folder of an engine's package, by name."""
    folder = resources.files(package) / "sql"
    return {
        file.name.removesuffix(".sql"): _COMMENT.sub("", file.read_text()).strip()
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    }


@lru_cache(maxsize=8)
def load_migrations(package: str) -> tuple[tuple[int, str], ...]:
    """Return the numbered migrations of an engine's package, in order."""
    folder = resources.files(package) / "migrations"
    files = sorted(
        (file.name, file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")
    )
    return tuple((int(name.partition("_")[0]), text) for name, text in files)
