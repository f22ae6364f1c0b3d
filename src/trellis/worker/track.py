"""Iteration over many items: each step reports progress and ends a handler that must stop.

An `async for` over a plain iterable gives the loop its turn now and then, so that a long one cannot
starve the other jobs of the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sized
from typing import Final, Generic, Protocol, TypeVar

from trellis.errors import ConfigurationError

T = TypeVar("T")
_TURN: Final = 0.01


class Tracked(Protocol):
    """What a track needs of its job."""

    def raise_if_cancelled(self) -> None:
        """Raise if the job was cancelled or the attempt must stop."""

    def progress(
        self,
        current: float | None = None,
        total: float | None = None,
        *,
        step: str | None = None,
        message: str | None = None,
    ) -> None:
        """Report how far the work is."""


class Track(Generic[T]):
    """Items on their way through a handler."""

    def __init__(
        self, job: Tracked, items: Iterable[T] | AsyncIterable[T], step: str | None
    ) -> None:
        self._job = job
        self._items = items
        self._step = step
        self._total = len(items) if isinstance(items, Sized) else None

    def __iter__(self) -> Iterator[T]:
        if not isinstance(self._items, Iterable):
            raise ConfigurationError("These items come asynchronously. Write `async for`.")
        for done, item in enumerate(self._items, 1):
            self._job.raise_if_cancelled()
            yield item
            self._report(done)

    async def __aiter__(self) -> AsyncIterator[T]:
        turn_ends = time.monotonic() + _TURN
        done = 0
        async for item in _asynchronously(self._items):
            self._job.raise_if_cancelled()
            yield item
            done += 1
            self._report(done)
            if time.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + _TURN

    def _report(self, done: int) -> None:
        self._job.progress(done, self._total, step=self._step)


async def _asynchronously(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
