"""One worker process as its guardian sees it: start, messages, stderr, stacks, end.

The guardian is its parent from start to end, so it always sees the exit code and the memory used.
The process stays in the process group of the guardian.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

from trellis.core.job import Fence
from trellis.telemetry.registry import Snapshot, from_json
from trellis.worker.child_process import ChildProcess, ProcessEnd
from trellis.worker.guardian.channel import Channel, Finished, ReplacementReason, Working
from trellis.worker.guardian.source_watch import SourceWatch
from trellis.worker.guardian.stacks import STACK_SIGNAL, Frame, blocking_frame
from trellis.worker.guardian.stderr_relay import StderrRelay
from trellis.worker.shared_status import SharedStatus, status_size

#: The signals that a worker process ignores, from its start: its guardian handles them.
LEFT_TO_GUARDIAN: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How many lines of stderr are kept for the error of a job.
_LAST_LINES: Final = 20
#: How long the process may take to write its stacks, in seconds.
_STACK_TIMEOUT: Final = 1.0
#: How long stderr is read after the end of the process, in seconds.
_TAIL_TIMEOUT: Final = 0.2

#: Returns the command that starts a worker process; takes the numbers of the open files for it.
BuildCommand = Callable[[Mapping[str, int]], Sequence[str]]


class WorkerProcess:
    """A worker process."""

    #: Whether it was stopped while the worker works on.
    is_replaced = False
    #: Whether the guardian has killed it.
    was_killed = False
    #: Whether an operator has drained its session; known at its end.
    was_drained = False

    def __init__(
        self,
        build_command: BuildCommand,
        slots: int,
        relay: StderrRelay,
        *,
        on_working: Callable[[WorkerProcess], None],
        on_crashed: Callable[[str], None],
        sources: SourceWatch,
    ) -> None:
        self._build_command = build_command
        self._relay = relay
        self._on_working = on_working
        self._on_crashed = on_crashed
        #: The files that the process has loaded, if it names them.
        self.sources = sources
        self._stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._child: ChildProcess | None = None
        self._channel: Channel | None = None
        self._tasks: list[asyncio.Task[None]] = []
        with tempfile.TemporaryFile() as memory:
            memory.truncate(status_size(slots))
            self.status = SharedStatus(slots, memory.fileno())
            self._status_file = os.dup(memory.fileno())
        #: When the process was started, by the monotonic clock.
        self.started = 0.0
        #: The URL of its engine; empty until `opening` is set.
        self.url = ""
        #: Set when the process is about to open a session.
        self.opening = asyncio.Event()
        #: What it works on; None until it claims jobs.
        self.working: Working | None = None
        #: Set when it claims jobs.
        self.is_working = asyncio.Event()
        #: Set when it asks for a successor, and why.
        self.successor_wanted = asyncio.Event()
        self.replacement_reason: ReplacementReason = "lost_threads"
        #: Set when too many earlier processes live: it should stop within the grace.
        self.must_leave = asyncio.Event()
        #: Its last message; None if it ended without one.
        self.finished: Finished | None = None
        #: Set when `finished` has arrived.
        self.has_finished = asyncio.Event()
        self.end: ProcessEnd | None = None
        #: The types of the attempts that ran in it when it died, if it was not stopped.
        self.types_inside: Mapping[Fence, str] = {}
        #: What it has counted, as of its last message.
        self.metrics: Snapshot = {}

    @property
    def pid(self) -> int:
        """The process id."""
        if self._process is None:
            raise RuntimeError("The worker process was not started.")
        return self._process.pid

    async def start(self) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair()
        # The process gets the guardian's stderr and the reading end of its pipe too, so that no
        # write of a handler fails if the guardian ends first.
        stderr, (pipe, writing) = os.dup(sys.stderr.fileno()), os.pipe()
        files = {
            "channel": theirs.fileno(), "status": self._status_file,
            "stacks": self._stacks.fileno(), "stderr": stderr, "stderr_pipe": pipe,
        }  # fmt: skip
        self._stderr = os.fdopen(pipe, "rb", 0)
        try:
            with theirs, _signals_blocked():
                self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - a trusted, short call
                    self._build_command(files),
                    stdin=subprocess.DEVNULL, stderr=writing, pass_fds=tuple(files.values()),
                )  # fmt: skip
        except OSError:
            ours.close()
            self._stderr.close()
            raise
        finally:
            for file in (self._status_file, stderr, writing):
                os.close(file)
        self._child = ChildProcess(self._process.pid, leads_group=False)
        self._exit: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._wait_for_exit, args=(self._child,), daemon=True).start()
        self.started = time.monotonic()
        self._channel = await Channel.open(ours)
        self._tasks = [
            asyncio.create_task(self._receive(self._channel)),
            asyncio.create_task(self._relay_stderr()),
        ]

    def _wait_for_exit(self, child: ChildProcess) -> None:
        """Wait for the exit in a separate thread: the threads of a pool may all be waiting."""
        result = child.wait()
        with suppress(RuntimeError):  # the loop of the guardian is closed
            self._exit.get_loop().call_soon_threadsafe(self._exit.set_result, result)

    async def wait(self) -> ProcessEnd:
        """Wait until the process has ended and its messages and stderr are read."""
        if self._process is None:
            raise RuntimeError("The worker process was not started.")
        code, peak_memory = await self._exit
        self._process.returncode = code
        # A program that the process has started may keep stderr open, so the wait is short.
        await asyncio.wait(self._tasks, timeout=_TAIL_TIMEOUT)
        for task in self._tasks:
            task.cancel()
        self.end = ProcessEnd(code, peak_memory, tuple(self._last_lines))
        if self._channel is not None:
            self._channel.close()
        self._stderr.close()
        self._stacks.close()
        return self.end

    async def send(self, message: str, **fields: Any) -> None:  # noqa: ANN401 - JSON values
        """Send a message of this type."""
        if self._channel is not None:
            await self._channel.send(message, **fields)

    def kill(self) -> None:
        """End the process immediately."""
        if self._child is not None:
            self.was_killed = True
            self._child.kill()

    async def blocking_frame(self) -> Frame | None:
        """Request the stacks and return where the process is blocked."""
        start = os.fstat(self._stacks.fileno()).st_size
        if self._child is not None:
            self._child.signal(STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_TIMEOUT
        size = start
        while time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            before, size = size, os.fstat(self._stacks.fileno()).st_size
            if size == before > start:
                break
        return blocking_frame(os.pread(self._stacks.fileno(), size - start, start).decode())

    async def _receive(self, channel: Channel) -> None:
        async for message in channel.messages():
            match message:
                case {"message": "opening", "url": url}:
                    self.url = url
                    self.opening.set()
                case {"message": "sources", "files": files}:
                    self.sources.add(files)
                case {"message": "working", "types": types}:
                    self.working = Working(types)
                    self.is_working.set()
                    self._on_working(self)
                case {"message": "metrics", "values": values}:
                    self.metrics = from_json(values)
                case {"message": "crashed", "type": name}:
                    self._on_crashed(name)
                case {"message": "successor_wanted", "reason": reason}:
                    self.replacement_reason = reason
                    self.successor_wanted.set()
                case {
                    "message": "finished",
                    "reason": reason,
                    "begun": begun,
                    "settled": settled,
                    "last_state": last_state,
                }:
                    self.finished = Finished(reason, begun, settled, last_state)
                    self.has_finished.set()
                case _:
                    pass

    async def _relay_stderr(self) -> None:
        """Copy the stderr of the process to the guardian's and keep the last lines."""
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_read_pipe(lambda: protocol, self._stderr)
        try:
            while line := await _read_line(reader):
                self._relay.put(line)
                self._last_lines.append(line.decode(errors="replace").rstrip("\n"))
        finally:
            transport.close()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Let a process start with these signals blocked: it unblocks them once it handles them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_GUARDIAN)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line, or a part of one that exceeds the limit."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError as long:
        return await reader.readexactly(long.consumed)
