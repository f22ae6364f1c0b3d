"""The machine that is measured: what it is, how fast its disk syncs, and how busy it was."""

from __future__ import annotations

import os
import platform
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

_SYNCS: Final = 50
_PAGE: Final = b"x" * 8192
_STAT: Final = Path("/proc/stat")
_IDLE: Final = slice(3, 5)
#: The first eight columns add up to all time; those after them are parts of these.
_TIMES: Final = slice(1, 9)


def facts(folder: Path) -> dict[str, str]:
    """Return what a reader needs to know to compare figures; no names of hosts or paths."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()}, {platform.machine()}",
        "file system": _file_system(folder),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "Trellis": _version("trellis-jobs"),
        "Huey": _version("huey"),
    }


class Weather(NamedTuple):
    """The load of the machine during a round, which the benchmark does not control."""

    #: What one write of 8 kB with its fdatasync took just before, in milliseconds.
    sync: float
    #: How many cores other processes kept busy during the round; None if unknown.
    others: float | None


def in_words(weather: Sequence[Weather]) -> dict[str, str]:
    """Return the load over all rounds, in words."""
    syncs = [one.sync for one in weather]
    others = [one.others for one in weather if one.others is not None]
    return {
        "fdatasync": f"{_range(syncs)} ms for 8 kB",
        "others": f"kept {_range(others)} cores busy" if others else "unknown",
    }


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def sync_milliseconds(folder: Path) -> float:
    """Return what one write of 8 kB with its fdatasync takes, the median of fifty."""
    sync = getattr(os, "fdatasync", os.fsync)
    took = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(_SYNCS):
            file.seek(0)
            began = time.perf_counter()
            file.write(_PAGE)
            sync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


class Neighbours:
    """Counts the processor time of processes outside this benchmark."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._own = _busy_seconds(), _own_seconds()

    def cores(self) -> float | None:
        """Return how many cores other processes kept busy since the start; None if unknown."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = (busy - self._busy) - (_own_seconds() - self._own)
        return max(0.0, others / (time.monotonic() - self._began))


def _busy_seconds() -> float | None:
    if not _STAT.exists():
        return None
    ticks = [int(text) for text in _STAT.read_text().splitlines()[0].split()[_TIMES]]
    return (sum(ticks) - sum(ticks[_IDLE])) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Return the processor time of this process and of the children it has waited for."""
    used = [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """Return the kind of file system that this folder is on."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return f"unknown ({sys.platform})"
    found = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    inside = [(mount, kind) for mount, kind in found if folder.resolve().is_relative_to(mount)]
    return max(inside, key=lambda mount: len(mount[0]))[1]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
