"""Values as JSON: a codec for every type of the engine port, made from the type's annotations.

A named tuple is a list, as `json` writes it, so that jobs cost no time here; fields at the end may
be left out if they have a default. Those with parts that `json` cannot write, and dataclasses, are
objects with their fields by name, without those at their default. A member of a union of classes is
a pair of the name of its class and its fields. The set of types is closed: what is read can only
become a value of the annotated type, and every other text raises `WireError`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, NewType, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from trellis.core.policy import Policy, decode_policy, encode_policy

_make: Final = tuple.__new__
_REQUIRED: Final = object()
_TAGGED: Final = 2
#: For how many combinations of types a named tuple remembers how it is read.
_WAYS: Final = 64


class WireError(ValueError):
    """The JSON is not a value of the type; `str` names the place and what was expected there."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(expected)
        self.expected = expected
        self.found = type(found).__name__
        #: From the outside to the inside.
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{'.'.join(self.path) or 'body'}: {self.expected} expected, not {self.found}"


def dump(value: object) -> bytes:
    """Write plain data, and named tuples of plain data, as JSON."""
    return _encode(value).encode("ascii")


def _text(value: object) -> str:
    if isinstance(value, Policy):
        return encode_policy(value)
    raise TypeError(f"{value!r} cannot be sent.")


_encode: Final = json.JSONEncoder(separators=(",", ":"), default=_text).encode


class Codec(NamedTuple):
    """How values of one type are written and read."""

    #: None: a value is written as it is, by `dump`.
    encode: Callable[[Any], Any] | None
    decode: Callable[[Any], Any]
    #: The types of JSON values that are read as they are.
    plain: frozenset[type] = frozenset()

    def write(self, value: Any) -> Any:  # noqa: ANN401 - a value of the type
        """Return the value as plain data."""
        return value if self.encode is None else self.encode(value)


@cache
def codec_of(annotation: Any) -> Codec:  # noqa: ANN401 - any annotation
    """Return the codec of a type; raise `TypeError` if it has none."""
    if annotation is Any or _is_json(annotation):
        return Codec(None, lambda raw: raw)
    if isinstance(annotation, NewType):
        return codec_of(annotation.__supertype__)
    if annotation in PLAIN:
        kinds = PLAIN[annotation]
        return Codec(None, _checked(annotation.__name__, *kinds), frozenset(kinds))
    if annotation is Policy:
        return Codec(None, _policy)  # written by `dump`
    origin = get_origin(annotation)
    if origin is not None:
        return _generic(annotation, origin, get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    if isinstance(annotation, type) and hasattr(annotation, "_fields"):
        return named_tuple_codec(annotation)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _dataclass(annotation)
    raise TypeError(f"{annotation!r} cannot be sent.")


def _is_json(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Return whether this is `JsonValue`: only that union has lists beside plain values."""
    parts = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else ()
    return bool in parts and any(get_origin(part) is list for part in parts)


# -- plain values ------------------------------------------------------------------------------

#: What JSON gives for a plain type; a bool is no number.
PLAIN: Final[dict[Any, tuple[type, ...]]] = {
    bool: (bool,), int: (int,), float: (float, int), str: (str,), NoneType: (NoneType,),
}  # fmt: skip


def _checked(expected: str, *kinds: type) -> Callable[[Any], Any]:
    def decode(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
        if type(raw) in kinds:
            return raw
        raise WireError(expected, raw)

    return decode


def _policy(raw: object) -> Policy:
    if not isinstance(raw, str):
        raise WireError("the text of a policy", raw)
    try:
        return decode_policy(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError("the text of a policy", raw) from error


def _enum(kind: type[Enum]) -> Codec:
    members = {member.value: member for member in kind}
    decode = _one_of(kind.__name__, members)
    return Codec(None if issubclass(kind, str) else lambda value: value.value, decode)


def _one_of(expected: str, members: Mapping[Any, Any]) -> Callable[[Any], Any]:
    def decode(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
        if type(raw) in {str, int} and raw in members:
            return members[raw]
        raise WireError(expected, raw)

    return decode


# -- collections -------------------------------------------------------------------------------


def _generic(annotation: Any, origin: Any, parts: tuple[Any, ...]) -> Codec:  # noqa: ANN401
    if origin is Literal:
        expected = " or ".join(map(repr, parts))
        return Codec(None, _one_of(expected, {part: part for part in parts}))
    if origin in {Union, UnionType}:
        return _union(parts)
    if origin is tuple and parts[-1] is not ...:
        return _fixed([codec_of(part) for part in parts])
    if issubclass(origin, Mapping):
        return _mapping(codec_of(parts[0]), codec_of(parts[1]))
    if issubclass(origin, AbstractSet):
        return _items(codec_of(parts[0]), frozenset)
    if origin in {tuple, list}:
        items = _items(codec_of(parts[0]), origin)
        return items if codec_of(parts[0]).encode else items._replace(encode=None)
    if issubclass(origin, Sequence):
        return _items(codec_of(parts[0]), tuple)
    raise TypeError(f"{annotation!r} cannot be sent.")


def _items(item: Codec, build: Callable[[Any], Any]) -> Codec:
    write, read, _ = item

    def encode(values: Any) -> list[Any]:  # noqa: ANN401 - any collection
        return list(values) if write is None else [write(value) for value in values]

    def decode(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
        if type(raw) is not list:
            raise WireError("a list", raw)
        return build([read(each) for each in raw])

    return Codec(encode, decode)


def _fixed(items: Sequence[Codec]) -> Codec:
    def encode(values: Any) -> list[Any]:  # noqa: ANN401 - any tuple
        return [item.write(value) for item, value in zip(items, values, strict=True)]

    def decode(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
        if type(raw) is not list or len(raw) != len(items):
            raise WireError(f"a list of {len(items)}", raw)
        return tuple(item.decode(each) for item, each in zip(items, raw, strict=True))

    is_plain = all(item.encode is None for item in items)
    return Codec(None if is_plain else encode, decode)


def _mapping(key: Codec, item: Codec) -> Codec:
    """Return the codec of a mapping: a list of pairs, because keys need not be texts."""
    pair = _fixed((key, item))

    def encode(values: Mapping[Any, Any]) -> list[Any]:
        return [pair.write(each) for each in values.items()]

    def decode(raw: Any) -> dict[Any, Any]:  # noqa: ANN401 - any JSON value
        if type(raw) is not list:
            raise WireError("a list of pairs", raw)
        return dict(map(pair.decode, raw))

    return Codec(encode, decode)


# -- unions ------------------------------------------------------------------------------------


def _union(parts: tuple[Any, ...]) -> Codec:
    members = [part for part in parts if part is not NoneType]
    if len(members) == 1:
        codec = codec_of(members[0])
    else:
        codec = _tagged([each for each in members if _is_class(each)],
                        [codec_of(each) for each in members if not _is_class(each)])  # fmt: skip
    return codec if len(members) == len(parts) else _optional(codec)


def _is_class(part: object) -> bool:
    return isinstance(part, type) and (
        hasattr(part, "_fields") or (dataclasses.is_dataclass(part) and part is not Policy)
    )


def _optional(codec: Codec) -> Codec:
    write, read, plain = codec

    def encode(value: Any) -> Any:  # noqa: ANN401 - a value of the type
        return None if value is None else codec.write(value)

    def decode(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
        return None if raw is None else read(raw)

    return Codec(None if write is None else encode, decode, plain | {NoneType})


def _tagged(classes: Sequence[type], plain: Sequence[Codec]) -> Codec:
    writers = {each: (each.__name__, codec_of(each).write) for each in classes}
    readers = {each.__name__: codec_of(each).decode for each in classes}
    expected = " or ".join([*readers, *("a plain value" for _ in plain[:1])])

    def encode(value: Any) -> Any:  # noqa: ANN401 - a value of one of the types
        found = writers.get(type(value))
        return value if found is None else [found[0], found[1](value)]

    def decode(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
        if type(raw) is list and len(raw) == _TAGGED and type(raw[0]) is str and raw[0] in readers:
            return readers[raw[0]](raw[1])
        for codec in plain:
            try:
                return codec.decode(raw)
            except WireError:
                continue
        raise WireError(expected, raw)

    return Codec(encode, decode)


# -- classes -----------------------------------------------------------------------------------


class Field(NamedTuple):
    """A field of a class, or an argument of a verb."""

    name: str
    codec: Codec
    default: Any = _REQUIRED

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is _REQUIRED


def write_fields(fields: Sequence[Field], values: Sequence[Any]) -> dict[str, Any]:
    """Return the values by name; those at their default are left out."""
    return _writer(fields)(values)


def _writer(fields: Sequence[Field]) -> Callable[[Sequence[Any]], dict[str, Any]]:
    parts = [(field.name, field.codec.encode, field.default) for field in fields]

    def encode(values: Sequence[Any]) -> dict[str, Any]:
        return {
            name: value if write is None else write(value)
            for (name, write, default), value in zip(parts, values, strict=True)
            if value is not default and value != default
        }

    return encode


def _reader(kind: type, fields: Sequence[Field]) -> Callable[[Any], Any]:
    """Return the fast way through a value; `read_fields` finds what is wrong with it."""
    parts = [(each.name, each.codec.plain, each.codec.decode, each.default) for each in fields]
    names = {field.name for field in fields}
    required = {field.name for field in fields if field.is_required}
    title = kind.__name__

    def decode(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
        if type(raw) is not dict or not required <= raw.keys() <= names:
            return _make(kind, read_fields(fields, raw, title))
        get = raw.get
        try:
            values = [
                value
                if (value := get(name, default)) is default or type(value) in plain
                else read(value)
                for name, plain, read, default in parts
            ]
        except WireError:
            return _make(kind, read_fields(fields, raw, title))
        return _make(kind, values)

    return decode


def read_fields(fields: Sequence[Field], raw: object, expected: str) -> list[Any]:
    """Return the values in the order of the fields; raise `WireError`."""
    if type(raw) is not dict:
        raise WireError(f"{expected} as an object", raw)
    values, found = [], 0
    for name, (_, decode, _), default in fields:
        if name in raw:
            found += 1
            try:
                values.append(decode(raw[name]))
            except WireError as error:
                error.path.insert(0, name)
                raise
        elif default is _REQUIRED:
            raise WireError(f"{expected} with {name!r}", raw)
        else:
            values.append(default)
    if found != len(raw):
        unknown = sorted(raw.keys() - {field.name for field in fields})
        raise WireError(f"{expected} without {', '.join(map(repr, unknown))}", raw)
    return values


def named_tuple_codec(kind: type, of: Callable[[Any], Codec] = codec_of) -> Codec:
    """Return the codec of a named tuple, from those `of` the annotations of its fields."""
    hints, names = hints_of(kind), kind._fields  # type: ignore[attr-defined] # a named tuple's
    defaults = kind._field_defaults  # type: ignore[attr-defined]
    fields = [Field(name, of(hints[name]), defaults.get(name, _REQUIRED)) for name in names]
    if all(field.codec.encode is None for field in fields):
        return Codec(None, _list_reader(kind, fields))
    return Codec(_writer(fields), _reader(kind, fields))


def _list_reader(kind: type, fields: Sequence[Field]) -> Callable[[Any], Any]:
    """Return how a named tuple is read that was written as a list.

    Lists with the same types of values at the same places are read in the same way: which places
    need a reader is remembered for the first such ways.
    """
    codecs = [field.codec for field in fields]
    defaults = [field.default for field in fields]
    least = sum(field.is_required for field in fields)
    expected = f"{kind.__name__} as a list of {least} to {len(fields)}"
    ways: dict[tuple[type, ...], list[tuple[int, Callable[[Any], Any]]]] = {}

    def find_way(raw: list[Any]) -> list[tuple[int, Callable[[Any], Any]]]:
        if not least <= len(raw) <= len(codecs):
            raise WireError(expected, raw)
        pairs = enumerate(zip(codecs, raw, strict=False))
        way = [
            (place, each.decode) for place, (each, value) in pairs if type(value) not in each.plain
        ]
        if len(ways) < _WAYS:
            ways[tuple(map(type, raw))] = way
        return way

    def decode(raw: Any) -> Any:  # noqa: ANN401 - any JSON value
        if type(raw) is not list:
            raise WireError(expected, raw)
        way = ways.get(tuple(map(type, raw)))
        if way is None:
            way = find_way(raw)
        values = raw + defaults[len(raw) :]
        for place, read in way:
            values[place] = read(values[place])
        return _make(kind, values)

    return decode


def _dataclass(kind: type) -> Codec:
    hints, title = hints_of(kind), kind.__name__
    fields = [
        Field(each.name, codec_of(hints[each.name]), _default(each))
        for each in dataclasses.fields(kind)
    ]
    names, write = [field.name for field in fields], _writer(fields)

    def decode(raw: object) -> Any:  # noqa: ANN401 - a value of the class
        return kind(*read_fields(fields, raw, title))

    return Codec(lambda value: write([getattr(value, name) for name in names]), decode)


def _default(each: dataclasses.Field[Any]) -> object:
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return _REQUIRED if each.default is dataclasses.MISSING else each.default
