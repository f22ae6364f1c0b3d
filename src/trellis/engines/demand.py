"""What a worker can claim: how many jobs of which types, in which queues, under which policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trellis.core.policy import Policy


class Demand(NamedTuple):
    """What a worker can claim: up to `limit` jobs of these types."""

    service: str
    types: tuple[str, ...]
    limit: int
    #: Only jobs that wait in these queues; empty: in any queue.
    queues: tuple[str, ...] = ()
    #: The policy of each type, in force for the jobs that are claimed; empty: the one they have.
    policies: tuple[Policy, ...] = ()
    #: The most jobs of limited queues and types, over all demands of a claim: those that can start
    #: at once. None: no such limit.
    free: int | None = None

    def policy_of(self, job_type: str) -> Policy | None:
        """Return the policy that a claim puts in force for jobs of a type."""
        return self.policies[self.types.index(job_type)] if self.policies else None


def demanded(
    demands: Sequence[Demand], lanes: Iterable[tuple[str, str, str]]
) -> dict[tuple[str, str, str], int]:
    """Return which of these lanes (service, queue, type) are demanded, and by which demand."""
    by_type: dict[tuple[str, str], list[tuple[int, tuple[str, ...]]]] = {}
    for index, demand in enumerate(demands):
        for job_type in demand.types:
            by_type.setdefault((demand.service, job_type), []).append((index, demand.queues))
    found: dict[tuple[str, str, str], int] = {}
    for service, queue, job_type in lanes:
        for index, queues in by_type.get((service, job_type), ()):
            if not queues or queue in queues:
                found[service, queue, job_type] = index
                break
    return found
