"""The order of claims: fair share between tenants, and aging.

A claim takes waiting jobs by priority, then by rank, then in the order of their creation. The rank
of a job without a tenant is its due time. The rank of a job with one is given when the job becomes
due, by start-time fair queueing: the tenants of a line take turns, however many jobs each has.

A line is one queue at one priority. Its virtual time is the rank of its first claimable job, or the
present moment if none waits. A tenant's job starts where the tenant's share of the line ended, but
not before the virtual time, and moves that end by one turn, divided by the tenant's weight. So a
tenant that comes late is served next, and a tenant with a million jobs delays others by one turn.

The end of a share is no further than one turn behind the tenant's last waiting job: jobs that were
cancelled, or that ran while no other tenant waited, do not count against the tenant.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from trellis.core.durations import SECOND, Instant, Micros
from trellis.core.job import NewJob, Relations
from trellis.core.keys import derive_key
from trellis.core.names import check_identifier
from trellis.errors import ConfigurationError, KeyUnresolved

#: What one job of weight 1 moves the end of its tenant's share.
TURN: Final[Micros] = 10_000
MAX_WEIGHT: Final = 1000
SHORTEST_AGING: Final[Micros] = SECOND
LONGEST_AGING: Final[Micros] = 365 * 24 * 3600 * SECOND

L = TypeVar("L", bound=Hashable)


class Turn(NamedTuple, Generic[L]):
    """A job that becomes due in a line, for its tenant."""

    line: L
    tenant: str
    weight: int | None = None
    #: It may wait for a slot of its key, so it is not the first of its line yet.
    is_keyed: bool = False


class Share(NamedTuple):
    """Where the share of a tenant in a line ended, and the rank of its last waiting job there."""

    end: Instant
    last: Instant | None = None


class Ranked(NamedTuple, Generic[L]):
    """The ranks of jobs, in their order, and where the shares of their tenants end now."""

    ranks: list[Instant]
    ends: dict[tuple[L, str], Instant]


def give_ranks(
    turns: Sequence[Turn[L]],
    heads: Mapping[L, Instant],
    shares: Mapping[tuple[L, str], Share],
    now: Instant,
) -> Ranked[L]:
    """Give jobs that become due their ranks, in this order.

    `heads` has the ranks of the first claimable jobs of lines; a line without one has none.
    """
    ranks: list[Instant] = []
    ends: dict[tuple[L, str], Instant] = {}
    heads = dict(heads)
    for turn in turns:
        virtual = heads.get(turn.line, now)
        of = (turn.line, turn.tenant)
        end = ends.get(of)
        if end is None:
            end = _end_of(shares.get(of), virtual)
        rank = max(end, virtual)
        ranks.append(rank)
        if not turn.is_keyed:
            heads.setdefault(turn.line, rank)
        ends[of] = rank + TURN // (turn.weight or 1)
    return Ranked(ranks, ends)


def _end_of(share: Share | None, virtual: Instant) -> Instant:
    if share is None:
        return virtual
    last = virtual if share.last is None else max(share.last, virtual)
    return min(share.end, last + TURN)


def with_tenant(relations: Relations | None, payload: str) -> Relations | None:
    """Return what a job belongs to whose payload, JSON text, is known only now.

    A payload that its tenant cannot be made from leaves it without a tenant: it was accepted
    before, so it cannot be refused.
    """
    if relations is None or relations.fair is None:
        return relations
    tenant = None
    with suppress(KeyUnresolved, ConfigurationError):
        tenant = check_identifier("tenant", derive_key(relations.fair, json.loads(payload)))
    weight = dict(relations.weights or ()).get(tenant or "")
    return relations._replace(tenant=tenant, weight=weight, fair=None, weights=None)


def tenant_of(relations: Relations | None) -> str | None:
    """Return the tenant of a job."""
    return None if relations is None else relations.tenant


def is_due(new: NewJob, now: Instant) -> bool:
    """Return whether a new job gets its rank at once, rather than when its time has come."""
    return not (new.after or new.delay) and (new.run_at is None or new.run_at <= now)


def claim_order(priority: int, rank: Instant, aging: Micros | None) -> tuple[int, int]:
    """Return what claims sort by, the smallest first.

    With aging, a waiting job counts one priority higher for each such span: all jobs wait equally
    long from then on, so that is the same as an earlier rank for each priority.

    >>> claim_order(1, 60, None) < claim_order(0, 0, None)
    True
    >>> claim_order(1, 60, 50) < claim_order(0, 0, 50)
    False
    """
    return (-priority, rank) if aging is None else (0, rank - priority * aging)


def check_aging(aging: Micros | None) -> Micros | None:
    """Return the span of aging; raise `ConfigurationError` if waiting jobs would not age by it."""
    if aging is not None and not SHORTEST_AGING <= aging <= LONGEST_AGING:
        raise ConfigurationError(
            f"Waiting jobs cannot age by {aging / SECOND:g} s. Nothing was changed. Use a span "
            "from 1s to 365d, like 10m, or off."
        )
    return aging


def check_weight(tenant: str, weight: object) -> int:
    """Return the weight of a tenant; raise `ConfigurationError` if it is none."""
    if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MAX_WEIGHT:
        raise ConfigurationError(
            f"The weight of {tenant!r} is {weight!r}. Use a whole number from 1 to {MAX_WEIGHT}: a "
            "tenant of weight 3 gets three turns for each turn of a tenant of weight 1."
        )
    return weight
