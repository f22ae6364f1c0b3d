"""The filter of `find` and `count` in PostgreSQL's words.

Columns come from this closed list; everything a caller can choose is a bound parameter.
"""

from __future__ import annotations

from typing import Final

from trellis.core.states import State
from trellis.engines.values import GroupBy, JobFilter

GROUP_COLUMNS: Final[dict[GroupBy, str]] = {
    "state": "state",
    "type": "type",
    "queue": "queue",
    "service": "service",
    "error": "coalesce(error::json ->> 0, '')",
}


def where_clause(where: JobFilter, errors: list[str] | None = None) -> tuple[str, list[object]]:
    """Return the conditions on the record view and their parameters.

    `errors` are those that contain what is looked for: no two databases agree on what "in any case"
    means, so that is found out elsewhere.
    """
    parts: list[str] = []
    values: list[object] = []

    def add(condition: str, *bound: object) -> None:
        """Add a condition; each `?` stands for the next bound value."""
        pieces = condition.split("?")
        text = pieces[0]
        for value, piece in zip(bound, pieces[1:], strict=True):
            values.append(value)
            text += f"${len(values)}{piece}"
        parts.append(text)

    for column, wanted in (
        ("service", where.services),
        ("type", where.types),
        ("queue", where.queues),
        ("state", tuple(State(state).value for state in where.states)),
    ):
        if wanted:
            add(f"{column} = any(?::text[])", list(wanted))
    for name, value in where.tags:
        add("tags::jsonb @> jsonb_build_object(?::text, ?::text)", name, value)
    for condition, bound in (
        ("key = ?::text", where.key),
        ("created_at >= ?::bigint", where.created_from),
        ("created_at < ?::bigint", where.created_before),
        ("finished_at >= ?::bigint", where.finished_from),
        ("finished_at < ?::bigint", where.finished_before),
        ("error = any(?::text[])", errors),
    ):
        if bound is not None:
            add(condition, bound)
    if where.id_prefix is not None:
        add("starts_with(id, ?::text)", where.id_prefix)
    if where.id_suffix is not None:
        add("right(id, length(?::text)) = ?::text", where.id_suffix, where.id_suffix)
    return (" and ".join(parts) or "true"), values
