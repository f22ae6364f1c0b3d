"""Ids of new jobs: ULIDs, in ascending order within a process.

A bulk create needs a hundred thousand ids per second, and a ULID object of a library costs as much
as storing the job: these cost a tenth. The layout is the standard's: 48 bits of milliseconds, then
80 random bits, in Crockford's base 32. Within one millisecond the random part grows by a random
step, so later ids sort later, and their last letters, which users type as short ids, still differ.
Ids made together share their first letters, which are written once. A forked child starts with a
new random part.
"""

from __future__ import annotations

import os
import random
import threading
import time
from itertools import chain
from typing import Any, Final

from trellis.core.job import JobId

_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: Two letters for every ten bits.
_PAIRS: Final = [high + low for high in _LETTERS for low in _LETTERS]
_TEN_BITS: Final = 0x3FF
#: The bits in which ids made together differ: their last eight letters.
_OWN_BITS: Final = 40
#: This many random steps of 20 bits stay below 30 bits: even the last six letters differ.
_MOST_TOGETHER: Final = 1000
# Random enough for two processes, and far cheaper than the random source of the system.
_random = random.Random()  # noqa: S311 - an id is no secret


class _Generator:
    """Makes ids in ascending order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millisecond = 0
        self._prefix = ""
        self._tail = 0

    def make(self) -> JobId:
        """Return an id that sorts after all earlier ones of this process."""
        with self._lock:
            self._step()
            prefix, tail = self._prefix, self._tail
        pairs = _PAIRS
        return JobId(
            prefix
            + pairs[tail >> 70]
            + pairs[tail >> 60 & _TEN_BITS]
            + pairs[tail >> 50 & _TEN_BITS]
            + pairs[tail >> 40 & _TEN_BITS]
            + pairs[tail >> 30 & _TEN_BITS]
            + pairs[tail >> 20 & _TEN_BITS]
            + pairs[tail >> 10 & _TEN_BITS]
            + pairs[tail & _TEN_BITS]
        )

    def make_some(self, count: int) -> list[JobId]:
        """Return up to `_MOST_TOGETHER` ids, in order, that sort after all earlier ones."""
        with self._lock:
            self._step()
            first_bits = (self._tail >> _OWN_BITS) + 1
            prefix = self._prefix + _write(first_bits, 4)
            own = _random.getrandbits(_OWN_BITS - 1)  # room to grow
            owns = [own := own + 1 + _random.getrandbits(20) for _ in range(count)]
            self._tail = first_bits << _OWN_BITS | own
        pairs, ten = _PAIRS, _TEN_BITS
        ids: Any = [
            f"{prefix}{pairs[own >> 30]}{pairs[own >> 20 & ten]}"
            f"{pairs[own >> 10 & ten]}{pairs[own & ten]}"
            for own in owns
        ]
        made: list[JobId] = ids
        return made

    def _step(self) -> None:
        now = time.time_ns() // 1_000_000
        if now > self._millisecond:
            self._millisecond = now
            self._prefix = _write(now, 5)
            self._tail = _random.getrandbits(79)  # room to grow
        else:
            self._tail += 1 + _random.getrandbits(48)


def _write(number: int, pairs: int) -> str:
    shifts = range(10 * (pairs - 1), -1, -10)
    return "".join(_PAIRS[number >> shift & _TEN_BITS] for shift in shifts)


_generator = _Generator()


def new_job_id() -> JobId:
    """Return a new id; ids made later sort later."""
    return _generator.make()


def new_job_ids(count: int) -> list[JobId]:
    """Return new ids in order, at a third of the cost of `new_job_id` for each."""
    starts = range(0, count, _MOST_TOGETHER)
    runs = [_generator.make_some(min(_MOST_TOGETHER, count - start)) for start in starts]
    return list(chain.from_iterable(runs))


def _reset_after_fork() -> None:
    global _generator  # noqa: PLW0603 - parent and child must not make the same ids
    _random.seed()
    _generator = _Generator()


os.register_at_fork(after_in_child=_reset_after_fork)
