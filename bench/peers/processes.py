"""What a tree of processes has used: processor time, and memory without counting any page twice."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
#: Of /proc/…/stat after the name: the parent, and the times of a process and of its dead children.
_PARENT: Final = 1
_TIMES: Final = slice(11, 15)


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(_all_stats()[pid][_PARENT])


def tree(roots: Iterable[int]) -> set[int]:
    """Return these processes and all that descend from them."""
    parents = {pid: int(fields[_PARENT]) for pid, fields in _all_stats().items()}
    found = set(roots)
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def cpu_seconds(roots: Iterable[int]) -> float:
    """Return the processor time of a tree, its dead members included."""
    stats = _all_stats()
    ticks = [sum(int(ticks) for ticks in stats[pid][_TIMES]) for pid in tree(roots) if pid in stats]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def pss_megabytes(roots: Iterable[int]) -> float:
    """Return the memory of a tree: a page that several share is counted in shares."""
    return sum(_pss_kilobytes(pid) for pid in tree(roots)) / 1024


def descriptors(pid: int) -> int:
    """Return how many files and connections a process has open."""
    return sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())


def _pss_kilobytes(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _all_stats() -> dict[int, list[str]]:
    found = {}
    for place in _PROC.glob("[0-9]*"):
        try:
            text = (place / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        found[int(place.name)] = text.rpartition(")")[2].split()
    return found
