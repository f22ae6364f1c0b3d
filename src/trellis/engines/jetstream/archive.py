"""Archives: one state per service, switched in one batch with an entry of the audit.

Which expired jobs wait for an archive is a question to the projection; see `_waiting_since`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trellis.core.durations import Instant
from trellis.engines.archive import ERROR_LENGTH, ArchiveState, switch_of
from trellis.engines.audit import OPERATOR, By
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.state import decided, latest
from trellis.engines.jetstream.store import Store
from trellis.engines.wire import codec_of

_STATE: Final = codec_of(ArchiveState)


class ArchiveVerbs:
    """The part of the engine that says which services archive."""

    _store: Store

    async def _waiting_since(self) -> Mapping[str, Instant]:
        """Return since when the first job of each service waits that is not archived yet."""
        raise NotImplementedError

    async def declare_archive(self, service: str, by: By) -> bool:
        """Switch the archive of a service on if it was never switched."""
        return await self._switch(service, is_on=True, by=by, is_declared=True)

    async def set_archive(self, service: str, *, on: bool, by: By = OPERATOR) -> bool:
        """Switch the archive of a service."""
        return await self._switch(service, is_on=on, by=by, is_declared=False)

    async def _switch(self, service: str, *, is_on: bool, by: By, is_declared: bool) -> bool:
        subject = self._archive(service)

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

    async def archives(self) -> list[ArchiveState]:
        """Return the archives of all services."""
        found = await latest(self._store, self._archive("*"), _STATE)
        states: list[ArchiveState] = sorted(each.value for each in found)
        if not states:
            return []
        waiting = await self._waiting_since()
        return [state._replace(waiting_since=waiting.get(state.service)) for state in states]

    def _archive(self, service: str) -> str:
        return self._store.subjects.own("archive", service)
