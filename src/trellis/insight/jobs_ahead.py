"""Which jobs a claim takes before a job, and whether a slot is left for it.

A worker takes jobs of its types from its queues, and of a limited queue or type only as many as the
limit lets start. So a long backlog behind a limit that is reached delays no other job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from trellis.core.limits import Scope
from trellis.engines.limits import LimitStatus, Names, scopes_of
from trellis.insight.causes import Facts
from trellis.insight.worker_views import WorkerView


def free_slots(worker: WorkerView) -> int:
    """Return how many slots of a worker are free, as it last reported."""
    return worker.slots - worker.taken


def can_start(facts: Facts, free: Sequence[WorkerView]) -> bool:
    """Return whether one of these workers, which have free slots, would take the job now.

    Workers that take the same jobs before this one share those. A worker that takes fewer of them
    has its slots for these alone.
    """
    if limit_of_those_ahead(facts) is not None:
        return False
    for worker in free:
        lanes = _lanes_of(facts, [worker])
        peers = [each for each in free if _lanes_of(facts, [each]) <= lanes]
        if _count(facts, lanes) < sum(map(free_slots, peers)):
            return True
    return False


def count_ahead(facts: Facts, workers: Sequence[WorkerView]) -> int:
    """Return how many jobs these workers take before this one."""
    limited = limit_of_those_ahead(facts)
    return _count(facts, _lanes_of(facts, workers)) if limited is None else limited[2]


def limit_of_those_ahead(facts: Facts) -> tuple[str, int, int] | None:
    """Return a limit that is not reached and lets only jobs before this one start now.

    That is the queue or type, how many may start, and how many of it come before.
    """
    definition = facts.record.definition
    own = scopes_of((definition.service, definition.queue, definition.type))
    lanes = _lanes_of(facts, [each for each in facts.workers if each.state == "live"])
    for scope, room in _rooms(facts.limits).items():
        if scope in own and room:
            before = sum(facts.ahead[lane] for lane in lanes if scope in scopes_of(lane))
            if before >= room:
                return f"{scope.kind} {scope}", room, before
    return None


def _lanes_of(facts: Facts, workers: Iterable[WorkerView]) -> frozenset[Names]:
    """Return from where these workers take jobs before this one."""
    return frozenset(
        (service, queue, name)
        for service, queue, name in facts.ahead
        for each in workers
        if f"{service}/{name}" in each.types
        and f"{service}/{name}" not in each.full_types
        and (not each.queues or queue in each.queues)
    )


def _count(facts: Facts, lanes: Collection[Names]) -> int:
    """Return how many of the jobs before this one can start, if limits keep back the others."""
    rooms, count = _rooms(facts.limits), 0
    for lane in lanes:
        scopes = [scope for scope in scopes_of(lane) if scope in rooms]
        startable = min([facts.ahead[lane], *(rooms[scope] for scope in scopes)])
        for scope in scopes:
            rooms[scope] -= startable
        count += startable
    return count


def _rooms(limits: Iterable[LimitStatus]) -> dict[Scope, int]:
    """Return how many jobs of each limited queue and type may start now."""
    rooms: dict[Scope, int] = {}
    for setting, running, tokens, _ in limits:
        active = setting.in_force.active
        rooms_left = [] if active is None else [max(0, active - running)]
        rooms_left += [] if tokens is None else [tokens]
        if rooms_left:
            rooms[setting.scope] = min(rooms_left)
    return rooms
