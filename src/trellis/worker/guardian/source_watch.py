"""The source files of a worker process, and whether one of them has changed (`--reload`).

A worker process names the files that it has loaded; without `--reload` it names none. The guardian
compares their times and sizes four times a second, also while the process is blocked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple


class _Stamp(NamedTuple):
    modified: int
    size: int


class SourceWatch:
    """The files that one worker process after another has loaded."""

    def __init__(self) -> None:
        self._stamps: dict[str, _Stamp | None] = {}

    @property
    def is_used(self) -> bool:
        """Whether any file is watched."""
        return bool(self._stamps)

    def add(self, files: Iterable[str]) -> None:
        """Watch these files, too."""
        for file in files:
            self._stamps.setdefault(file, _stamp_of(file))

    def begin(self) -> None:
        """Regard all files as unchanged: a process is about to load them."""
        self._stamps = {file: _stamp_of(file) for file in self._stamps}

    def changed(self) -> str | None:
        """Return a file that has changed. One that is missing may be about to be replaced."""
        for file, before in self._stamps.items():
            now = _stamp_of(file)
            if now is not None and now != before:
                return file
        return None


def _stamp_of(file: str) -> _Stamp | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - for every file four times a second
    except OSError:
        return None
    return _Stamp(found.st_mtime_ns, found.st_size)
