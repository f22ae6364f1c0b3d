"""Huey on SQLite with tasks that do what the jobs of Trellis do.

The tasks leave marks, because Huey keeps no journal. Results are off, which is Huey's fastest
setting; `synced` is its `fsync=True`, SQLite's FULL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from bench.marks import marker

_mark_start = marker("start")
_mark_latency = marker("latency")


class HueyTasks(NamedTuple):
    """A Huey and its tasks; calling a task enqueues it."""

    huey: Any
    noop: Callable[[dict[str, object]], object]
    stamp: Callable[[int], object]


def noop(order: dict[str, object]) -> None:
    """Do nothing but be counted."""
    _mark_start(time.monotonic_ns())


def stamp(sent: int) -> None:
    """Record how long the task waited for its start."""
    _mark_latency(time.monotonic_ns() - sent)


def make_tasks(path: Path, *, synced: bool) -> HueyTasks:
    """Return the tasks of a Huey that keeps its queue in this file."""
    make = import_module("huey").SqliteHuey  # no types, and perhaps not installed
    huey = make("bench", filename=str(path), fsync=synced, results=False)
    return HueyTasks(huey, huey.task()(noop), huey.task()(stamp))
