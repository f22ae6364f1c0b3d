"""The items of an attempt: what a handler reports about them, and what earlier attempts left to do.

What an earlier attempt has finished is loaded before the handler of a later one is called, so that
`pending` is a plain call. An item that is left out because it is finished becomes an item of the
present attempt, so the items of the latest attempt show the whole work.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from trellis.core.items import FINISHED, ItemStatus, first_claim_that_counts
from trellis.core.job import JobRecord
from trellis.engines.port import Engine
from trellis.engines.values import Item
from trellis.errors import ConfigurationError, EngineError
from trellis.worker.attempt import Attempt
from trellis.worker.log import storable_report
from trellis.worker.notes import Notes

#: Loads the items of earlier attempts of a job.
LoadItems: TypeAlias = Callable[[JobRecord], Awaitable[tuple[Item, ...]]]
#: Seconds between two tries to load items.
_PAUSE: Final = 0.5


class JobItems:
    """The small parts of a job that succeed or fail one by one: `job.items.complete("page-7")`.

    The methods are plain calls, from any thread. An item is named within the phase of the job. If
    the handler returns although items failed, the job ends as `completed_with_errors`; if all of
    them failed, the attempt has failed.
    """

    __slots__ = ("_attempt", "_notes", "phase")

    def __init__(self, attempt: Attempt, notes: Notes) -> None:
        self._attempt = attempt
        self._notes = notes
        #: The phase that items belong to which are reported now.
        self.phase = ""

    def pending(self, names: Iterable[str] | None = None) -> list[str]:
        """Return which of these items are still to be done, in this order.

        These are all of them in the first attempt. Later attempts leave out what an earlier one
        completed or skipped, and so does a job that an operator runs again for its failed items.
        A job that an operator simply retries does everything again. Without names, the items that
        the attempts have reported in this phase are meant.
        """
        if isinstance(names, str):
            raise ConfigurationError(f"pending({names!r}) takes a list of names, not one text.")
        earlier = {
            item.name: item for item in self._attempt.earlier_items if item.phase == self.phase
        }
        known = self._known()
        if names is None:
            reported = (name for phase, name in known if phase == self.phase)
            names = [*earlier, *reported]
        return [name for name in dict.fromkeys(names) if self._is_pending(name, earlier)]

    def start(self, name: str) -> None:
        """Report that work on this item begins."""
        self._move(name, "in_progress", None)

    def complete(self, name: str, detail: str | None = None) -> None:
        """Report that this item is done."""
        self._move(name, "completed", detail)

    def skip(self, name: str, detail: str | None = None) -> None:
        """Report that this item needs no work."""
        self._move(name, "skipped", detail)

    def fail(self, name: str, detail: str | BaseException | None = None) -> None:
        """Report that this item failed, and why: a text, or the exception."""
        if isinstance(detail, BaseException):
            detail = "".join(traceback.format_exception_only(detail)).strip()
        self._move(name, "failed", detail)

    def _is_pending(self, name: str, earlier: dict[str, Item]) -> bool:
        """Return whether an item must be done; report it if this attempt has not done so yet."""
        stored = storable_report("job.items", "name", name, 512)
        status = self._known().get((self.phase, stored))
        if status is None:
            found = earlier.get(stored)
            if found is None or found.status not in FINISHED:
                found = Item(stored, "pending")
            status = found.status
            self._move(name, status, found.detail)
        return status not in FINISHED

    def _move(self, name: str, status: ItemStatus, detail: str | None) -> None:
        stored = storable_report("job.items", "name", name, 512)
        text = None if detail is None else storable_report("job.items", "detail", detail)
        self._known()[self.phase, stored] = status
        self._notes.add(self._attempt, Item(stored, status, text, self.phase))

    def _known(self) -> dict[tuple[str, str], ItemStatus]:
        attempt = self._attempt
        if attempt.items is None:
            attempt.items = {}
        return attempt.items


async def no_items(record: JobRecord) -> tuple[Item, ...]:  # noqa: ARG001 - as `load_earlier`
    """Return nothing: for attempts outside of a worker."""
    return ()


async def load_earlier(engine: Engine, record: JobRecord) -> tuple[Item, ...]:
    """Return the items of earlier attempts that count for this one, each as last reported.

    While the engine does not answer, for any reason, this waits: the handler has not been called,
    so nothing has failed. A stop of the attempt ends the wait.
    """
    while True:
        try:
            return await _load(engine, record)
        except EngineError:
            await asyncio.sleep(_PAUSE)


async def _load(engine: Engine, record: JobRecord) -> tuple[Item, ...]:
    job_id, head = record.definition.id, record.head
    entries = await engine.items(job_id)
    first = 1
    if entries and head.generation:
        first = first_claim_that_counts(await engine.journal(job_id))
    latest = {
        (entry.item.phase, entry.item.name): entry.item
        for entry in entries
        if first <= entry.claim < head.claims
    }
    return tuple(latest.values())
