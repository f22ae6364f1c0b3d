"""Queues: what is in them, and whether they are open."""

from __future__ import annotations

from collections import defaultdict

from trellis.core.names import check_queue, check_service
from trellis.core.states import LIVE, WAITING
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, QueueSettings
from trellis.errors import ConfigurationError
from trellis.insight.viewing import queue_view
from trellis.insight.views import QueueView

_Counts = dict[tuple[str, str], int]


async def list_queues(engine: Engine) -> list[QueueView]:
    """Return every queue that has live jobs or settings, by name."""
    settings = {each[:2]: each for each in await engine.queue_settings()}
    live = JobFilter(states=tuple(sorted(LIVE)))
    counts = await engine.count_by(live, ("service", "queue", "state"))
    waiting: _Counts = defaultdict(int)
    active: _Counts = defaultdict(int)
    for (service, queue, state), number in counts.groups.items():
        (waiting if state in WAITING else active)[service, queue] += number
    names = sorted({*settings, *waiting, *active})
    return [
        queue_view(settings.get(name, QueueSettings(*name)), waiting[name], active[name])
        for name in names
    ]


async def change_queue(
    engine: Engine, name: str, *, paused: bool | None = None, draining: bool | None = None
) -> QueueView:
    """Change what is given and keep the rest."""
    service, slash, queue = name.partition("/")
    if not slash:
        raise ConfigurationError(
            f"{name!r} names no queue. Write service/queue; see them with: trellis queues"
        )
    check_service(service)
    check_queue(queue)
    found = [each for each in await engine.queue_settings() if each[:2] == (service, queue)]
    before = found[0] if found else QueueSettings(service, queue)
    after = before._replace(
        paused=before.paused if paused is None else paused,
        draining=before.draining if draining is None else draining,
    )
    await engine.set_queue(after)
    known = [each for each in await list_queues(engine) if (each.service, each.queue) == after[:2]]
    return known[0] if known else queue_view(after, 0, 0)
