"""An event loop in a thread of its own, for tests of either colour to steer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")
_PATIENCE: Final = 60


class LoopThread:
    """Runs until it is stopped; calls from outside block until they are done inside."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop."""
        done: Future[T] = Future()

        def perform() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001 - whoever called is told
                done.set_exception(error)

        self._loop.call_soon_threadsafe(perform)
        return done.result(_PATIENCE)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop, and do not wait for its end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Cancel what still runs, then end the loop and its thread."""
        self.run(_cancel_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_the_rest() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # closed transports say goodbye in the next round
