"""The public value of an entry of the audit: who changed what, when, and why.

As in `views.py`: moments are aware datetimes, and secrets are masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trellis.core.durations import to_datetime
from trellis.core.events import JsonValue
from trellis.declaration.secrets import mask_value
from trellis.engines.audit import AuditEntry


@dataclass(frozen=True, slots=True)
class AuditView:
    """One change by an operator."""

    #: Numbers only grow.
    number: int
    at: datetime
    actor: str
    #: What was done: `job.cancel`, `queue.pause`, ...
    action: str
    #: To what: the id of a job or worker, service/queue, ...
    target: str
    #: The values that changed, by name; `run_at` is a datetime. Empty if there were none before.
    before: Mapping[str, Any]
    #: The same after the change. Empty if there are none any more.
    after: Mapping[str, Any]
    #: Empty if none was given.
    reason: str


def audit_view(entry: AuditEntry) -> AuditView:
    """Return the view of an entry."""
    change, by = entry.change, entry.by
    return AuditView(
        entry.number,
        to_datetime(entry.at),
        by.actor,
        change.action,
        change.target,
        _values(change.before),
        _values(change.after),
        by.reason,
    )


def _values(stored: JsonValue) -> Mapping[str, Any]:
    if stored is None:
        return {}
    values: Any = mask_value(stored)
    if not isinstance(values, Mapping):
        return {"value": values}
    return {
        name: to_datetime(value) if name == "run_at" and isinstance(value, int) else value
        for name, value in values.items()
    }
