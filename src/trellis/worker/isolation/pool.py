"""The handler processes of one worker: started when needed, kept for a while, never too many.

A process serves one attempt at a time and is used again only after a run in which nothing was odd.
A suspect gets a fresh one: if that dies, nobody else can be to blame.

One handler process, as its worker sees it: its start, its line, its last words, its end.

It is a fresh interpreter with the worker's folder, path and environment, and it is the first of a
process group of its own: a signal from the terminal does not reach it, and when it is killed,
whatever the handler has started goes with it.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final

from trellis.declaration.imports import HandlerName
from trellis.worker.child_process import ChildProcess, ProcessEnd
from trellis.worker.isolation import protocol
from trellis.worker.isolation.protocol import LINE_CLOSED, BadMessage, Message, refuse

#: Run before anything else: only then can our own modules be found wherever the worker found them.
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trellis.worker.isolation.child import main; main(*map(int, sys.argv[2:]))"
)
_LAST_LINES: Final = 20
_TAIL: Final = 4096
_CHUNK: Final = 65536
#: Whatever the handler has started may keep its stderr open: the last lines are not worth more.
_TAIL_PATIENCE: Final = 0.5
_logger = logging.getLogger(__name__)

Hear = Callable[[Message], None]


class HandlerProcess:
    """A child process that runs one attempt at a time; raises `OSError` if none can be started."""

    def __init__(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        #: True once it can be given work; False if it ended before it could.
        self.ready: asyncio.Future[bool] = loop.create_future()
        #: Done when it has ended and everything it said was heard.
        self.ended: asyncio.Future[ProcessEnd] = loop.create_future()
        #: The handlers it has loaded.
        self.knows: set[HandlerName] = set()
        #: Who hears what its handler says.
        self.hear: Hear = self.hear_nobody
        self._tail = ""
        self._first_peak = 0
        self._remark = ""
        self._writer: asyncio.StreamWriter | None = None
        self._process, line = _spawn()
        self._life = ChildProcess(self._process.pid, leads_group=True)
        self._tasks = [
            loop.create_task(self._listen(line), name="trellis-handler-line"),
            loop.create_task(self._pass_on(self._process.stderr), name="trellis-handler-errors"),
        ]
        name = f"trellis-process-{self.pid}"
        threading.Thread(target=self._see_end, name=name, daemon=True).start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def say(self, word: str, **details: Any) -> None:  # noqa: ANN401 - JSON values
        """Tell the process something; nothing happens if it is gone."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(protocol.pack(word, **details))

    def hear_nobody(self, message: Message) -> None:
        """Hear what comes while nothing runs: a log line, or what an attempt has left behind."""
        if message["word"] == "record":
            protocol.emit(message, None)
        elif message["word"] == "ask":
            refuse(message, self.answer)

    def answer(self, answer: dict[str, Any]) -> None:
        """Answer a question of its handler, from any thread."""
        with suppress(RuntimeError):  # the worker's loop is gone
            self._loop.call_soon_threadsafe(partial(self.say, "answer", **answer))

    def kill(self) -> None:
        """End the process, and whatever it has started, at once."""
        self._life.kill()

    # -- what comes from it --------------------------------------------------------------------

    async def _listen(self, line: socket.socket) -> None:
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=line)
            while (message := await protocol.read(reader)) is not None:
                if message["word"] == "ready":
                    self._first_peak = int(message["peak"])
                    self.ready.set_result(True)
                else:
                    self.hear(message)
        except BadMessage as error:
            self._remark = f"It was ended because it sent what no handler process sends: {error}."
            self.kill()
        finally:
            if self._writer is not None:
                self._writer.close()

    async def _pass_on(self, errors: IO[bytes] | None) -> None:
        """Copy what it writes to stderr to our own, and remember the end of it."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_read_pipe(lambda: protocol, errors)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        try:
            while chunk := await reader.read(_CHUNK):
                text = decode(chunk)
                self._tail = (self._tail + text)[-_TAIL:]
                with suppress(Exception):  # whatever stands for stderr here may be closed
                    sys.stderr.write(text)
        finally:
            transport.close()

    # -- its end -------------------------------------------------------------------------------

    def _see_end(self) -> None:
        """Wait, in a thread of its own, until the process has ended."""
        code, peak = self._life.wait()
        self._process.returncode = code
        with suppress(RuntimeError):  # the worker's loop is gone
            self._loop.call_soon_threadsafe(self._begin_leave, code, peak)

    def _begin_leave(self, code: int, peak: int) -> None:
        self._leaving = self._loop.create_task(self._leave(code, peak))

    async def _leave(self, code: int, peak: int) -> None:
        """Hear what it said last, then let everybody know that it is gone."""
        _, late = await asyncio.wait(self._tasks, timeout=_TAIL_PATIENCE)
        for task in late:
            task.cancel()
        if code == LINE_CLOSED:
            self._remark = "Its handler closed the line to the worker."
        is_exact = peak > self._first_peak
        lines = tuple(self._tail.splitlines()[-_LAST_LINES:])
        if not self.ready.done():
            self.ready.set_result(False)
        self.ended.set_result(ProcessEnd(code, peak, lines, is_exact, self._remark))


def _spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process; return it with our end of the line to it."""
    ours, theirs = socket.socketpair()
    level = logging.getLogger().level
    told = (
        json.dumps([str(place) for place in sys.path]),
        str(theirs.fileno()),
        str(os.getpid()),
        str(level),
    )
    try:
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, *_interpreter_flags(), "-c", _PROGRAM, *told],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
    except BaseException:
        ours.close()
        raise
    return process, ours


def _interpreter_flags() -> list[str]:
    """Return the flags this interpreter was started with, as `multiprocessing` passes them on."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    return flags


#: How long a process without work is kept, in seconds.
KEPT: Final = 60.0
#: How long one may take to begin, and to leave: lifespans may have something to close.
_START: Final = 60.0
_FAREWELL: Final = 5.0
#: How long the worker waits for those that are leaving when it ends itself.
_LAST_MOMENT: Final = 1.0


class NotStarted(Exception):
    """No process could be started; the message says why."""


class HandlerProcesses:
    """Processes to run attempts in, at most as many as there are slots."""

    def __init__(self, size: int, *, kept: float = KEPT) -> None:
        self._size = size
        self._kept = kept
        #: Those without work, the one used last at the end, and what will end them.
        self._idle: dict[HandlerProcess, asyncio.TimerHandle] = {}
        self._living: set[HandlerProcess] = set()
        self._is_stopping = False

    async def take(self, name: HandlerName, *, fresh: bool) -> HandlerProcess:
        """Return a process for an attempt: one that knows this handler, any, or a new one."""
        process = None if fresh else self._choose(name)
        if process is None:
            process = await self._start()
        process.knows.add(name)
        return process

    def give_back(self, process: HandlerProcess) -> None:
        """Keep a process after a run in which nothing was odd."""
        if self._is_stopping:
            self.dismiss(process)
        elif not process.ended.done():
            loop = asyncio.get_running_loop()
            self._idle[process] = loop.call_later(self._kept, self.dismiss, process)

    def dismiss(self, process: HandlerProcess) -> None:
        """Have a process end in order; after a moment it is killed."""
        self._forget_idle(process)
        process.say("leave")
        asyncio.get_running_loop().call_later(_FAREWELL, process.kill)

    def tell_stopping(self) -> None:
        """Pass on that the worker was told to stop; what has no work ends now."""
        self._is_stopping = True
        for process in tuple(self._living):
            if process in self._idle:
                self.dismiss(process)
            else:
                process.say("stopping")

    async def close(self) -> None:
        """End all processes; afterwards none is left."""
        self._is_stopping = True
        for process in tuple(self._living):
            self.dismiss(process)
        await self._until_gone()
        for process in self._living:
            process.kill()
        await self._until_gone()

    # -- inside --------------------------------------------------------------------------------

    def _choose(self, name: HandlerName) -> HandlerProcess | None:
        ready = [*self._idle]
        if not ready:
            return None
        knowing = [process for process in ready if name in process.knows]
        process = (knowing or ready)[-1]
        self._forget_idle(process)
        return process

    async def _start(self) -> HandlerProcess:
        if len(self._living) >= self._size and self._idle:
            self.dismiss(next(iter(self._idle)))
        try:
            process = HandlerProcess()
        except OSError as error:
            raise NotStarted(str(error)) from error
        self._living.add(process)
        process.ended.add_done_callback(lambda _: self._forget(process))
        await asyncio.wait((process.ready,), timeout=_START)
        if not process.ready.done():
            process.kill()
            raise NotStarted(f"it was not ready after {_START:.0f} s")
        if not process.ready.result():
            raise NotStarted((await process.ended).evidence("The handler's process"))
        return process

    def _forget(self, process: HandlerProcess) -> None:
        self._living.discard(process)
        self._forget_idle(process)

    def _forget_idle(self, process: HandlerProcess) -> None:
        timer = self._idle.pop(process, None)
        if timer is not None:
            timer.cancel()

    async def _until_gone(self) -> None:
        gone = [process.ended for process in self._living]
        if gone:
            await asyncio.wait(gone, timeout=_LAST_MOMENT)
