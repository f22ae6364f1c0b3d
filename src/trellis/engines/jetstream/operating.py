"""What operators set: queues, the drain of all of them, the span of aging.

Each setting is a state of its own under `setting`, written in one batch with its entry in the
audit. `settings.py` reads them for `create` and `claim`. Every version of the drain is kept: they
are its history.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trellis.core.durations import Micros
from trellis.core.names import check_queue, check_service
from trellis.engines.audit import OPERATOR, By, aging_change, drain_of_all, settings_of
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.hints import open_parked
from trellis.engines.jetstream.settings import DRAIN, QUEUE
from trellis.engines.jetstream.state import decided, history, latest
from trellis.engines.jetstream.store import Store
from trellis.engines.operating import Drain, DrainChange
from trellis.engines.values import QueueSettings
from trellis.engines.wire import codec_of


class Aging(NamedTuple):
    """The span of aging."""

    span: Micros | None = None


_AGING: Final = codec_of(Aging)


class OperatingVerbs:
    """The part of the engine with which operators close queues."""

    _store: Store

    async def set_queue(self, settings: QueueSettings, by: By = OPERATOR) -> None:
        """Pause, drain or reopen a queue."""
        names = check_service(settings.service), check_queue(settings.queue)
        subject = self._setting("queue", *names)

        async def set_it(draft: Draft) -> None:
            stored: QueueSettings | None = await draft.value(subject, QUEUE)
            if stored == settings:
                return
            change = settings_of(stored or QueueSettings(*settings[:2]), settings)
            draft.put(subject, settings)
            if change is not None:
                draft.record(change, by)

        await decided(self._store, set_it)
        if not settings.paused:
            await open_parked(self._store.link, self._store.subjects, *settings[:2])

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""
        found = await latest(self._store, self._setting("queue", "*", "*"), QUEUE)
        return sorted(each.value for each in found)

    async def set_drain(self, drain: Drain) -> None:
        """Accept no new job in any queue, or accept them again."""
        subject = self._setting("drain")

        async def set_it(draft: Draft) -> None:
            before: DrainChange | None = await draft.value(subject, DRAIN)
            draft.put(subject, DrainChange(draft.now, drain))
            was_on = before is not None and before.drain.on
            draft.record(drain_of_all(was_on, drain.on), By(drain.actor, drain.reason))

        await decided(self._store, set_it)

    async def drain_changes(self, limit: int = 20) -> list[DrainChange]:
        """Return what `set_drain` changed, the latest first."""
        found = await history(self._store, self._setting("drain"), DRAIN)
        return found[::-1][:limit]

    async def set_aging(self, aging: Micros | None, by: By) -> None:
        """Store the span of aging; claims of this engine do not use it."""
        subject = self._setting("aging")

        async def set_it(draft: Draft) -> None:
            before: Aging = await draft.value(subject, _AGING) or Aging()
            change = aging_change(before.span, aging)
            if change is not None:
                draft.put(subject, Aging(aging))
                draft.record(change, by)

        await decided(self._store, set_it)

    async def aging(self) -> Micros | None:
        """Return the span of aging."""
        found: Aging | None = (await self._store.value(self._setting("aging"), _AGING)).value
        return None if found is None else found.span

    def _setting(self, *names: str) -> str:
        return self._store.subjects.own("setting", *names)
