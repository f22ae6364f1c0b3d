"""The thread that waits for a run, lent to the plain handlers of that run.

They see what belongs to that thread alone: a test's open database transaction, for one, which
Django keeps per thread. And a debugger that stops in a handler has the terminal.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CallersThread:
    """A thread that makes other people's calls while it waits."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def wait_for(self, work: Callable[[], T]) -> T:
        """Do the work in another thread, make the calls that come from it, return its result."""
        answer = _Answer[T]()
        context = copy_context()
        threading.Thread(
            target=lambda: context.run(self._do, work, answer), name="trellis-sandbox", daemon=True
        ).start()
        while (call := self._calls.get()) is not None:
            call()
        return answer.given()

    def _do(self, work: Callable[[], T], answer: _Answer[T]) -> None:
        try:
            answer.value.append(work())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            answer.error = error
        finally:
            self._calls.put(None)

    async def call(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - the handler's result
        """Call the function in the thread that waits, in a copy of this context."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def deliver(result: object, error: BaseException | None) -> None:
            loop.call_soon_threadsafe(_deliver, future, result, error)

        self._calls.put(partial(_perform, function, copy_context(), deliver))
        return await future


class _Answer(Generic[T]):
    def __init__(self) -> None:
        self.value: list[T] = []
        self.error: BaseException | None = None

    def given(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value[0]


def _perform(
    function: Callable[[], Any],
    context: Context,
    deliver: Callable[[object, BaseException | None], object],
) -> None:
    try:
        result = context.run(function)
    except BaseException as error:
        deliver(None, error)
        if isinstance(error, KeyboardInterrupt):
            raise  # whoever runs the tests wants them to stop
    else:
        deliver(result, None)


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError("The handler raised StopIteration."))
    else:
        future.set_exception(error)
