"""Reading the audit: filters as people write them, page by page."""

from __future__ import annotations

from typing import TypedDict

from trellis.declaration import checks
from trellis.declaration.options import check_options
from trellis.engines.audit import AuditFilter
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError, JobNotFound
from trellis.insight.audit import AuditView, audit_view
from trellis.insight.filters import Moment, read_moment
from trellis.operations.lookup import ID_LENGTH, resolve_job


class AuditFilters(TypedDict, total=False):
    """Which entries: every given part must match."""

    #: Who made the change.
    actor: str | None
    #: What was done, or its first word: `queue` is `queue.pause`, `queue.resume`, ...
    action: str | None
    #: To what; the beginning or end of a job's id is enough while it is unique.
    target: str | None
    #: Changed since: a moment, or how long ago.
    since: Moment | None
    #: Changed before: a moment, or how long ago.
    until: Moment | None


async def list_audit(
    engine: Engine, filters: AuditFilters, after: int | None, limit: int
) -> list[AuditView]:
    """Return a page of the audit, the latest first."""
    check_options(filters, AuditFilters, "audit() has")
    if checks.whole_number("limit", limit) < 1:
        raise ConfigurationError(f"limit must be at least 1, not {limit}.")
    target = filters.get("target")
    now = await engine.now()
    where = AuditFilter(
        filters.get("actor"),
        filters.get("action"),
        None if target is None else await _whole_target(engine, target),
        read_moment("since", filters.get("since"), now),
        read_moment("until", filters.get("until"), now),
    )
    return [audit_view(each) for each in await engine.audit(where, after=after, limit=limit)]


async def _whole_target(engine: Engine, written: str) -> str:
    """Return the whole id of a job that is kept; anything else as it is written."""
    if not written.isalnum():
        return written
    if len(written) == ID_LENGTH:
        return written.upper()
    try:
        return (await resolve_job(engine, written)).definition.id
    except JobNotFound:
        return written
