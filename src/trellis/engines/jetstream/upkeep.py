"""Upkeep of the stream of the jobs: what verbs leave behind is deleted, a few messages at a time.

States have old versions, states that are over have an empty last one, marks outlive their jobs, and
a crash may come between the last event of a removed job and the deletion of what was before. All of
it is found by walking through the stream from where the last call has stopped. Every deletion ends
at a sequence that was read, so that it never meets what is written at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.core.schedules import KEEP_SLOTS
from trellis.engines.jetstream.create import MARK
from trellis.engines.jetstream.link import Got
from trellis.engines.jetstream.state import purge
from trellis.engines.jetstream.store import Current, Store

#: How long the empty last version of a state that is over is kept: a projection that is behind must
#: learn of it.
KEEP_EMPTY: Final = 3600 * SECOND
_PURGE_EVERY: Final = 3600.0
#: The place of the kind of a state among the tokens of its subject.
_KIND: Final = 3


class Upkeep:
    """Walks through the stream, again and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next_state = self._next_removal = 1
        #: When removals are looked for again, by the monotonic clock.
        self._purges_again = 0.0
        own = store.subjects.own
        #: Every version of these is kept.
        self._kept = {own("audit"), own("setting", "drain")}

    async def compact(self, limit: int) -> int:
        """Look at the next states; return of how many something was deleted.

        What stays of a state is its last version, if that has a meaning.
        """
        await self._store.refresh_time()
        subjects, link = self._store.subjects, self._store.link
        wanted = subjects.own(">")
        page = await link.following(subjects.jobs, wanted, self._next_state, limit)
        self._next_state = page[-1].sequence + 1 if len(page) == limit else 1
        first = {got.subject: got.sequence for got in reversed(page)}
        names = [name for name in first if name not in self._kept]
        compacted = 0
        for last in await link.last_many(subjects.jobs, names):
            is_over = await self._is_over(last)
            end = last.sequence + is_over
            if first[last.subject] < end:
                await purge(self._store, last.subject, seq=end)
                compacted += 1
        return compacted

    async def _is_over(self, last: Got) -> bool:
        """Return whether not even the last version is needed."""
        now = self._store.time.now()
        if not last.body:
            return last.at < now - KEEP_EMPTY
        tokens = last.subject.split(".")
        if tokens[_KIND] == "slots":
            return tokens[-1].isdecimal() and int(tokens[-1]) < now - KEEP_SLOTS
        return await self._is_orphaned(last)

    async def _is_orphaned(self, last: Got) -> bool:
        """Return whether this is the mark of a job that is not there."""
        if last.subject.split(".")[_KIND] != "marks":
            return False
        with self._store.passing_over():
            job_id: JobId = self._store.parse(last, MARK)
            return not isinstance(await self._store.find(job_id), Current)
        return False

    async def purge_removed(self, limit: int) -> int:
        """Delete once more what was before the next removals; return how many were looked at.

        To find new removals the server looks at every subject, so they are looked for once an hour.
        """
        if time.monotonic() < self._purges_again:
            return 0
        subjects = self._store.subjects
        wanted = f"{subjects.prefix}.jobs.*.*.*.removed"
        page: Sequence[Got] = await self._store.link.following(
            subjects.jobs, wanted, self._next_removal, limit
        )
        for got in page:
            job = subjects.job_of(got.subject)
            if job is not None:
                await purge(self._store, subjects.whole(job), seq=got.sequence)
            self._next_removal = got.sequence + 1
        if len(page) < limit:
            self._purges_again = time.monotonic() + _PURGE_EVERY
        return len(page)
