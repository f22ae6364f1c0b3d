"""Queues: how many jobs are in them, and whether they are paused or draining.

The drain of all queues is one switch: no new job is accepted anywhere, and workers go on with the
jobs that are there. It does not stop claims: pausing a queue does.
"""

from __future__ import annotations

from collections import defaultdict

from trellis.core.names import check_queue, check_service
from trellis.core.states import WAITING, State
from trellis.engines.audit import By
from trellis.engines.operating import RATE_WINDOW, Drain, LaneRates
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, QueueSettings
from trellis.errors import AmbiguousId, ConfigurationError, ProjectionUnavailable
from trellis.insight.limits import limit_view
from trellis.insight.shared_views import DrainView, QueueView, drain_view, queue_view, rate_view

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
    limits = {
        each.setting.scope[1:]: limit_view(each)
        for each in await engine.limits()
        if each.setting.scope.kind == "queue" and each.setting.in_force
    }
    rates = await engine.rates()
    lanes: dict[tuple[str, str], list[LaneRates]] = defaultdict(list)
    for lane in rates.lanes:
        lanes[lane.service, lane.queue].append(lane)
    return [
        queue_view(
            settings.get(name, QueueSettings(*name)),
            waiting[name],
            active[name],
            rate_view(lanes[name], rates.window),
            limits.get(name),
        )
        for name in sorted({*settings, *waiting, *limits})
    ]


async def whole_name(engine: Engine, written: str) -> str:
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
    engine: Engine,
    name: str,
    by: By,
    *,
    paused: bool | None = None,
    draining: bool | None = None,
) -> QueueView:
    """Change what is given and keep the rest."""
    service, _, queue = (await whole_name(engine, name)).partition("/")
    check_service(service)
    check_queue(queue)
    found = [each for each in await engine.queue_settings() if each[:2] == (service, queue)]
    before = found[0] if found else QueueSettings(service, queue)
    after = before._replace(
        paused=before.paused if paused is None else paused,
        draining=before.draining if draining is None else draining,
    )
    if found or after != before:  # a queue without settings is open
        await engine.set_queue(after, by)
    try:
        queues = await list_queues(engine)
    except ProjectionUnavailable:  # the change is stored; what is in the queue is not known
        queues = []
    known = [each for each in queues if (each.service, each.queue) == after[:2]]
    return known[0] if known else queue_view(after, 0, 0, rate_view((), RATE_WINDOW))


async def drain_history(engine: Engine, limit: int) -> list[DrainView]:
    """Return the changes of the drain of all queues, the latest first."""
    return [drain_view(each) for each in await engine.drain_changes(limit)]


async def change_drain(engine: Engine, drain: Drain) -> DrainView:
    """Stop or resume the acceptance of new jobs.

    If it is as asked already, only a reason is recorded.
    """
    known = await drain_history(engine, 1)
    if drain.reason or (known[0].on if known else False) != drain.on:
        await engine.set_drain(drain)
        known = await drain_history(engine, 1)
    return known[0] if known else DrainView(on=False, since=None, actor=None, reason=None)
