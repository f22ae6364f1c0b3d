"""Items of a job: the many small things inside one job that can succeed or fail each on its own."""

from __future__ import annotations

from trellis.engines.values import Item, ItemStatus
from trellis.worker.attempt import Attempt
from trellis.worker.notes import NoteWriter
from trellis.worker.texts import storable


class JobItems:
    """`job.items.complete("page-7")`: plain calls, from any thread.

    A job whose handler returns although items failed ends as `completed_with_errors`.
    """

    __slots__ = ("_attempt", "_notes", "phase")

    def __init__(self, attempt: Attempt, notes: NoteWriter) -> None:
        self._attempt = attempt
        self._notes = notes
        #: The phase these items belong to.
        self.phase = ""

    def start(self, name: str) -> None:
        """Say that work on this item begins."""
        self._move(name, "in_progress", None)

    def complete(self, name: str, detail: str | None = None) -> None:
        """Say that this item is done."""
        self._move(name, "completed", detail)

    def skip(self, name: str, detail: str | None = None) -> None:
        """Say that this item needs nothing."""
        self._move(name, "skipped", detail)

    def fail(self, name: str, detail: str | None = None) -> None:
        """Say that this item could not be done."""
        self._move(name, "failed", detail)

    def _move(self, name: str, status: ItemStatus, detail: str | None) -> None:
        errors = self._attempt.item_errors
        if errors is None:
            errors = self._attempt.item_errors = set()
        place = f"{self.phase}/{name}"
        if status == "failed":
            errors.add(place)
        else:
            errors.discard(place)
        text = None if detail is None else storable(detail)
        self._notes.add(self._attempt, Item(storable(name, 512), status, text))
