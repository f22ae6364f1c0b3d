"""What attempts say about themselves, sent in batches.

Any thread may add a note; order is kept per attempt, except that of the progress notes of a phase
only the newest matters. Notes are no truth: when the engine is away they wait, up to a limit, then
log lines are dropped; a settlement is never sent before the notes that were made until then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Final

from trellis.engines.port import Engine
from trellis.engines.values import Heartbeat, LogLine, Note, NoteBody, Phase, Progress
from trellis.errors import EngineError
from trellis.worker.attempt import Attempt

_LINGER: Final = 0.1
_PAGE: Final = 500
_MOST_WAITING: Final = 20_000
_logger = logging.getLogger(__name__)


class NoteWriter:
    """The way of notes to the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._lines: list[Note] = []
        self._newest: dict[tuple[int, type], Note] = {}
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()

    @property
    def pending(self) -> bool:
        """Whether something waits to be sent, or is just being sent."""
        return bool(self._lines or self._newest) or self._sending.locked()

    def add(self, attempt: Attempt, body: NoteBody) -> None:
        """Take a note, from any thread; it is sent soon."""
        record = attempt.record
        note = Note(record.definition.row, record.head.claims, attempt.fence, body)
        with self._guard:
            was_empty = not self._lines and not self._newest
            if isinstance(body, Phase):
                # The newest is sent last, and what was reached before belongs to no later phase.
                self._newest.pop((attempt.fence.token, Progress), None)
            if isinstance(body, Progress | Heartbeat):
                self._newest[attempt.fence.token, type(body)] = note
            elif len(self._lines) < _MOST_WAITING or not isinstance(body, LogLine):
                self._lines.append(note)
        if was_empty:
            self._loop.call_soon_threadsafe(self._news.set)

    async def run(self) -> None:
        """Send what comes, a tenth of a second's worth at a time."""
        while True:
            await self._news.wait()
            self._news.clear()
            await asyncio.sleep(_LINGER)
            try:
                await self.flush()
            except EngineError:
                self._news.set()

    async def flush(self) -> None:
        """Send everything noted until now; raise `EngineError` if it has to wait."""
        async with self._sending:
            waiting = self._take()
            while waiting:
                page = waiting[:_PAGE]
                try:
                    await self._engine.note(page)
                except EngineError:
                    with self._guard:
                        self._lines[:0] = waiting
                    raise
                except Exception:  # a note must not hold up settlements
                    _logger.exception("%d notes could not be stored and are dropped", len(page))
                waiting = waiting[_PAGE:]

    def _take(self) -> list[Note]:
        with self._guard:
            waiting = [*self._lines, *self._newest.values()]
            self._lines = []
            self._newest = {}
        return waiting
