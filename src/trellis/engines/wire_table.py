"""Lists of values as tables: one column per field instead of one list or object per value.

Arguments and answers of a verb are written so, where they are lists of named tuples: 500 claimed
jobs name their queue and their policy once, and a column is read and checked in a few steps. A
column whose values are all the same is `{"=": value}`. A short text may be repeated so, a long one
may not, and a table has a limited number of rows: a short request cannot become a large one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache, partial
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, NewType, Union, cast, get_args, get_origin
from typing import get_type_hints as hints_of

from trellis.core.policy import Policy
from trellis.engines.wire import PLAIN, Codec, WireError, codec_of, named_tuple_codec

_make: Final = tuple.__new__
_MISSING: Final = object()
#: The most rows of a table; longer lists are lists.
_ROWS: Final = 10_000
#: The most characters of a text that is written once for all rows.
_REPEATED: Final = 1000
_SAME: Final = "="
_ALL: Final = "all"


class Column(NamedTuple):
    """How the values of one field, or all rows of a table, are written and read."""

    write: Callable[[Sequence[Any]], Any]
    #: Takes the number of values.
    read: Callable[[Any, int], Sequence[Any]]


@cache
def message_codec(annotation: Any) -> Codec:  # noqa: ANN401 - any annotation
    """Return the codec of an argument or answer: its lists of named tuples are tables."""
    parts = get_args(annotation)
    if get_origin(annotation) in {list, tuple, Sequence} and parts[1:] in {(), (...,)}:
        is_table = any(map(_is_named_tuple, _members(parts[0])))
        return _table(annotation, parts[0]) if is_table else codec_of(annotation)
    if _is_named_tuple(annotation):
        return named_tuple_codec(annotation, message_codec)
    return codec_of(annotation)


def _table(annotation: Any, row: Any) -> Codec:  # noqa: ANN401 - annotations
    rows, column = codec_of(annotation), _column(row)
    build = list if get_origin(annotation) is list else tuple

    def encode(values: Sequence[Any]) -> Any:  # noqa: ANN401 - a table or a list
        if 1 < len(values) <= _ROWS:
            return {"count": len(values), "columns": column.write(values)}
        return rows.write(values)

    def decode(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
        if type(raw) is not dict:
            return rows.decode(raw)
        count = raw.get("count")
        if raw.keys() != {"count", "columns"} or type(count) is not int or not 0 <= count <= _ROWS:
            raise WireError(f"a list or a table of at most {_ROWS} rows", raw)
        return build(column.read(raw["columns"], count))

    return Codec(encode, decode)


def _members(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any annotation
    is_union = get_origin(annotation) in {Union, UnionType}
    return get_args(annotation) if is_union else (annotation,)


def _is_named_tuple(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    return isinstance(annotation, type) and hasattr(annotation, "_fields")


@cache
def _column(annotation: Any) -> Column:  # noqa: ANN401 - any annotation
    if isinstance(annotation, NewType):
        return _column(annotation.__supertype__)
    if _is_named_tuple(annotation):
        return _named_tuple(annotation)
    members = [each for each in _members(annotation) if each is not NoneType]
    if all(map(_is_simple, members)) and len(members) == 1:
        return _simple(codec_of(annotation), _members(annotation))
    if any(map(_is_named_tuple, members)):
        return _classes(codec_of(annotation), members)
    return _any(codec_of(annotation))


def _is_simple(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Return whether values are no collections, and equal ones are the same."""
    if isinstance(annotation, NewType):
        return _is_simple(annotation.__supertype__)
    is_enum = isinstance(annotation, type) and issubclass(annotation, Enum)
    is_literal = get_origin(annotation) is Literal
    return is_enum or is_literal or annotation is Policy or annotation in PLAIN


def _values(raw: Any, count: int, decode: Callable[[Any], Any]) -> list[Any]:  # noqa: ANN401
    if type(raw) is not list or len(raw) != count:
        raise WireError(f"a column of {count}", raw)
    return [decode(each) for each in raw]


def _simple(codec: Codec, members: Sequence[Any]) -> Column:
    """Return the column of plain values."""
    plain = [each.__supertype__ if isinstance(each, NewType) else each for each in members]
    kinds = {kind for each in plain for kind in PLAIN.get(each, ())}
    is_plain = all(each in PLAIN for each in plain)

    def write(values: Sequence[Any]) -> Any:  # noqa: ANN401 - JSON
        first = values[0]
        if values.count(first) == len(values) and not _is_long(first):
            return {_SAME: codec.write(first)}
        return values if codec.encode is None else [codec.encode(each) for each in values]

    def read(raw: Any, count: int) -> Sequence[Any]:  # noqa: ANN401 - any JSON value
        if type(raw) is dict:
            same = raw.get(_SAME, _MISSING)
            if len(raw) != 1 or same is _MISSING or (is_plain and _is_long(same)):
                raise WireError(f"a column of {count}, or one short value", raw)
            return [codec.decode(same)] * count
        is_column = type(raw) is list and len(raw) == count
        if is_plain and is_column and kinds.issuperset(map(type, raw)):
            return cast("list[Any]", raw)
        return _values(raw, count, codec.decode)

    return Column(write, read)


def _is_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > _REPEATED


def _any(codec: Codec) -> Column:
    """Return the column of values that are written one by one, unless all are empty."""

    def write(values: Sequence[Any]) -> Any:  # noqa: ANN401 - JSON
        if not any(values) and values.count(values[0]) == len(values):
            return {_SAME: codec.write(values[0])}
        return [codec.write(each) for each in values]

    def read(raw: Any, count: int) -> Sequence[Any]:  # noqa: ANN401 - any JSON value
        if type(raw) is dict:
            if raw.keys() != {_SAME} or raw[_SAME]:
                raise WireError(f"a column of {count}, or one empty value", raw)
            return [codec.decode(raw[_SAME]) for _ in range(count)]
        return _values(raw, count, codec.decode)

    return Column(write, read)


def _classes(codec: Codec, members: Sequence[type]) -> Column:
    """Return the column of a union with named tuples: a table if all values are of one class."""
    columns = {
        kind: (kind.__name__ if len(members) > 1 else _ALL, _column(kind))
        for kind in filter(_is_named_tuple, members)
    }
    readers = dict(columns.values())

    def write(values: Sequence[Any]) -> Any:  # noqa: ANN401 - JSON
        found = set(map(type, values))
        name, column = columns.get(found.pop(), (_SAME, None))
        if found:
            return [codec.write(each) for each in values]
        if column is not None:
            return {name: column.write(values)}
        return {_SAME: None} if values[0] is None else [codec.write(each) for each in values]

    def read(raw: Any, count: int) -> Sequence[Any]:  # noqa: ANN401 - any JSON value
        if type(raw) is not dict:
            return _values(raw, count, codec.decode)
        if raw == {_SAME: None}:
            return [codec.decode(None)] * count
        name = next(iter(raw), "")
        if len(raw) != 1 or name not in readers:
            raise WireError(f"a column of {count}, or {' or '.join(readers)}", raw)
        return readers[name].read(raw[name], count)

    return Column(write, read)


def _named_tuple(kind: type) -> Column:
    """Return the columns of a class; those at the end may be left out if they have a default."""
    hints, names = hints_of(kind), kind._fields  # type: ignore[attr-defined] # a named tuple's
    defaults = kind._field_defaults  # type: ignore[attr-defined]
    columns = [(name, _column(hints[name]), defaults.get(name)) for name in names]
    writers = [column.write for _, column, _ in columns]
    least = sum(name not in defaults for name in names)
    make = partial(_make, kind)

    def write(values: Sequence[Any]) -> list[Any]:
        return [
            each(column) for each, column in zip(writers, zip(*values, strict=True), strict=True)
        ]

    def read(raw: Any, count: int) -> list[Any]:  # noqa: ANN401 - any JSON value
        if type(raw) is not list or not least <= len(raw) <= len(columns):
            raise WireError(f"{kind.__name__} as {least} to {len(columns)} columns", raw)
        if not columns:
            return [make(())] * count
        found: list[Any] = []
        for (name, column, _), each in zip(columns, raw, strict=False):
            try:
                found.append(column.read(each, count))
            except WireError as error:
                error.path.insert(0, name)
                raise
        found += [repeat(default, count) for _, _, default in columns[len(raw) :]]
        return list(map(make, zip(*found, strict=True)))

    return Column(write, read)
