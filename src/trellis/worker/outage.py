"""One log line when the engine does not answer, and one when it answers again.

Several loops and the thread of the lease call the engine, and each of them notices an outage. The
first call that fails is logged. The engine has answered again when every part of the worker whose
last call failed has had an answer. A call that began before that and fails after it belongs to the
outage that is over; if the engine is away again, the next call says so.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Literal

from trellis.core.durations import SECOND, in_words
from trellis.errors import EngineError

#: The parts of a worker that call the engine regularly.
Part = Literal["claims", "settlements", "lease", "maintenance"]
_logger = logging.getLogger(__name__)


class OutageLog:
    """The outages of the engine that one worker notices; any thread may report."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: set[Part] = set()
        self._since = 0.0
        self._over_at = float("-inf")

    @property
    def is_present(self) -> bool:
        """Whether a part of the worker waits for an answer of the engine."""
        return bool(self._waiting)

    def failed(self, part: Part, error: EngineError, began: float) -> None:
        """Report that a call of this part failed, which began then (`time.monotonic`).

        It will be repeated.
        """
        with self._guard:
            if not self._waiting:
                if began <= self._over_at:
                    return
                self._since = time.monotonic()
                _logger.warning(
                    "The engine does not answer: %s Handlers continue; their results are stored "
                    "when it answers again.",
                    error,
                )
            self._waiting.add(part)

    def answered(self, part: Part) -> None:
        """Report that a call of this part was answered."""
        if part not in self._waiting:
            return
        with self._guard:
            self._waiting.discard(part)
            if not self._waiting:
                self._over_at = time.monotonic()
                lasted = int(self._over_at - self._since) * SECOND
                _logger.warning("The engine answers again, after %s.", in_words(lasted))
