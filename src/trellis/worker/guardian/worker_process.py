"""One worker process in the guardian's care: its start, its line, its last words, its end.

The guardian stays its parent from the first moment to the last, so its end is always seen, with the
exit code and the memory it used. It shares the guardian's process group.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from trellis.worker.child_process import Ended, Life
from trellis.worker.guardian.channel import Bye, Hello, Link
from trellis.worker.guardian.stacks import ASK, Frame, blocking_frame
from trellis.worker.guardian.stderr_relay import Relay
from trellis.worker.shared_status import SharedStatus, status_size

_LAST_LINES: Final = 20
_STACK_PATIENCE: Final = 1.0
_TAIL_PATIENCE: Final = 0.2


#: Returns the command that starts a worker process which finds these open files.
Recipe = Callable[[Mapping[str, int]], Sequence[str]]


class Ward:
    """A worker process."""

    def __init__(
        self, recipe: Recipe, slots: int, relay: Relay, on_hello: Callable[[Ward], None]
    ) -> None:
        self._recipe = recipe
        self._relay = relay
        self.on_hello = on_hello
        self._slots = slots
        self._stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as we do
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._life: Life | None = None
        self._link: Link | None = None
        self._tasks: list[asyncio.Task[None]] = []
        with tempfile.TemporaryFile() as memory:
            memory.truncate(status_size(slots))
            self.status = SharedStatus(slots, memory.fileno())
            self._status_file = os.dup(memory.fileno())
        self.started = 0.0
        #: Where the process keeps its jobs, said before it opens a session there; "" before.
        self.url = ""
        self.opening = asyncio.Event()
        #: What it works on, said once it does.
        self.hello: Hello | None = None
        self.bye: Bye | None = None
        #: Set when the process has said bye and should end soon.
        self.parted = asyncio.Event()
        self.ended: Ended | None = None
        #: Whether we have ended it by force.
        self.was_killed = False

    @property
    def pid(self) -> int:
        """The number of the process."""
        if self._process is None:
            raise RuntimeError("The worker process was not started.")
        return self._process.pid

    async def start(self) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair()
        # Its way to the terminal when we are gone, and our end of its pipe, so that no write of a
        # handler fails before it has noticed.
        errors, (pipe, writing) = os.dup(sys.stderr.fileno()), os.pipe()
        named = {"link": theirs.fileno(), "status": self._status_file,
                 "stacks": self._stacks.fileno(), "errors": errors, "pipe": pipe}  # fmt: skip
        self._errors = os.fdopen(pipe, "rb", 0)
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - our own, at once
                    self._recipe(named),
                    stdin=subprocess.DEVNULL, stderr=writing, pass_fds=tuple(named.values()),
                )  # fmt: skip
        except OSError:
            ours.close()
            self._errors.close()
            raise
        finally:
            for file in (self._status_file, errors, writing):
                os.close(file)
        self._life = Life(self._process.pid, leads_group=False)
        self._end: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._see_end, args=(self._life,), daemon=True).start()
        self.started = time.monotonic()
        self._link = await Link.over(ours)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._pass_on())]

    def _see_end(self, life: Life) -> None:
        """Wait for the end in a thread of its own: a pool's may all be taken by the living."""
        end = life.wait()
        with suppress(RuntimeError):  # the guardian itself has ended
            self._end.get_loop().call_soon_threadsafe(self._end.set_result, end)

    async def until_ended(self) -> Ended:
        """Wait for the end of the process and for its last words."""
        if self._process is None:
            raise RuntimeError("The worker process was not started.")
        code, peak = await self._end
        self._process.returncode = code
        # Whatever the process started may keep its stderr open: the last lines are not worth more.
        await asyncio.wait(self._tasks, timeout=_TAIL_PATIENCE)
        for task in self._tasks:
            task.cancel()
        self.ended = Ended(code, peak, tuple(self._lines))
        if self._link is not None:
            self._link.close()
        self._errors.close()
        self._stacks.close()
        return self.ended

    async def say(self, word: str) -> None:
        """Send a word down the line."""
        if self._link is not None:
            await self._link.send(word)

    def kill(self) -> None:
        """End the process at once."""
        if self._life is not None:
            self.was_killed = True
            self._life.kill()

    async def stack(self) -> Frame | None:
        """Ask where the process is stuck."""
        start = os.fstat(self._stacks.fileno()).st_size
        if self._life is not None:
            self._life.signal(ASK)
        ends = time.monotonic() + _STACK_PATIENCE
        size = start
        while time.monotonic() < ends:
            await asyncio.sleep(0.05)
            before, size = size, os.fstat(self._stacks.fileno()).st_size
            if size == before > start:
                break
        return blocking_frame(os.pread(self._stacks.fileno(), size - start, start).decode())

    async def _listen(self) -> None:
        if self._link is None:
            return
        async for said in self._link.words():
            match said:
                case {"word": "opening", "url": url}:
                    self.url = url
                    self.opening.set()
                case {"word": "hello", "types": types}:
                    self.hello = Hello(types)
                    self.on_hello(self)
                case {"word": "bye", "reason": reason, "settled": settled, "last_state": state}:
                    self.bye = Bye(reason, settled, state)
                    self.parted.set()
                case _:
                    pass

    async def _pass_on(self) -> None:
        """Copy the process's stderr to ours and remember the last lines."""
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_read_pipe(lambda: protocol, self._errors)
        try:
            while line := await _line(reader):
                self._relay.put(line)
                self._lines.append(line.decode(errors="replace").rstrip("\n"))
        finally:
            transport.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line, or a piece of one that never ends."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError as long:
        return await reader.readexactly(long.consumed)
