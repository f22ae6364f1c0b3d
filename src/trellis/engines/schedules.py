"""Arguments and answers of the verbs about schedules, and the form in which they are stored.

A schedule is changed only if its version is still the one that the change was decided against.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.core.policy import decode_policy, encode_policy
from trellis.core.schedules import (
    Plan,
    Schedule,
    SlotDecision,
    Step,
    Template,
    Window,
    remember,
)
from trellis.engines.values import Accepted, Coalesced, CreateResult, Rejected, Replaced


class DueSchedules(NamedTuple):
    """The schedules with a due slot, and when the next one of any other is."""

    now: Instant
    schedules: tuple[Schedule, ...]
    next_slot: Instant | None


class SlotRecord(NamedTuple):
    """An entry of the ledger."""

    decision: SlotDecision
    #: The job that it created, or the one that kept the new job out.
    job_id: JobId | None
    decided_at: Instant


def slot_record(decision: SlotDecision, answer: CreateResult | None, now: Instant) -> SlotRecord:
    """Return the entry of a decided slot; `answer` is that of the admission of its job."""
    match answer:
        case None:
            return SlotRecord(decision, None, now)
        case Accepted(job_id) | Replaced(job_id):
            return SlotRecord(decision, job_id, now)
        case Coalesced(existing, reason) | Rejected(reason, existing):
            refused = decision._replace(outcome="skipped", why=reason.value)
            return SlotRecord(refused, existing, now)
        case unreachable:
            assert_never(unreachable)


def advanced(step: Step, records: Sequence[SlotRecord]) -> Schedule:
    """Return the schedule after a step, with the version before it."""
    created = [
        each.job_id
        for each in records
        if each.decision.outcome == "created" and each.job_id is not None
    ]
    return remember(step.schedule, created)


def encode_schedule(schedule: Schedule) -> str:
    """Write everything about a schedule that has no column, as JSON."""
    template = schedule.template
    return json.dumps(
        {
            "declared": schedule.declared._asdict(),
            "template": {
                **template._asdict(),
                "policy": encode_policy(template.policy),
                "weights": dict(template.weights),
            },
            "changes": dict(schedule.changes),
            "windows": schedule.windows,
            "live": schedule.live,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


def decode_schedule(  # noqa: PLR0917 - the columns of a row
    service: str,
    name: str,
    version: int,
    next_slot: Instant | None,
    retired_at: Instant | None,
    body: str,
) -> Schedule:
    """Read a schedule; fields that this version does not know are ignored."""
    parts = json.loads(body)
    template = _known(Template, parts["template"])
    template["policy"] = decode_policy(template["policy"])
    return Schedule(
        service,
        name,
        Plan(**_known(Plan, parts["declared"])),
        Template(**template),
        _known(Plan, parts["changes"]),
        tuple(Window(*each) for each in parts["windows"]),
        tuple(map(JobId, parts["live"])),
        next_slot,
        retired_at,
        version,
    )


def _known(kind: type[tuple[Any, ...]], body: dict[str, Any]) -> dict[str, Any]:
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined] # a named tuple's
    return {name: value for name, value in body.items() if name in names}
