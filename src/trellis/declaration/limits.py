"""The limits over the fleet that a program declares: of its job types, and of its queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trellis.core.limits import NO_LIMIT, Limit, Scope
from trellis.declaration.job_type import JobType


def declared_limits(
    job_types: Iterable[JobType], queues: Mapping[tuple[str, str], Limit]
) -> list[tuple[Scope, Limit]]:
    """Return what a worker declares: every type it runs, its keys, their queues, the given queues.

    Types and queues without a limit are named too, so that a limit that was removed from the code
    ends.
    """
    found: dict[Scope, Limit] = {}
    for job_type in job_types:
        service, queue = job_type.service, job_type.queue
        key = job_type.policy.key
        found[Scope("type", service, job_type.name)] = job_type.limit or NO_LIMIT
        found[Scope("key", service, job_type.name)] = NO_LIMIT if key is None else key.limit
        found[Scope("queue", service, queue)] = queues.get((service, queue), NO_LIMIT)
    for (service, queue), limit in queues.items():
        found[Scope("queue", service, queue)] = limit
    return sorted(found.items())
