"""The one thread of an engine that writes: calls that wait together are committed together.

A tick takes all waiting calls, runs each in its own savepoint inside one `BEGIN IMMEDIATE`, commits
once, and only then answers. A call that fails is undone alone; a commit that fails fails all calls.
No call is answered before the commit has returned.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar

from trellis import failpoints
from trellis.engines.clock import Clock
from trellis.engines.sqlite.connection import (
    BUSY_SECONDS,
    Checkpointer,
    ForkSafe,
    OpenedFile,
    patiently,
)
from trellis.engines.sqlite.errors import translate, typed
from trellis.engines.sqlite.registry import Registry
from trellis.engines.sqlite.transaction import STATEMENTS, Transaction
from trellis.engines.sqlite.wakeup import SEND_SECONDS, Wakeup
from trellis.engines.values import Topic
from trellis.errors import EngineClosed, EngineError

T = TypeVar("T")
_MOST_PER_TICK: Final = 500
_IDLE_SECONDS: Final = 0.5


class Call(Generic[T]):
    """One verb waiting for the writer."""

    __slots__ = ("error", "future", "loop", "peek", "result", "verb")

    def __init__(
        self, verb: Callable[[Transaction], T], peek: Callable[[Transaction], T | None] | None
    ) -> None:
        self.verb = verb
        #: Answers without writing, when the verb would find nothing to do.
        self.peek = peek
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.result: T | None = None
        self.error: BaseException | None = None


class WriterConnection(NamedTuple):
    """The writer's connection, and what checkpoints it."""

    connection: sqlite3.Connection
    checkpointer: Checkpointer

    def close(self) -> None:
        """Close both."""
        self.checkpointer.close()
        self.connection.close()


class Writer:
    """The writer thread and its queue."""

    def __init__(
        self,
        file: OpenedFile,
        connection: sqlite3.Connection,
        reopen: Callable[[], sqlite3.Connection],
        clock: Clock,
        wakeup: Wakeup,
    ) -> None:
        self._path = file.path
        self._file = file
        self._clock = clock
        self._wakeup = wakeup
        self._registry = Registry()
        self._opened = ForkSafe(self._adopt(connection), lambda: self._adopt(reopen()))
        self._waiting: queue.SimpleQueue[Call[Any] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        # Done when the thread is about to end; it cannot be cancelled.
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()
        self._thread = threading.Thread(target=self._run, name="trellis-sqlite", daemon=True)
        self._thread.start()

    async def call(
        self,
        verb: Callable[[Transaction], T],
        peek: Callable[[Transaction], T | None] | None = None,
    ) -> T:
        """Run a verb in the next transaction; return once it is committed."""
        call = Call(verb, peek)
        with self._closing:
            if self._closed:
                raise EngineClosed("The engine is closed. Open it again before using it.")
            self._waiting.put(call)
        return await call.future

    async def close(self) -> None:
        """Finish the waiting calls, then stop the thread."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._waiting.put(None)
        # No thread waits for it: at the exit of the interpreter none can be started.
        if self._thread.is_alive():
            await asyncio.wrap_future(self._ended)
        self._thread.join()

    def _adopt(self, connection: sqlite3.Connection) -> WriterConnection:
        self._connection = connection
        self._checkpointer = Checkpointer(self._path, connection)
        return WriterConnection(connection, self._checkpointer)

    # -- on the writer thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            # No caller may wait for a thread that has ended, for any reason.
            with self._closing:
                self._closed = True
            self._fail_waiting()
            self._ended.set_result(None)

    def _fail_waiting(self) -> None:
        calls = []
        while not self._waiting.empty():
            call = self._waiting.get()
            if call is not None:
                call.error = EngineClosed("The engine was closed while this call waited.")
                calls.append(call)
        _answer(calls)

    def _serve(self) -> None:
        running = True
        while running:
            try:
                pause = _IDLE_SECONDS if self._wakeup.is_flushed else SEND_SECONDS
                calls = [self._waiting.get(timeout=pause)]
            except queue.Empty:
                self._wakeup.flush()
                self._checkpoint(Checkpointer.when_idle)
                continue
            while len(calls) < _MOST_PER_TICK and not self._waiting.empty():
                calls.append(self._waiting.get())
            running = None not in calls
            self._tick([call for call in calls if call is not None])
        self._wakeup.flush()
        self._checkpoint(Checkpointer.run)
        self._opened.close()

    def _tick(self, calls: Sequence[Call[Any]]) -> None:
        if not calls:
            return
        try:
            with self._opened.use():
                topics = self._work(calls)
        except Exception as error:  # noqa: BLE001 - every waiting call must be answered
            reason = typed(error, self._path)
            for call in calls:
                call.error = call.error or reason
            topics = set()
        _answer(calls)
        if topics:
            self._wakeup.publish(topics)
        self._checkpoint(Checkpointer.after_commit)

    def _checkpoint(self, act: Callable[[Checkpointer], object]) -> None:
        with suppress(EngineError), self._opened.use() as opened:
            act(opened.checkpointer)

    def _work(self, calls: Sequence[Call[Any]]) -> set[Topic]:
        # Here, after all these calls began: none of them is stored in a file that was gone before.
        self._file.check()
        if all(self._finds_nothing(call) for call in calls):
            return set()
        try:
            patiently(lambda: self._connection.execute(STATEMENTS["begin"]), BUSY_SECONDS)
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
        failpoints.reach("sqlite.begun")
        try:
            tx = Transaction(self._connection, self._clock, self._registry)
            for call in calls:
                if call.error is None:
                    self._run_call(tx, call, alone=len(calls) == 1)
            self._commit()
        except BaseException:
            self._registry.forget()
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute(STATEMENTS["rollback"])
            raise
        return tx.topics

    def _finds_nothing(self, call: Call[Any]) -> bool:
        """Check before taking the write lock: an idle worker's claims cost readers nothing."""
        if call.peek is None:
            return False
        try:
            call.result = call.peek(Transaction(self._connection, self._clock, self._registry))
        except sqlite3.Error as error:
            call.error = translate(error, self._path)
            return True
        return call.result is not None

    def _run_call(self, tx: Transaction, call: Call[Any], *, alone: bool) -> None:
        if alone:
            try:
                call.result = call.verb(tx)
            except Exception as error:
                raise typed(error, self._path) from error
            return
        self._connection.execute(STATEMENTS["call_savepoint"])
        try:
            call.result = call.verb(tx)
        except Exception as error:
            if not self._connection.in_transaction:
                # SQLite has rolled everything back (a full disk does that).
                raise typed(error, self._path) from error
            self._connection.execute(STATEMENTS["call_undo"])
            self._registry.forget()
            call.error = typed(error, self._path)
        self._connection.execute(STATEMENTS["call_release"])

    def _commit(self) -> None:
        failpoints.reach("sqlite.before-commit")
        try:
            patiently(lambda: self._connection.execute(STATEMENTS["commit"]), BUSY_SECONDS)
        except sqlite3.Error as error:
            raise translate(error, self._path, committing=True) from error
        failpoints.reach("sqlite.after-commit")


def _answer(calls: Sequence[Call[Any]]) -> None:
    """Wake each caller on its own loop, with one hop per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Call[Any]]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, group)
        except RuntimeError:
            # The caller's loop was closed while it waited.
            continue


def _deliver(calls: Sequence[Call[Any]]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)
