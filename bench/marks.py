"""Numbers that worker processes leave behind for the benchmark: eight bytes each, one system call.

Each process appends to a separate file, so no process waits for another. A mark costs one or two
microseconds, the same for every system that is measured by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: The variable with the folder in which worker processes leave their marks.
VARIABLE: Final = "BENCH_MARKS"
_WIDTH: Final = 8


def marker(kind: str) -> Callable[[int], None]:
    """Return a function that leaves marks of one kind; its file is made by the first of them."""
    file: int | None = None

    def mark(number: int) -> None:
        nonlocal file
        if file is None:
            path = Path(os.environ[VARIABLE]) / f"{kind}-{os.getpid()}"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, number.to_bytes(_WIDTH, "little"))

    return mark


def count(folder: Path, kind: str) -> int:
    """Return how many marks of this kind there are."""
    return sum(file.stat().st_size for file in folder.glob(f"{kind}-*")) // _WIDTH


def read(folder: Path, kind: str) -> list[int]:
    """Return all marks of this kind, in the order in which each process left them."""
    contents = [file.read_bytes() for file in sorted(folder.glob(f"{kind}-*"))]
    return [
        int.from_bytes(content[at : at + _WIDTH], "little")
        for content in contents
        for at in range(0, len(content), _WIDTH)
    ]
