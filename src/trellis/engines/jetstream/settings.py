"""The settings of queues as `create` and `claim` read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from trellis.engines.jetstream.store import Store
from trellis.engines.operating import DrainChange
from trellis.engines.values import QueueSettings
from trellis.engines.wire import codec_of

QUEUE: Final = codec_of(QueueSettings)
DRAIN: Final = codec_of(DrainChange)


class Openness(NamedTuple):
    """Which of some queues accept no new jobs, and which let none be claimed."""

    draining: frozenset[tuple[str, str]]
    paused: frozenset[tuple[str, str]]
    #: No queue accepts anything new.
    all: bool

    @property
    def drains(self) -> bool:
        """Whether any of the queues accepts no new jobs."""
        return self.all or bool(self.draining)

    @classmethod
    async def read(
        cls, store: Store, queues: Iterable[tuple[str, str]] = (("*", "*"),)
    ) -> Openness:
        """Read the settings of these queues; names may be wildcards."""
        own = store.subjects.own
        drain = own("setting", "drain")
        subjects = [own("setting", "queue", service, queue) for service, queue in queues]
        found = await store.link.last_many(store.subjects.jobs, [drain, *subjects])
        settings: list[QueueSettings] = []
        is_draining = False
        for got in found:
            if not got.body:
                continue
            if got.subject == drain:
                is_draining = store.parse(got, DRAIN).drain.on
            else:
                settings.append(store.parse(got, QUEUE))
        return cls(
            frozenset((each.service, each.queue) for each in settings if each.draining),
            frozenset((each.service, each.queue) for each in settings if each.paused),
            is_draining,
        )
