"""How the interpreter of a worker process is set: it does little else than run jobs.

Only in processes of our own: a worker inside somebody's program takes that program as it is. What
the program has set itself is left alone.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

_PYTHONS_THRESHOLD: Final = (700, 10, 10)
#: More than the values of all jobs that a worker holds at a time. They refer to nothing that refers
#: back, so looking through them for cycles, again and again, would find nothing.
_THRESHOLD: Final = (50_000, 10, 10)
_PYTHONS_INTERVAL: Final = 0.005
#: How long the loop may keep an engine's thread waiting that has its answer from the disk.
_INTERVAL: Final = 0.0002


def set_up() -> None:
    """Set this process up for running jobs, once the program is loaded."""
    if gc.get_threshold() == _PYTHONS_THRESHOLD:
        gc.collect()
        gc.freeze()  # what is loaded stays, and need not be looked through any more
        gc.set_threshold(*_THRESHOLD)
    if sys.getswitchinterval() == _PYTHONS_INTERVAL:
        sys.setswitchinterval(_INTERVAL)
