"""Queues: how many jobs are in them, and whether they are paused or draining."""

from __future__ import annotations

from collections import defaultdict

from trellis.core.names import check_queue, check_service
from trellis.core.states import WAITING, State
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, QueueSettings
from trellis.errors import AmbiguousId, ConfigurationError
from trellis.insight.views import QueueView, queue_view

_Counts = dict[tuple[str, str], int]


async def list_queues(engine: Engine) -> list[QueueView]:
    """Return every queue that has jobs, ended ones too, or settings; by name."""
    settings = {each[:2]: each for each in await engine.queue_settings()}
    counts = await engine.count(JobFilter(), "service", "queue", "state")
    waiting: _Counts = defaultdict(int)
    active: _Counts = defaultdict(int)
    for (service, queue, state), number in counts.combinations.items():
        waiting[service, queue] += number if state in WAITING else 0
        active[service, queue] += number if state == State.ACTIVE else 0
    names = sorted({*settings, *waiting})
    return [
        queue_view(settings.get(name, QueueSettings(*name)), waiting[name], active[name])
        for name in names
    ]


async def _whole_name(engine: Engine, written: str) -> str:
    """Return service/queue; the queue alone is enough while only one service has it."""
    if "/" in written:
        return written
    known = [each for each in await list_queues(engine) if each.queue == written]
    matching = [f"{each.service}/{each.queue}" for each in known]
    if not matching:
        raise ConfigurationError(
            f"There is no queue {written!r} here. Write service/queue; see them with: "
            "trellis queues"
        )
    if len(matching) > 1:
        raise AmbiguousId(
            f"Several services have a queue {written!r}: {', '.join(matching)}. Write one of them.",
            candidates=tuple(matching),
        )
    return matching[0]


async def change_queue(
    engine: Engine, name: str, *, paused: bool | None = None, draining: bool | None = None
) -> QueueView:
    """Change what is given and keep the rest."""
    service, _, queue = (await _whole_name(engine, name)).partition("/")
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
