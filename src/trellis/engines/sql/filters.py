"""The only SQL that is put together from pieces: the filter of `find` and `count`.

Columns come from this closed list; everything a caller can choose is a bound parameter.
"""

from __future__ import annotations

import json
from typing import Final

from trellis.core.states import State
from trellis.engines.values import GroupBy, JobFilter

GROUP_COLUMNS: Final[dict[GroupBy, str]] = {
    "state": "state",
    "type": "type",
    "queue": "queue",
    "service": "service",
    "error": "coalesce(json_extract(error, '$[0]'), '')",
}


def where_clause(where: JobFilter) -> tuple[str, list[object]]:
    """Return the conditions on the record view and their parameters."""
    parts: list[str] = []
    values: list[object] = []

    def add(condition: str, *bound: object) -> None:
        parts.append(condition)
        values.extend(bound)

    for column, wanted in (
        ("service", where.services),
        ("type", where.types),
        ("queue", where.queues),
        ("state", tuple(State(state).value for state in where.states)),
    ):
        if wanted:
            add(f"{column} in (select value from json_each(?))", json.dumps(wanted))  # noqa: S608
    for name, value in where.tags:
        add("exists (select 1 from json_each(tags) t where t.key = ? and t.value = ?)", name, value)
    for condition, bound in (
        ("key = ?", where.key),
        ("created_at >= ?", where.created_from),
        ("created_at < ?", where.created_before),
        ("finished_at >= ?", where.finished_from),
        ("finished_at < ?", where.finished_before),
        # Each engine brings this function: no two databases agree on what "in any case" means.
        ("error is not null and trellis_mentions(error, ?)", where.error_contains),
    ):
        if bound is not None:
            add(condition, bound)
    if where.id_prefix is not None:
        add("substr(id, 1, ?) = ?", len(where.id_prefix), where.id_prefix)
    if where.id_suffix is not None:
        add("substr(id, length(id) + 1 - ?) = ?", len(where.id_suffix), where.id_suffix)
    return (" and ".join(parts) or "true"), values
