"""Waiting for something to come true, by looking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tests.harness.faults.recorder import boot_ns

LOOK_EVERY: Final = 0.02


class Impatience(Exception):
    """Something that should have come true has not."""


async def until(holds: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait for something to come true."""
    end = boot_ns() + int(seconds * 1e9)
    while not holds():
        if boot_ns() > end:
            raise Impatience(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(LOOK_EVERY)
