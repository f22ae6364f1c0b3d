"""The stacks of a blocked worker process, requested by a signal.

`faulthandler` writes them from inside the signal handler, so it works while C code holds the
interpreter lock. The frame to report is the innermost one in the thread of the event loop that
belongs neither to Trellis nor to the event loop of the standard library.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import re
import selectors
import signal
import threading
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from trellis.worker import handler_call

#: Makes a worker process write its stacks.
STACK_SIGNAL: Final = signal.SIGUSR2
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_PACKAGE: Final = str(Path(handler_call.__file__).parents[1]) + os.sep
_HANDLER_CALL: Final = handler_call.__file__
_EVENT_LOOP: Final = str(Path(asyncio.__file__).parent) + os.sep
_WAITING: Final = frozenset({selectors.__file__, threading.__file__})


class Frame(NamedTuple):
    """A line of code that a thread executes."""

    file: str
    line: str
    function: str
    #: True in the thread of the event loop; False in the thread of a handler.
    in_loop: bool = True

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def write_stacks_on_signal(file: int) -> None:
    """In a worker process: write all stacks to this file on `STACK_SIGNAL`."""
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)


def blocking_frame(dump: str) -> Frame | None:
    """Return where the process is blocked: in the thread of the loop, else in one of a handler.

    The main thread, which runs the loop, is the oldest and therefore dumped last. If it only waits,
    another thread holds the interpreter lock.
    """
    threads: list[list[Frame]] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (found := _FRAME.match(line)):
            threads[-1].append(Frame(found["file"], found["line"], found["name"]))
    handlers = [frames for frames in threads[:-1] if any(map(_calls_handler, frames))]
    for frames, in_loop in ((threads[-1:], True), (handlers, False)):
        for frame in chain.from_iterable(frames):
            if is_user_code(frame):
                return frame._replace(in_loop=in_loop)
    return None


def _calls_handler(frame: Frame) -> bool:
    return frame.file == _HANDLER_CALL and frame.function == "_perform"


def is_user_code(frame: Frame) -> bool:
    """Return whether a frame belongs neither to Trellis nor to the library it waits in."""
    return frame.file not in _WAITING and not frame.file.startswith(
        (_PACKAGE, _EVENT_LOOP, "<frozen ")
    )
