"""Notes of attempts (progress, phases, items, log lines, heartbeats), sent in batches.

Any thread may add a note. The order is kept per attempt, except that only the newest progress of a
phase is sent. Notes may be lost: while the engine is unavailable they wait up to a limit, then log
lines are dropped. A settlement is never sent before the notes that were added before it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from trellis.engines.port import Engine
from trellis.engines.values import Heartbeat, LogLine, Note, NoteBody, Phase, Progress
from trellis.errors import EngineError
from trellis.worker.attempt import Attempt
from trellis.worker.loop import TaskLoop

#: How long to collect notes before they are sent, in seconds.
_COLLECT_FOR: Final = 0.1
_PAGE: Final = 500
_LINES_LIMIT: Final = 20_000
_logger = logging.getLogger(__name__)


class Notes(Protocol):
    """Accepts notes of attempts."""

    def add(self, attempt: Attempt, body: NoteBody) -> None:
        """Accept a note, from any thread."""


def note_life(notes: Notes, attempt: Attempt) -> None:
    """Note that the handler goes on, if its type has a limit for silence."""
    if attempt.record.definition.policy.activity_timeout is not None:
        notes.add(attempt, Heartbeat())


class NoteWriter(TaskLoop):
    """Sends notes to the engine."""

    def __init__(self, engine: Engine, on_heartbeat: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._on_heartbeat = on_heartbeat
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._lines: list[Note] = []
        self._newest: dict[tuple[int, type], Note] = {}
        self._wakeup = asyncio.Event()
        self._sending = asyncio.Lock()

    @property
    def pending(self) -> bool:
        """Whether notes wait to be sent or are being sent."""
        return bool(self._lines or self._newest) or self._sending.locked()

    def add(self, attempt: Attempt, body: NoteBody) -> None:
        """Accept a note, from any thread; it is sent soon."""
        record = attempt.record
        note = Note(record.definition.row, record.head.claims, attempt.fence, body)
        with self._guard:
            was_empty = not self._lines and not self._newest
            if isinstance(body, Phase):
                # The newest progress is sent last, so progress of the earlier phase must go.
                self._newest.pop((attempt.fence.token, Progress), None)
            if isinstance(body, Progress | Heartbeat):
                self._newest[attempt.fence.token, type(body)] = note
            elif len(self._lines) < _LINES_LIMIT or not isinstance(body, LogLine):
                self._lines.append(note)
        if was_empty:
            self._loop.call_soon_threadsafe(self._wakeup.set)
        if isinstance(body, Heartbeat):
            self._on_heartbeat()

    async def run(self) -> None:
        """Send new notes in batches until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            await asyncio.sleep(_COLLECT_FOR)
            try:
                await self.flush()
            except EngineError:
                self._wakeup.set()

    async def flush(self) -> None:
        """Send all notes added up to now; raise `EngineError` if they have to wait."""
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
                except Exception:  # notes must not delay settlements
                    _logger.exception("%d notes could not be stored and were dropped", len(page))
                waiting = waiting[_PAGE:]

    def _take(self) -> list[Note]:
        with self._guard:
            waiting = [*self._lines, *self._newest.values()]
            self._lines = []
            self._newest = {}
        return waiting
