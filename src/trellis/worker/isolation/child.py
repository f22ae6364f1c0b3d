"""The program of a handler process; `process.py` starts it.

It lives exactly as long as its worker: the end of the line ends it whatever the handler does, and
so does the kernel where it can be told to. Signals are left to the worker.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from typing import Final

from trellis.worker.isolation.frames import BadMessage, Message
from trellis.worker.isolation.handling import Handling
from trellis.worker.isolation.line import Line

_PR_SET_PDEATHSIG: Final = 1


def main(file: int, worker: int, log_level: int) -> None:
    """Run what the worker orders over this file until it says goodbye."""
    _end_with(worker)
    faulthandler.enable(all_threads=False)
    _leave_signals_to_worker()
    logging.getLogger().setLevel(log_level)
    line = Line(file)
    with asyncio.Runner() as runner:
        handling = Handling(line, runner)
        orders = _Orders(runner.get_loop())
        hearing = threading.Thread(
            target=_hear, args=(line, orders, handling), name="trellis-line", daemon=True
        )
        hearing.start()
        line.say("ready", peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        while (order := orders.next(runner)) is not None:
            handling.run(order)
        runner.run(handling.close())


class _Orders:
    """What is to be done next: put in by the hearing thread, taken out by the main thread.

    The loop runs while the process waits, so what a lifespan keeps in the background goes on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()

    def put(self, order: Message | None) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, order)

    def next(self, runner: asyncio.Runner) -> Message | None:
        while True:
            # What an earlier handler left behind may cancel every task it finds.
            with suppress(asyncio.CancelledError):
                return runner.run(self._queue.get())


def _hear(line: Line, orders: _Orders, handling: Handling) -> None:
    """Do what the worker says; end the process when it says nothing more."""
    with suppress(BadMessage, RuntimeError):  # RuntimeError: the handler closed the loop
        while (message := line.hear()) is not None:
            match message["word"]:
                case "job":
                    handling.expect()
                    orders.put(message)
                case "asked":
                    handling.ask()
                case "stopping":
                    handling.tell_stopping()
                case "interrupt":
                    handling.interrupt()
                case "answer":
                    handling.locks.answer(message)
                case _:
                    orders.put(None)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with whatever the handler has started
    os._exit(1)


def _end_with(worker: int) -> None:
    """Ask the kernel to end this process with its worker, even if C code keeps it busy."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        os._exit(1)


def _leave_signals_to_worker() -> None:
    """Not ignored but handled by doing nothing: programs a job starts do not inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
