"""Jobs without options, which are most of those created: read column by column.

Texts are sent joined by a character that cannot occur in JSON: the driver takes longer to write an
array of them than to do everything else with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from trellis.core.admission import check_new_job
from trellis.core.fairness import tenant_of
from trellis.core.followups import is_member
from trellis.core.job import NOTHING_SPECIAL, JobId, NewJob, special_options_of
from trellis.core.policy import Policy
from trellis.engines.postgres.registry import Registry
from trellis.engines.sql.rows import lane_of

#: The unit separator: a control character, so neither JSON nor ids nor trace contexts contain it.
BETWEEN: Final = "\x1f"


class Page(NamedTuple):
    """Such jobs, as columns."""

    ids: Sequence[JobId]
    payloads: Sequence[str]
    traceparents: Sequence[str]
    #: Service, queue, type and priority, and the policy of each.
    lanes: Sequence[tuple[str, str, str, int]]
    policies: Sequence[Policy]
    #: One job of each kind: what they have in common is checked and looked up once.
    kinds: Sequence[NewJob]


def page_of(jobs: Sequence[NewJob]) -> Page | None:
    """Return jobs as a page if they all use none of the optional columns and may start at once."""
    if not jobs:
        return None
    of: Any = NewJob._make(zip(*jobs, strict=True))  # each field has the column of that name
    options = zip(NOTHING_SPECIAL, special_options_of(of), strict=True)
    if any(not _all_are(value, column) for value, column in options):
        return None
    requests, traceparents, tracestates = zip(*of.context, strict=True)
    if requests != of.id or not _all_are(None, tracestates):
        return None
    lanes = list(zip(of.service, of.queue, of.type, of.priority, strict=True))
    kinds = dict(zip(zip(lanes, map(id, of.policy), strict=True), jobs, strict=True))
    return Page(of.id, of.payload, traceparents, lanes, of.policy, list(kinds.values()))


def needs_look(new: NewJob) -> bool:
    """Return whether a job must pass a gate, take a slot, join a batch, get a rank or wait."""
    if new.dedupe is not None or new.idempotency_key is not None or new.key_hash is not None:
        return True
    if tenant_of(new.relations) is not None:
        return True
    return bool(new.after) or new.spawner is not None or is_member(new)


def check(page: Page) -> None:
    """Refuse requests no engine should see."""
    for one in page.kinds:
        check_new_job(one)


def columns(page: Page, registry: Registry) -> tuple[object, ...] | None:
    """Return the values of `create_bare`; None if the texts cannot be joined."""
    texts = [BETWEEN.join(each) for each in (page.ids, page.payloads, page.traceparents)]
    if any(not text or text.count(BETWEEN) != len(page.ids) - 1 for text in texts):
        return None  # an empty text would be read as no text, and the separator as two
    if len(page.kinds) == 1:
        (one,) = page.kinds
        lane = registry.lane_numbers[lane_of(one)]
        return *texts, [lane], [registry.policy_numbers[one.policy]]
    lanes: dict[Any, int] = {**registry.lane_numbers}  # a Lane equals the tuple of its fields
    numbers = {id(one.policy): registry.policy_numbers[one.policy] for one in page.kinds}
    return *texts, [lanes[each] for each in page.lanes], [numbers[id(p)] for p in page.policies]


def _all_are(value: object, values: Sequence[object]) -> bool:
    return values.count(value) == len(values)
