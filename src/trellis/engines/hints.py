"""Hints inside one process: subscribers are notified that something may have changed.

A hint proves nothing; a subscriber reads the store to find out. Publishing is cheap, works from any
thread, and a topic that is already pending for a subscriber is not sent again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress

from trellis.core.commands import Cancel
from trellis.core.lifecycle import Transition
from trellis.engines.values import Topic


def is_asked(transition: Transition) -> bool:
    """Return whether a worker is to look at an attempt that it runs: it is being cancelled."""
    return type(transition.command) is Cancel and transition.before.fence is not None


class _Subscriber:
    def __init__(self, topics: Sequence[Topic]) -> None:
        self.topics = frozenset(topics)
        self.loop = asyncio.get_running_loop()
        self.woken = asyncio.Event()
        self.pending: set[Topic] = set()


class Hints:
    """The subscribers of one engine object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: set[_Subscriber] = set()
        self._closed = False

    def publish(self, topics: Iterable[Topic]) -> None:
        """Send these topics to the subscribers that watch them."""
        with self._lock:
            for subscriber in self._subscribers:
                news = subscriber.topics.intersection(topics) - subscriber.pending
                if news:
                    subscriber.pending |= news
                    self._wake(subscriber)

    def close(self) -> None:
        """End every watch."""
        with self._lock:
            self._closed = True
            for subscriber in self._subscribers:
                self._wake(subscriber)

    def reopen(self) -> None:
        """Allow watching again after `close`."""
        self._closed = False

    async def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints until closed."""
        subscriber = _Subscriber(topics)
        with self._lock:
            self._subscribers.add(subscriber)
        try:
            while not self._closed:
                await subscriber.woken.wait()
                subscriber.woken.clear()
                with self._lock:
                    pending, subscriber.pending = subscriber.pending, set()
                for topic in sorted(pending):
                    yield topic
        finally:
            with self._lock:
                self._subscribers.discard(subscriber)

    @staticmethod
    def _wake(subscriber: _Subscriber) -> None:
        with suppress(RuntimeError):  # this thread runs no loop
            if asyncio.get_running_loop() is subscriber.loop:
                subscriber.woken.set()
                return
        # The loop of a subscriber may have been closed in between.
        with suppress(RuntimeError):
            subscriber.loop.call_soon_threadsafe(subscriber.woken.set)
