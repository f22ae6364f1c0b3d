"""Archives: one state per service, and one per expired job that waits to be archived.

A service is switched in one batch with an entry of the audit. The state of a waiting job has the
version at which it expired: once the job has run again, it waits no more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trellis.core.durations import Instant
from trellis.core.job import JobId, JobRecord
from trellis.core.names import check_service
from trellis.core.states import ENDED
from trellis.engines.archive import ERROR_LENGTH, ArchiveState, switch_of
from trellis.engines.audit import OPERATOR, By
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.state import decided, latest, purge
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import is_token
from trellis.engines.wire import codec_of
from trellis.errors import AccessDenied

_STATE: Final = codec_of(ArchiveState)


class Waiting(NamedTuple):
    """An expired job that waits to be archived."""

    job_id: JobId
    version: int
    since: Instant


WAITING: Final = codec_of(Waiting)


class ArchiveQueue:
    """The expired jobs that wait, by service."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, draft: Draft, current: Current) -> None:
        """Stage that a job waits from now on."""
        definition, head = current.record
        subject = self._subject(definition.service, definition.row)
        await draft.value(subject, WAITING)
        draft.put(subject, Waiting(definition.id, head.version, draft.now))

    async def since(self) -> dict[str, Instant]:
        """Return since when the first job of each service waits."""
        found = await latest(self._store, self._filter("*"), WAITING)
        first: dict[str, tuple[int, Instant]] = {}
        for subject, value, _ in found:
            *_, service, _, row = subject.split(".")
            first[service] = min(
                first.get(service, (int(row), value.since)), (int(row), value.since)
            )
        return {service: since for service, (_, since) in first.items()}

    async def page(self, service: str, limit: int) -> list[Current]:
        """Return the first jobs that wait, by creation; forget those that have run again."""
        if not is_token(service):
            return []
        found = await latest(self._store, self._filter(service), WAITING)
        found.sort(key=lambda each: int(each.subject.rpartition(".")[2]))
        current: list[Current] = []
        for subject, value, sequence in found:
            if len(current) >= limit:
                break
            job = await self._store.job(value.job_id)
            if job is not None and job.head.version == value.version and job.head.state in ENDED:
                current.append(job)
            else:
                await self._drop(subject, sequence)
        return current

    async def holds(self, current: Current) -> bool:
        """Return whether a job waits, as it is now."""
        definition, head = current.record
        subject = self._subject(definition.service, definition.row)
        found = (await self._store.value(subject, WAITING)).value
        return found is not None and found.version == head.version

    async def forget(self, current: Current) -> None:
        """Delete what is stored about a job that was removed."""
        definition = current.definition
        await self._drop(self._subject(definition.service, definition.row))

    async def _drop(self, subject: str, sequence: int | None = None) -> None:
        """Delete an entry, if this is its last message."""
        try:
            bound = {} if sequence is None else {"seq": sequence + 1}
            await purge(self._store, subject, **bound)
        except AccessDenied:  # of a user of one service: the janitor deletes what is empty
            await self._store.put(subject, WAITING, None, sequence)

    def _subject(self, service: str, row: int) -> str:
        return self._store.subjects.own("archiving", service, "r", str(row))

    def _filter(self, service: str) -> str:
        return self._store.subjects.own("archiving", service, "r", "*")


class ArchiveVerbs:
    """The part of the engine that says which services archive."""

    _store: Store
    _archiving: ArchiveQueue

    async def archivable(self, service: str, limit: int) -> list[JobRecord]:
        """Return the first expired jobs in the queue, by creation."""
        return [each.record for each in await self._archiving.page(service, limit)]

    async def declare_archive(self, service: str, by: By) -> bool:
        """Switch the archive of a service on if it was never switched."""
        return await self._switch(service, is_on=True, by=by, is_declared=True)

    async def set_archive(self, service: str, *, on: bool, by: By = OPERATOR) -> bool:
        """Switch the archive of a service."""
        return await self._switch(service, is_on=on, by=by, is_declared=False)

    async def _switch(self, service: str, *, is_on: bool, by: By, is_declared: bool) -> bool:
        subject = self._archive(check_service(service))

        async def switch(draft: Draft) -> bool:
            stored: ArchiveState | None = await draft.value(subject, _STATE)
            before = None if stored is None else stored.is_on
            is_done = before is is_on or (before is None and not is_on)
            if is_done or (is_declared and stored is not None):
                return False
            draft.put(subject, ArchiveState(service, is_on, draft.now))
            draft.record(switch_of(service, before, is_on), by)
            return True

        return await decided(self._store, switch)

    async def note_archive(self, service: str, error: str | None) -> None:
        """Record that the archiver of a service failed, or that it works."""
        if not is_token(service):
            return
        subject = self._archive(service)

        async def note(draft: Draft) -> None:
            stored: ArchiveState | None = await draft.value(subject, _STATE)
            if stored is None:
                return
            after = stored._replace(failing_since=None, failures=0, error=None)
            if error is not None:
                after = stored._replace(
                    failing_since=stored.failing_since or draft.now,
                    failures=stored.failures + 1,
                    error=error[:ERROR_LENGTH],
                )
            if after != stored:
                draft.put(subject, after)

        await decided(self._store, note)

    async def _services(self) -> dict[str, bool]:
        """Return the services that were ever switched, and whether they archive."""
        found = await latest(self._store, self._archive("*"), _STATE)
        return {each.value.service: each.value.is_on for each in found}

    async def archives(self) -> list[ArchiveState]:
        """Return the archives of all services."""
        found = await latest(self._store, self._archive("*"), _STATE)
        states: list[ArchiveState] = sorted(each.value for each in found)
        if not states:
            return []
        waiting = await self._archiving.since()
        return [state._replace(waiting_since=waiting.get(state.service)) for state in states]

    def _archive(self, service: str) -> str:
        return self._store.subjects.own("archive", service)
