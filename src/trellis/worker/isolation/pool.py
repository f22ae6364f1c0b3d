"""The handler processes of one worker: started when needed, reused, at most one per slot.

A process runs one attempt at a time and is reused only if nothing unusual happened in the attempt.
A suspect gets a new process, so a crash of that process can only be caused by the suspect.

A handler process is a new interpreter with the working directory, path and environment of the
worker. It leads a process group: signals of the terminal do not reach it, and when it is killed,
the programs that the handler has started are killed too.
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
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final

from trellis.core.job import Fence
from trellis.declaration.imports import HandlerName
from trellis.errors import EngineClosed, EngineError
from trellis.worker.child_process import ChildProcess, ProcessEnd
from trellis.worker.isolation import protocol
from trellis.worker.isolation.protocol import CHANNEL_CLOSED, BadMessage, Message
from trellis.worker.locks import LockService
from trellis.worker.session import Lease

#: How long an idle process is kept, in seconds.
IDLE_TIME: Final = 60.0
#: How long a process may take to start, in seconds.
_START_TIMEOUT: Final = 60.0
#: How many processes start at a time. A start is work for one processor: more at a time would only
#: delay the first one, as after a crash, when every slot wants a process.
_MOST_STARTING: Final = max(2, os.cpu_count() or 1)
#: How long it may take to exit, in seconds: lifespans may have resources to close.
_EXIT_TIMEOUT: Final = 5.0
#: How long a worker that ends waits for its processes before it kills them, in seconds.
_CLOSE_TIMEOUT: Final = 1.0
#: How long stderr and messages are read after the end of a process, in seconds: a program that the
#: handler has started may keep stderr open.
_TAIL_TIMEOUT: Final = 0.5
_LAST_LINES: Final = 20
_TAIL: Final = 4096
_CHUNK: Final = 65536
#: Sets the path first, so that modules are found where the worker has found them.
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trellis.worker.isolation.child import main; main(*map(int, sys.argv[2:]))"
)
_ATTEMPT_ENDED: Final = "The attempt has ended, and its locks are no longer held."


class NotStarted(Exception):
    """No process could be started; the message has the reason."""


class HandlerPool:
    """Processes to run attempts in, at most as many as there are slots."""

    def __init__(self, size: int, *, idle_time: float = IDLE_TIME) -> None:
        self._size = size
        self._idle_time = idle_time
        #: Processes without work, the last used one at the end, and the timers that end them.
        self._idle: dict[HandlerProcess, asyncio.TimerHandle] = {}
        self._living: set[HandlerProcess] = set()
        self._starting = 0
        # Attempts that wait until fewer processes start, or one is idle.
        self._waiting: list[asyncio.Future[None]] = []
        self._is_stopping = self._is_closed = False

    async def take(self, name: HandlerName, *, fresh: bool) -> HandlerProcess:
        """Return a process: an idle one, best one that has loaded this handler, or a new one."""
        process = None if fresh else self._take_idle(name)
        while process is None and self._starting >= _MOST_STARTING:
            await self._wait_for_turn()
            if self._is_closed:
                raise NotStarted("the worker has stopped")
            process = None if fresh else self._take_idle(name)
        if process is None:
            self._starting += 1
            try:
                process = await self._start()
            finally:
                self._starting -= 1
                self._wake()
        process.loaded.add(name)
        return process

    async def _wait_for_turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    def give_back(self, process: HandlerProcess) -> None:
        """Keep a process for another attempt."""
        if self._is_stopping:
            self.retire(process)
        elif not process.ended.done():
            loop = asyncio.get_running_loop()
            self._idle[process] = loop.call_later(self._idle_time, self.retire, process)
            self._wake()

    def retire(self, process: HandlerProcess) -> None:
        """Have a process exit gracefully; it is killed if that takes too long."""
        self._remove_idle(process)
        process.send("exit")
        asyncio.get_running_loop().call_later(_EXIT_TIMEOUT, process.kill)

    def notify_stopping(self) -> None:
        """Report to the handlers that the worker is stopping, and retire idle processes."""
        self._is_stopping = True
        for process in tuple(self._living):
            if process in self._idle:
                self.retire(process)
            else:
                process.send("stopping")

    def notify_renewed(self, lease: Lease | None) -> None:
        """Report the lease of the worker to the handlers."""
        for process in self._living - self._idle.keys():
            process.send("renewed", lease=protocol.encode_lease(lease))

    async def close(self) -> None:
        """End all processes."""
        self._is_stopping = self._is_closed = True
        self._wake()
        for process in tuple(self._living):
            self.retire(process)
        await self._wait_for_ends()
        for process in self._living:
            process.kill()
        await self._wait_for_ends()

    def _take_idle(self, name: HandlerName) -> HandlerProcess | None:
        idle = [*self._idle]
        if not idle:
            return None
        with_handler = [process for process in idle if name in process.loaded]
        process = (with_handler or idle)[-1]
        self._remove_idle(process)
        return process

    async def _start(self) -> HandlerProcess:
        if len(self._living) >= self._size and self._idle:
            self.retire(next(iter(self._idle)))
        try:
            process = HandlerProcess()
        except OSError as error:
            raise NotStarted(str(error)) from error
        self._living.add(process)
        process.ended.add_done_callback(lambda _: self._remove(process))
        await asyncio.wait((process.ready,), timeout=_START_TIMEOUT)
        if not process.ready.done():
            process.kill()
            raise NotStarted(f"it was not ready after {_START_TIMEOUT:.0f} s")
        if not process.ready.result():
            raise NotStarted((await process.ended).evidence("The handler's process"))
        return process

    def _remove(self, process: HandlerProcess) -> None:
        self._living.discard(process)
        self._remove_idle(process)

    def _remove_idle(self, process: HandlerProcess) -> None:
        timer = self._idle.pop(process, None)
        if timer is not None:
            timer.cancel()

    async def _wait_for_ends(self) -> None:
        ends = [process.ended for process in self._living]
        if ends:
            await asyncio.wait(ends, timeout=_CLOSE_TIMEOUT)


class HandlerProcess:
    """A process that runs one attempt at a time; raises `OSError` if it cannot be started."""

    def __init__(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        #: True when it can take a job; False if it ended before.
        self.ready: asyncio.Future[bool] = loop.create_future()
        #: Done when it has ended and all its messages were handled.
        self.ended: asyncio.Future[ProcessEnd] = loop.create_future()
        #: The handlers it has loaded.
        self.loaded: set[HandlerName] = set()
        #: Handles its messages.
        self.on_message: Callable[[Message], None] = self.handle_idle
        self._tail = ""
        self._first_peak = 0
        self._remark = ""
        self._writer: asyncio.StreamWriter | None = None
        self._process, channel = _spawn()
        self._child = ChildProcess(self._process.pid, leads_group=True)
        self._tasks = [
            loop.create_task(self._receive(channel), name="trellis-handler-messages"),
            loop.create_task(self._relay(self._process.stderr), name="trellis-handler-stderr"),
        ]
        name = f"trellis-process-{self._process.pid}"
        threading.Thread(target=self._wait_for_exit, name=name, daemon=True).start()

    def send(self, message: str, **fields: Any) -> None:  # noqa: ANN401 - JSON values
        """Send a message of this type; do nothing if the process has ended."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(protocol.encode(message, **fields))

    def handle_idle(self, message: Message) -> None:
        """Handle a message that belongs to no running attempt, such as one of an ended attempt."""
        if message["message"] == "log_record":
            protocol.emit_log_record(message, None)
        elif message["message"] == "lock_request":
            self._reply(message, _ATTEMPT_ENDED, EngineClosed.code)

    def serve_lock(self, request: Message, fence: Fence, locks: LockService) -> None:
        """Take or free a lock for this attempt and send the reply."""
        match request:
            case {"action": "take", "name": str(name)}:
                result: Future[Any] = locks.take(fence, name)
            case {"action": "free", "name": str(name)}:
                result = locks.free(fence, name)
            case _:
                raise BadMessage("an unknown lock request")
        result.add_done_callback(partial(self._reply_result, request))

    def kill(self) -> None:
        """End the process, and the programs it has started, immediately."""
        self._child.kill()

    def _reply_result(self, request: Message, result: Future[Any]) -> None:
        error = EngineClosed(_ATTEMPT_ENDED) if result.cancelled() else result.exception()
        if error is None:
            self._reply(request, result.result(), None)
        else:
            code = error.code if isinstance(error, EngineError) else EngineError.code
            self._reply(request, str(error), code)

    def _reply(self, request: Message, value: Any, error: str | None) -> None:  # noqa: ANN401 - JSON
        """Reply to a lock request, from any thread."""
        fields = {"number": request.get("number"), "value": value, "error": error}
        with suppress(RuntimeError):  # the loop of the worker is closed
            self._loop.call_soon_threadsafe(partial(self.send, "lock_reply", **fields))

    async def _receive(self, channel: socket.socket) -> None:
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=channel)
            while (message := await protocol.read(reader)) is not None:
                if message["message"] == "ready":
                    self._first_peak = int(message["peak_memory"])
                    self.ready.set_result(True)
                else:
                    self.on_message(message)
        except BadMessage as error:
            self._remark = f"It was killed because it sent an invalid message: {error}."
            self.kill()
        finally:
            if self._writer is not None:
                self._writer.close()

    async def _relay(self, stderr: IO[bytes] | None) -> None:
        """Copy the stderr of the process to the worker's and keep the last part."""
        reader = asyncio.StreamReader()
        stream = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_read_pipe(lambda: stream, stderr)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        try:
            while chunk := await reader.read(_CHUNK):
                text = decode(chunk)
                self._tail = (self._tail + text)[-_TAIL:]
                with suppress(Exception):  # the program may have closed or replaced `sys.stderr`
                    sys.stderr.write(text)
        finally:
            transport.close()

    def _wait_for_exit(self) -> None:
        """Wait, in a separate thread, until the process has ended."""
        code, peak_memory = self._child.wait()
        self._process.returncode = code
        with suppress(RuntimeError):  # the loop of the worker is closed
            self._loop.call_soon_threadsafe(self._start_ending, code, peak_memory)

    def _start_ending(self, code: int, peak_memory: int) -> None:
        self._ending = self._loop.create_task(self._end(code, peak_memory))

    async def _end(self, code: int, peak_memory: int) -> None:
        """Handle the last messages, then report the end."""
        _, late = await asyncio.wait(self._tasks, timeout=_TAIL_TIMEOUT)
        for task in late:
            task.cancel()
        if code == CHANNEL_CLOSED:
            self._remark = "Its handler closed the channel to the worker."
        is_exact = peak_memory > self._first_peak
        lines = tuple(self._tail.splitlines()[-_LAST_LINES:])
        if not self.ready.done():
            self.ready.set_result(False)
        self.ended.set_result(ProcessEnd(code, peak_memory, lines, is_exact, self._remark))


def _spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process; return it with the worker's end of the channel."""
    ours, theirs = socket.socketpair()
    arguments = (
        json.dumps([str(entry) for entry in sys.path]),
        str(theirs.fileno()),
        str(os.getpid()),
        str(logging.getLogger().level),
    )
    try:
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - a trusted command
                [sys.executable, *_interpreter_flags(), "-c", _PROGRAM, *arguments],
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
