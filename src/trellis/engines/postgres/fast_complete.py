"""Successes, nearly all that is ever settled: read from a batch column by column.

One statement stores those that have their state and moment in common. Numbers travel as one text:
the driver takes longer to write an array of them than to do everything else with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from trellis.core.commands import Complete
from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.job import Definition, Head
from trellis.core.lifecycle import Transition
from trellis.core.timers import keep_until


def _field(kind: type[tuple[Any, ...]], name: str) -> itemgetter[Any]:
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined] # a named tuple's
    return itemgetter(fields.index(name))


_ROW: Final = _field(Definition, "row")
_POLICY: Final = _field(Definition, "policy")
_KEY_HASH: Final = _field(Definition, "key_hash")
_VERSION: Final = _field(Head, "version")
_FENCE: Final = _field(Head, "fence")
_FINISHED_AT: Final = _field(Head, "finished_at")
_RESULT: Final = _field(Complete, "result")
_STARTED_AT: Final = _field(Complete, "started_at")
_STATE: Final = _field(Event, "state")
_AT: Final = _field(Event, "at")
_DATA: Final = _field(Event, "data")


def are_alike(batch: Sequence[Transition]) -> bool:
    """Tell whether all are plain successes of different jobs without keys, at one moment."""
    definitions, befores, commands, events, _ = zip(*batch, strict=True)
    if not _all_are(Complete, list(map(type, commands))):
        return False
    return (
        _all_are(None, list(map(_KEY_HASH, definitions)))
        and _all_are(None, list(map(_FINISHED_AT, befores)))
        and _all_are(None, list(map(_DATA, events)))
        and _all_are(_STATE(events[0]), list(map(_STATE, events)))
        and _all_are(_AT(events[0]), list(map(_AT, events)))
        and len(set(map(_ROW, definitions))) == len(batch)
    )


def columns(batch: Sequence[Transition]) -> tuple[object, ...]:
    """Return what `commit_done` wants; the batch has one state, kind and moment."""
    definitions, befores, commands, _, heads = zip(*batch, strict=True)
    event = batch[0].event
    results = list(map(_RESULT, commands))
    return (
        _numbers(map(_ROW, definitions)),
        _one_for_all(list(map(_VERSION, befores))),
        _numbers(fence[1] if fence else 0 for fence in map(_FENCE, befores)),
        _numbers(map(_STARTED_AT, commands)),
        [] if _all_are(None, results) else results,
        _one_for_all(_kept(definitions, heads)),
        event.state.value,
        event.kind.value,
        event.at,
    )


def in_order(batch: Sequence[Transition]) -> Sequence[Transition]:
    """Return them in the one order in which everybody changes rows."""
    rows = [_ROW(each[0]) for each in batch]
    return batch if rows == sorted(rows) else sorted(batch, key=lambda each: each.definition.row)


def _all_are(value: object, values: list[Any]) -> bool:
    return values.count(value) == len(values)


def _numbers(values: Iterable[int | None]) -> str:
    return "{" + ",".join(map(str, values)).replace("None", "null") + "}"


def _one_for_all(values: list[Any]) -> list[Any]:
    """Return the values, or just one if they are all the same: the rest is then filled in there."""
    return values[:1] if _all_are(values[0], values) else values


def _kept(definitions: Sequence[Definition], heads: Sequence[Head]) -> list[Instant | None]:
    """Return until when each is kept; jobs that share a policy and a moment share that too."""
    policies = list(map(id, map(_POLICY, definitions)))
    one_of_each = dict(zip(policies, zip(definitions, heads, strict=True), strict=True))
    kept = {policy: keep_until(*one) for policy, one in one_of_each.items()}
    return list(map(kept.__getitem__, policies))
