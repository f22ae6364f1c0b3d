"""What a worker process is doing, in memory that it shares with its guardian.

The guardian reads this memory without the help of the process: while its loop is blocked, while C
code holds the interpreter lock, and after its death. The process writes, the guardian reads. A
reader may see a record half written only while the process lives, so no attempt is ended because of
one look at a living process.

Besides the attempts that run now, the memory holds the tokens of those that began recently: an
attempt that has begun must never be handed back as if it had not, even after its handler has ended.
"""

from __future__ import annotations

import mmap
import struct
from math import inf
from typing import Final, NamedTuple

from trellis.core.durations import Instant
from trellis.core.job import Fence, JobId, SessionId

#: After this many seconds without a step a loop counts as blocked.
BLOCKED: Final = 2.0
# In this machine's byte order: written and read on one machine, and packed much faster.
#: session, loop moved, lease renewed, unwinding, blocking attempt, loop moved when that was seen
_HEADER: Final = struct.Struct("@qddqqd")
#: session, token, began, timeout at, started at, job, place; no session: an empty record
_RECORD: Final = struct.Struct("@qqddq26sB")
#: Where a handler runs: in the process, in a handler process, or in a lost thread.
_INSIDE: Final = 0
_ISOLATED: Final = 1
_LOST: Final = 2
_TIMES: Final = struct.Struct("@ddq")
_TIMES_AT: Final = 16
_PLACE_AT: Final = _RECORD.size - 1
_TOKEN: Final = struct.Struct("@q")
_TIME: Final = struct.Struct("@d")
#: How many tokens of attempts that began recently are kept.
_RECENT_TOKENS: Final = 8192
_MOVED_AT: Final = 8
_RENEWED_AT: Final = 16
_UNWINDING_AT: Final = 24
_BLOCKING: Final = struct.Struct("@qd")
_BLOCKING_AT: Final = 32
# Called for every job, so they are looked up once.
_write_record: Final = _RECORD.pack_into
_write_token: Final = _TOKEN.pack_into


class Running(NamedTuple):
    """An attempt whose handler runs; times by the monotonic clock, `started_at` the engine's."""

    fence: Fence
    began: float
    timeout_at: float
    started_at: Instant | None
    job_id: JobId
    #: Its handler runs in a handler process, so it cannot have caused the death of this one.
    isolated: bool = False
    #: Its attempt has ended, and its handler runs on in a thread.
    lost: bool = False


def status_size(slots: int) -> int:
    """Return the size in bytes of the status of a process with this many slots."""
    return _HEADER.size + _records(slots) * _RECORD.size + _RECENT_TOKENS * _TOKEN.size


def _records(slots: int) -> int:
    """Return how many records there are: slots, and as many that lost threads may keep."""
    return 2 * slots


class SharedStatus:
    """The shared memory of one worker process; without a file, only the process itself sees it."""

    def __init__(self, slots: int, file: int = -1) -> None:
        self._memory = mmap.mmap(file, status_size(slots))
        records = _records(slots)
        self._recent_at = _HEADER.size + records * _RECORD.size
        self._records = tuple(_HEADER.size + slot * _RECORD.size for slot in range(records))
        self._next = self._recent_at

    # -- written by the worker -----------------------------------------------------------------

    def set_session(self, session: SessionId) -> None:
        """Write the session under which the process claims from now on."""
        _TOKEN.pack_into(self._memory, 0, session)

    def set_loop_moved(self, now: float) -> None:
        """Write when the loop last made a step."""
        _TIME.pack_into(self._memory, _MOVED_AT, now)

    def set_lease_renewed(self, now: float) -> None:
        """Write when the lease was last renewed."""
        _TIME.pack_into(self._memory, _RENEWED_AT, now)

    def set_blocking(self, token: int, loop_moved: float) -> None:
        """Write which attempt (0: unknown) blocks the loop since it last made a step."""
        _BLOCKING.pack_into(self._memory, _BLOCKING_AT, token, loop_moved)

    def set_unwinding(self) -> None:
        """Write that the loop ends although the worker was not stopped."""
        _TOKEN.pack_into(self._memory, _UNWINDING_AT, 1)

    def begin(  # noqa: PLR0917 - positional, because it is on the hot path
        self,
        slot: int,
        fence: Fence,
        job_id: JobId,
        began: float,
        timeout_at: float,
        started_at: Instant,
    ) -> None:
        """Write that the handler of an attempt is about to be called in this slot."""
        memory, (session, token) = self._memory, fence
        _write_record(
            memory, self._records[slot],
            session, token, began, timeout_at, started_at, job_id.encode(), _INSIDE,
        )  # fmt: skip
        position = self._next
        _write_token(memory, position, token)
        position += _TOKEN.size
        self._next = self._recent_at if position == len(memory) else position

    def isolate(self, slot: int) -> None:
        """Write that the handler of this slot is not called yet, and not in this process."""
        start = self._records[slot]
        self._memory[start + _PLACE_AT] = _ISOLATED
        _TIME.pack_into(self._memory, start + _TIMES_AT + _TIME.size, inf)

    def enter(
        self, slot: int, *, began: float, timeout_at: float, started_at: Instant, isolated: bool
    ) -> None:
        """Write that the handler of an isolated slot is called now; here, if not `isolated`."""
        start = self._records[slot]
        _TIMES.pack_into(self._memory, start + _TIMES_AT, began, timeout_at, started_at)
        self._memory[start + _PLACE_AT] = _ISOLATED if isolated else _INSIDE

    def lose(self, slot: int) -> None:
        """Write that the attempt of this slot has ended although its handler runs on."""
        start = self._records[slot]
        self._memory[start + _PLACE_AT] = _LOST
        _TIME.pack_into(self._memory, start + _TIMES_AT + _TIME.size, inf)

    def end(self, slot: int) -> None:
        """Write that the handler of this slot has ended."""
        _write_token(self._memory, self._records[slot], 0)

    def detach(self) -> None:
        """Write to private memory from now on: this process is a forked copy."""
        self._memory = mmap.mmap(-1, len(self._memory))

    # -- read by the guardian ------------------------------------------------------------------

    @property
    def session(self) -> SessionId:
        """The session of the process; 0 before it has one."""
        return SessionId(_TOKEN.unpack_from(self._memory, 0)[0])

    @property
    def loop_moved(self) -> float:
        """When the loop last made a step, by the monotonic clock; 0 before the first."""
        return float(_TIME.unpack_from(self._memory, _MOVED_AT)[0])

    @property
    def lease_renewed(self) -> float:
        """When the lease was last renewed, by the monotonic clock; 0 before the first time."""
        return float(_TIME.unpack_from(self._memory, _RENEWED_AT)[0])

    @property
    def is_unwinding(self) -> bool:
        """Whether the loop ended, or began to end, although the worker was not stopped."""
        return bool(_TOKEN.unpack_from(self._memory, _UNWINDING_AT)[0])

    def running(self) -> list[Running]:
        """Return the attempts whose handlers run."""
        found = []
        for start in self._records:
            record = _RECORD.unpack_from(self._memory, start)
            session, token, began, timeout_at, started_at, job_id, place = record
            if session:
                fence = Fence(SessionId(session), token)
                identity = JobId(job_id.decode("ascii", "replace"))
                isolated, lost = place == _ISOLATED, place == _LOST
                times = began, timeout_at, started_at
                found.append(Running(fence, *times, identity, isolated, lost))
        return found

    def blocking(self) -> Running | None:
        """Return the attempt whose handler blocks the loop; None if that is unknown.

        The process writes it, unless its handler holds the interpreter lock. If only one handler
        runs in the process, it is that one.
        """
        token, loop_moved = _BLOCKING.unpack_from(self._memory, _BLOCKING_AT)
        inside = [each for each in self.running() if not each.isolated and not each.lost]
        if token and loop_moved == self.loop_moved:
            inside = [each for each in inside if each.fence.token == token]
        return inside[0] if len(inside) == 1 else None

    def has_begun(self, fence: Fence) -> bool:
        """Return whether the handler of this attempt was ever called; True if in doubt."""
        token = _TOKEN.pack(fence.token)  # never 0, the value of an empty entry
        kept = self._memory[self._recent_at :]
        at = kept.find(token)
        while at >= 0 and at % _TOKEN.size:
            at = kept.find(token, at + 1)
        return at >= 0

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
