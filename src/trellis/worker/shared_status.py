"""What a worker process is doing, written where its guardian can read it whatever happens to it.

A small piece of shared memory: nobody has to ask the process, so it can be read while its loop is
blocked, while C code holds the interpreter lock, and after its death. The process writes, the
guardian reads; a reader may see a record half written only while the process lives, so nothing
that ends an attempt is decided from one look at a living process.

Besides the attempts that run now it keeps the tokens of those that began lately: an attempt that
has begun must never be handed back as if it had not, even when its handler has ended since.
"""

from __future__ import annotations

import mmap
import struct
from math import inf
from typing import Final, NamedTuple

from trellis.core.durations import Instant
from trellis.core.job import Fence, JobId, SessionId

# In this machine's own form: written and read here only, and packed much faster.
_HEADER: Final = struct.Struct("@qddq")  # session, loop moved, lease renewed, unwinding
#: session, token, began, timeout at, started at, job, isolated
_RECORD: Final = struct.Struct("@qqddq26s?")
_TIMES: Final = struct.Struct("@ddq")
_TIMES_AT: Final = 16
_ISOLATED_AT: Final = _RECORD.size - 1
_TOKEN: Final = struct.Struct("@q")
_TIME_VALUE: Final = struct.Struct("@d")
_RECENT_TOKENS: Final = 8192
_MOVED_AT: Final = 8
_RENEWED_AT: Final = 16
_UNWINDING_AT: Final = 24
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
    #: Its handler is not in this process: whatever happens to this one is not its doing.
    isolated: bool = False


def status_size(slots: int) -> int:
    """Return how many bytes a board for so many slots needs."""
    return _HEADER.size + slots * _RECORD.size + _RECENT_TOKENS * _TOKEN.size


class SharedStatus:
    """The shared memory of one worker process; without a file it is seen by the process alone."""

    def __init__(self, slots: int, file: int = -1) -> None:
        self._memory = mmap.mmap(file, status_size(slots))
        self._recent_at = _HEADER.size + slots * _RECORD.size
        self._records = tuple(_HEADER.size + slot * _RECORD.size for slot in range(slots))
        self._next = self._recent_at

    # -- written by the worker -----------------------------------------------------------------

    def set_session(self, session: SessionId) -> None:
        """Note the session under which is claimed from now on."""
        _TOKEN.pack_into(self._memory, 0, session)

    def set_loop_moved(self, now: float) -> None:
        """Note that the loop moves."""
        _TIME_VALUE.pack_into(self._memory, _MOVED_AT, now)

    def set_lease_renewed(self, now: float) -> None:
        """Note that the lease was renewed."""
        _TIME_VALUE.pack_into(self._memory, _RENEWED_AT, now)

    def set_unwinding(self) -> None:
        """Note that the loop ends although the worker was not stopped."""
        _TOKEN.pack_into(self._memory, _UNWINDING_AT, 1)

    def begin(
        self, slot: int, fence: Fence, job_id: JobId, *,
        began: float, timeout_at: float, started_at: Instant,
    ) -> None:  # fmt: skip
        """Note that a handler is about to be called in this slot."""
        memory, (session, token) = self._memory, fence
        _write_record(
            memory, self._records[slot],
            session, token, began, timeout_at, started_at, job_id.encode(), False,
        )  # fmt: skip
        place = self._next
        _write_token(memory, place, token)
        place += _TOKEN.size
        self._next = self._recent_at if place == len(memory) else place

    def isolate(self, slot: int) -> None:
        """Note that the handler of this slot is yet to be called, and not in this process."""
        start = self._records[slot]
        self._memory[start + _ISOLATED_AT] = True
        _TIME_VALUE.pack_into(self._memory, start + _TIMES_AT + _TIME_VALUE.size, inf)

    def enter(
        self, slot: int, *, began: float, timeout_at: float, started_at: Instant, isolated: bool
    ) -> None:
        """Note that the handler of such a slot is called now; in this process, if not isolated."""
        start = self._records[slot]
        _TIMES.pack_into(self._memory, start + _TIMES_AT, began, timeout_at, started_at)
        self._memory[start + _ISOLATED_AT] = isolated

    def end(self, slot: int) -> None:
        """Note that the handler of this slot has ended."""
        _write_token(self._memory, self._records[slot], 0)  # a record without a session is none

    def detach(self) -> None:
        """Write to private memory from now on: this process is a copy of the one that is read."""
        self._memory = mmap.mmap(-1, len(self._memory))

    # -- read by the guardian ------------------------------------------------------------------

    @property
    def session(self) -> SessionId:
        """The session of the process; 0 before it has one."""
        return SessionId(_TOKEN.unpack_from(self._memory, 0)[0])

    @property
    def loop_moved(self) -> float:
        """When the loop last moved, by the monotonic clock; 0 before it did."""
        return float(_TIME_VALUE.unpack_from(self._memory, _MOVED_AT)[0])

    @property
    def lease_renewed(self) -> float:
        """When the process last renewed its lease, by the monotonic clock; 0 before it did."""
        return float(_TIME_VALUE.unpack_from(self._memory, _RENEWED_AT)[0])

    @property
    def is_unwinding(self) -> bool:
        """Whether the loop ended, or began to end, although the worker was not stopped."""
        return bool(_TOKEN.unpack_from(self._memory, _UNWINDING_AT)[0])

    def running(self) -> list[Running]:
        """Return the attempts whose handlers run."""
        found = []
        for start in self._records:
            record = _RECORD.unpack_from(self._memory, start)
            session, token, began, timeout_at, started_at, job_id, isolated = record
            if session:
                fence = Fence(SessionId(session), token)
                identity = JobId(job_id.decode("ascii", "replace"))
                found.append(Running(fence, began, timeout_at, started_at, identity, isolated))
        return found

    def has_begun(self, fence: Fence) -> bool:
        """Tell whether the handler of this attempt was ever called; if in doubt, it was."""
        token = _TOKEN.pack(fence.token)  # never 0, which is what a place not yet written holds
        kept = self._memory[self._recent_at :]
        at = kept.find(token)
        while at >= 0 and at % _TOKEN.size:
            at = kept.find(token, at + 1)
        return at >= 0

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
