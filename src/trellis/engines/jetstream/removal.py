"""The removal of ended jobs: a last event under the fence, then everything before it is deleted.

The last event stays for as long as removals are known: it answers that the job was removed, and
guards a new job with the same id. A crash between the event and the deletion leaves messages that
no read finds; the next removal of the same id deletes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from trellis.core.batches import KEEP_BATCHES, keeps_members
from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.core.states import ENDED
from trellis.engines.archive import KEEP_REMOVALS, Archived
from trellis.engines.audit import OPERATOR, By, removal_of
from trellis.engines.jetstream.archive import ArchiveVerbs
from trellis.engines.jetstream.batches import BatchVerbs
from trellis.engines.jetstream.commit import Seen
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Got, Written
from trellis.engines.jetstream.projection import Projection
from trellis.engines.jetstream.sessions import SessionTable
from trellis.engines.jetstream.state import purge
from trellis.engines.jetstream.store import Current
from trellis.engines.jetstream.tokens import TokenVerbs
from trellis.engines.projection import PastRetention
from trellis.engines.tokens import KEEP_LOGINS
from trellis.engines.values import KEEP_SESSIONS, Removal
from trellis.errors import AccessDenied

#: How many more removals are read than may be forgotten.
_PAGE: Final = 200


class RemovalVerbs(ArchiveVerbs, BatchVerbs, TokenVerbs):
    """The part of the engine that removes jobs."""

    _seen: Seen
    _sessions: SessionTable
    _dependencies: Dependencies
    _projection: Projection
    #: No job was removed before this moment whose removal is still kept.
    _earliest_removal: Instant = 0

    async def remove(self, ids: Sequence[JobId], by: By = OPERATOR) -> list[Removal]:
        """Remove ended jobs at once."""
        return [await self._remove(job_id, by) for job_id in ids]

    async def remove_archived(self, archived: Sequence[Archived]) -> int:
        """Remove jobs that are still as they were archived; return how many."""
        removed = 0
        for each in archived:
            current = await self._store.job(each.job_id)
            if current is None or current.head.version != each.version:
                continue
            if await self._archiving.holds(current):
                removed += await self._remove(each.job_id, None) == "removed"
                await self._archiving.forget(current)
        return removed

    async def _remove(self, job_id: JobId, by: By | None) -> Removal:
        while True:
            draft = Draft(self._store)
            current = await self._removable(draft, job_id)
            if not isinstance(current, Current):
                return current
            draft.remove(current)
            await self._dependencies.drop(draft, job_id)
            relations = current.definition.relations
            if relations is not None and relations.batch is not None:
                await self._batches.drop_member(draft, relations.batch, job_id)
            if by is not None:
                draft.record(removal_of(job_id, current.head.state.value), by)
            answer = await draft.write()
            if isinstance(answer, Written):
                await self._delete(current)
                return "removed"

    async def _removable(self, draft: Draft, job_id: JobId) -> Current | Removal:
        """Return a job that may be removed, or why it may not."""
        current = await draft.job(job_id)
        if current is None:
            return "missing"
        if current.head.state not in ENDED:
            return "live"
        if await self._dependencies.is_needed(draft, job_id):
            return "needed"
        return "in_batch" if await self._is_kept(draft, current) else current

    async def _delete(self, current: Current) -> None:
        """Delete everything about a removed job but its last event."""
        self._seen.drop(current.definition.row)
        subjects = self._store.subjects
        last = await self._store.link.last(subjects.jobs, subjects.event(current.job, "removed"))
        if last is not None:
            with suppress(AccessDenied):  # of a user of one service: the janitor deletes it
                await purge(self._store, subjects.whole(current.job), seq=last.sequence)

    async def _is_kept(self, draft: Draft, current: Current) -> bool:
        """Return whether a batch needs this member."""
        relations = current.definition.relations
        names = [] if relations is None or relations.batch is None else [relations.batch]
        for name in names:
            value = await self._batches.read(draft, name)
            if value is None:
                continue
            fan_in = value.batch.fan_in
            job = None if fan_in is None else await draft.job(fan_in)
            if keeps_members(value.batch, None if job is None else job.head.state):
                return True
        return False

    async def prune(self, limit: int) -> int:
        """Remove jobs that retention no longer keeps, and sessions that ended long ago."""
        now = self._store.time.now()
        removed: int = 0
        await self._prune_batches(now - KEEP_BATCHES, limit)
        archives = await self._services()
        expired: list[PastRetention] = await self._projection.ask("past_retention", now, limit)
        for each in expired:
            with self._store.passing_over():
                removed += await self._expire(each, is_archived=archives.get(each.service, False))
        removed += await self._remove_left_behind(archives, limit - removed)
        await self._forget_removals(now - KEEP_REMOVALS, limit)
        await self._drop_logins(now - KEEP_LOGINS, limit)
        return removed + await self._prune_sessions(now - KEEP_SESSIONS, limit - removed)

    async def _expire(self, expired: PastRetention, *, is_archived: bool) -> bool:
        """Remove an expired job, or let it wait for the archive of its service."""
        while True:
            draft = Draft(self._store)
            current = await self._removable(draft, expired.job_id)
            if not isinstance(current, Current) or current.head.version != expired.version:
                return False
            if not is_archived:
                return await self._remove(expired.job_id, None) == "removed"
            await self._archiving.add(draft, current)
            if isinstance(await draft.write(), Written):
                return True

    async def _remove_left_behind(self, archives: Mapping[str, bool], limit: int) -> int:
        """Remove jobs that wait for an archive that was switched off."""
        removed = 0
        for service in sorted(name for name, is_on in archives.items() if not is_on):
            for current in await self._archiving.page(service, limit - removed):
                removed += await self._remove(current.definition.id, None) == "removed"
                await self._archiving.forget(current)
        return removed

    async def _forget_removals(self, before: int, limit: int) -> None:
        """Delete the last events of jobs that were removed long ago, the earliest first.

        The server looks at every subject to find removals, so they are read only when it is time.
        """
        if before < self._earliest_removal:
            return
        now, subjects = self._store.time.now(), self._store.subjects
        wanted = f"{subjects.prefix}.jobs.*.*.*.removed"
        found = await self._store.link.following(subjects.jobs, wanted, 1, limit + _PAGE)
        kept = sorted((_removed_at(got), _id_of(got.subject), got.subject) for got in found)
        old = [each for each in kept if each[0] <= before]
        for _, _, subject in old[:limit]:
            await self._store.link.api(f"STREAM.PURGE.{subjects.jobs}", {"filter": subject})
        if not old:
            self._earliest_removal = kept[0][0] if kept else now

    async def _prune_sessions(self, ended: int, limit: int) -> int:
        """Remove sessions that ended at or before this moment, the earliest first."""
        over = [
            (value.ended_at, session)
            for session, value in (await self._sessions.all()).items()
            if value.ended_at is not None and value.ended_at <= ended
        ]
        oldest = sorted(over)[: max(0, limit)]
        for _, session in oldest:
            await self._sessions.forget(session)
        return len(oldest)


def _removed_at(got: Got) -> Instant:
    """Return when a job was removed: by its last event, or, if that says no time, as stored."""
    at = got.headers.get("Trellis-At", "")
    return int(at) if at.isdecimal() else got.at


def _id_of(subject: str) -> str:
    """Return the id of the job that an event is about."""
    return subject.split(".")[-2]
