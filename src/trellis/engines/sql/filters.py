"""The filter of `find` and `count`, put together from the fragments `where_...` of an engine.

A filter has any number of conditions, so it cannot be written down whole; each condition can. All
that a caller chooses is a bound value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trellis.core.states import State
from trellis.engines.values import GroupBy, JobFilter, TagGroup


class Filters:
    """Filters in the words of one engine."""

    def __init__(
        self,
        fragments: Mapping[str, str],
        as_list: Callable[[Sequence[str]], Any] = list,
        *,
        numbered: bool = False,
    ) -> None:
        self._fragments = fragments
        #: How the engine binds a list of texts.
        self._as_list = as_list
        #: Whether parameters are `$1`, `$2`, ... instead of `?`.
        self._numbered = numbered
        #: Whether the database itself looks through the texts of errors.
        self.searches_errors = "find_errors" not in fragments

    def statement(self, name: str, **words: object) -> str:
        """Return a fragment as a whole statement, with these words filled in."""
        return self._fragments[name].format(**words)

    def where(
        self, where: JobFilter, errors: Sequence[str] | None = None, bound: Sequence[object] = ()
    ) -> tuple[str, list[object]]:
        """Return the condition on the record view, and all values of the statement so far.

        `errors` are the errors that match, for an engine that finds them beforehand; `bound` are
        the values that stand before the condition.
        """
        values = list(bound)
        parts = [
            self._filled(name, given, values) for name, given in self._conditions(where, errors)
        ]
        return (" and ".join(parts) or "true"), values

    def groups(self, groups: Iterable[GroupBy]) -> tuple[str, list[object]]:
        """Return the columns to group by, and their values."""
        values: list[object] = []
        columns = [
            self._filled("group_tag", group, values)
            if isinstance(group, TagGroup)
            else self._fragments[f"group_{group}"]
            for group in groups
        ]
        return ", ".join(columns), values

    def _filled(self, name: str, given: tuple[object, ...], values: list[object]) -> str:
        """Return a fragment with its parameters, after adding its values to those before it."""
        text, *pieces = self._fragments[name].split("?")
        # A fragment with one value may use it more than once.
        for value, piece in zip(
            given if len(given) == len(pieces) else given * len(pieces), pieces, strict=True
        ):
            values.append(value)
            text += f"{self._mark(len(values))}{piece}"
        return text

    def _mark(self, position: int) -> str:
        return f"${position}" if self._numbered else "?"

    def _conditions(
        self, where: JobFilter, errors: Sequence[str] | None
    ) -> Iterable[tuple[str, tuple[object, ...]]]:
        """Yield the fragments of a filter, each with its values."""
        for name, wanted in (
            ("where_service", where.services),
            ("where_type", where.types),
            ("where_queue", where.queues),
            ("where_state", tuple(State(state).value for state in where.states)),
        ):
            if wanted:
                yield name, (self._as_list(wanted),)
        if where.blocked:
            yield "where_blocked", ()
        for tag in where.tags:
            yield "where_tag", tag
        for name, value in (
            ("where_key", where.key),
            ("where_created_from", where.created_from),
            ("where_created_before", where.created_before),
            ("where_finished_from", where.finished_from),
            ("where_finished_before", where.finished_before),
            ("where_error", where.error_contains if errors is None else self._as_list(errors)),
            ("where_worker", where.worker),
            ("where_batch", where.batch),
            ("where_parent", where.parent),
            ("where_tenant", where.tenant),
            ("where_schedule", where.schedule),
            ("where_id_prefix", where.id_prefix),
            ("where_id_suffix", where.id_suffix),
        ):
            if value is not None:
                yield name, (value,)
