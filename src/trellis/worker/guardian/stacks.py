"""The stack of a process that does not answer, asked for by a signal.

`faulthandler` writes it from inside the signal handler, so it also comes while C code holds the
interpreter lock. The frame that matters is the innermost one of the loop's thread that is neither
ours nor the standard library's event loop.
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

#: Asks a worker process for its stacks.
ASK: Final = signal.SIGUSR2
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_PACKAGE: Final = str(Path(handler_call.__file__).parents[1]) + os.sep
_CALLING: Final = handler_call.__file__
_LOOP: Final = str(Path(asyncio.__file__).parent) + os.sep
_WAITS: Final = frozenset({selectors.__file__, threading.__file__})


class Frame(NamedTuple):
    """A place in the code."""

    file: str
    line: str
    function: str
    #: Whether it is the loop's thread that is there, and not a handler's that keeps it waiting.
    in_loop: bool = True

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def answer_with_stacks(file: int) -> None:
    """In a worker process: write all stacks to this file whenever asked."""
    faulthandler.register(ASK, file=file, all_threads=True, chain=False)


def blocking_frame(dump: str) -> Frame | None:
    """Return where the process is stuck: in the loop's thread, else in a handler's.

    The main thread, which runs the loop, is the oldest and therefore dumped last. When it only
    waits, somebody else holds the interpreter lock.
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
            if _is_users(frame):
                return frame._replace(in_loop=in_loop)
    return None


def _calls_handler(frame: Frame) -> bool:
    return frame.file == _CALLING and frame.function == "_perform"


def _is_users(frame: Frame) -> bool:
    """Tell whether a frame belongs neither to the worker itself nor to what it waits with."""
    return frame.file not in _WAITS and not frame.file.startswith((_PACKAGE, _LOOP, "<frozen "))
