"""Changes of a JSON schema: whether the schema of today accepts every value of the one before.

The answer is careful: what cannot be compared counts as narrower. A value of the schema before has
no field that the schema does not name, unless it allows more on purpose, because payloads are
written by their type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from trellis.core.json_schema import LEAST, MOST, Json, resolved, type_names

_Path = tuple[str, ...]
#: Keywords that are compared in one way or another.
_COMPARED: Final = frozenset(
    {*LEAST, *MOST, "$defs", "$ref", "additionalProperties", "anyOf", "const", "default",
     "definitions", "discriminator", "enum", "items", "oneOf", "prefixItems", "properties",
     "readOnly", "required", "type", "writeOnly"}
)  # fmt: skip
#: Keywords beside alternatives that do not restrict them.
_ABOUT_ALL: Final = frozenset({"$defs", "default", "definitions", "discriminator"})
_DEEPEST: Final = 20


def narrowings(before: Json, after: Json) -> list[str]:
    """Return which values of the schema before are refused now, each with its path."""
    return _Comparison(before, after).narrowed(before, after, ())


class _Comparison:
    """Compares two documents; references are those of their own document."""

    def __init__(self, before: Json, after: Json) -> None:
        self._before = before
        self._after = after
        #: Pairs of references under comparison, for types that contain themselves.
        self._open: set[tuple[str, str]] = set()

    def narrowed(self, before: Json, after: Json, path: _Path) -> list[str]:
        """Return why some values of the schema before do not fit that of today."""
        pair = (_reference(before), _reference(after))
        if pair in self._open:
            return []
        if all(pair):
            self._open.add(pair)
        try:
            return [
                problem
                for each in _alternatives(before, self._before)
                for problem in self._accepted(each, _alternatives(after, self._after), path)
            ]
        finally:
            self._open.discard(pair)

    def _accepted(self, before: Json, choices: list[Json], path: _Path) -> list[str]:
        """Return why none of the alternatives of today accepts this one of before."""
        if before is False:
            return []
        found = [list(self._one(before, each, path)) for each in choices]
        if [] in found:
            return []
        return found[0] if len(found) == 1 else [_lost(before, path)]

    def _one(self, before: Json, after: Json, path: _Path) -> Iterator[str]:
        if after is True or after == {}:
            return
        if before is True or before == {}:
            yield _at(path, "only some values are allowed now")
            return
        if not isinstance(before, dict) or not isinstance(after, dict):
            yield _at(path, "no value is allowed now")
            return
        yield from _types_and_values(before, after, path)
        yield from _bounds(before, after, path)
        yield from self._objects(before, after, path)
        yield from self._arrays(before, after, path)
        for keyword in sorted(after.keys() - _COMPARED):
            if before.get(keyword) != after[keyword]:
                yield _at(path, f"{keyword} is another or new")

    def _objects(
        self, before: Mapping[str, Json], after: Mapping[str, Json], path: _Path
    ) -> Iterator[str]:
        mine, theirs = before.get("properties", {}), after.get("properties", {})
        required = set(before.get("required", ()))
        for name in after.get("required", ()):
            if name not in required:
                yield _at((*path, name), "it is required now")
        rest = after.get("additionalProperties", True)
        for name, each in mine.items():
            if name not in theirs and rest is False:
                yield _at((*path, name), "this field is refused now")
            else:
                yield from self.narrowed(each, theirs.get(name, rest), (*path, name))
        if "additionalProperties" in before:
            yield from self.narrowed(before["additionalProperties"], rest, (*path, "*"))

    def _arrays(
        self, before: Mapping[str, Json], after: Mapping[str, Json], path: _Path
    ) -> Iterator[str]:
        if not {"items", "prefixItems"} & after.keys():
            return
        first, firsts = before.get("prefixItems", ()), after.get("prefixItems", ())
        for number in range(max(len(first), len(firsts))):
            one = first[number] if number < len(first) else before.get("items", True)
            other = firsts[number] if number < len(firsts) else after.get("items", True)
            yield from self.narrowed(one, other, (*path, str(number)))
        if "items" in after:
            # Without `items`, a list of fixed length (`maxItems`) has no further members.
            one = before.get("items", "maxItems" not in before)
            yield from self.narrowed(one, after["items"], (*path, "*"))


def _alternatives(schema: Json, root: Json, depth: int = 0) -> list[Json]:
    """Return the schemas of which a value must fit one, without alternatives in them."""
    schema = resolved(schema, root)
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return [schema]
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            rest = {name: schema[name] for name in schema.keys() - {keyword, *_ABOUT_ALL}}
            return [
                found
                for each in schema[keyword]
                for found in _alternatives(_with(rest, each, root), root, depth + 1)
            ]
    types = type_names(schema)
    return [{**schema, "type": name} for name in sorted(types)] if len(types) > 1 else [schema]


def _with(rest: Mapping[str, Json], schema: Json, root: Json) -> Json:
    schema = resolved(schema, root)
    return {**rest, **schema} if isinstance(schema, dict) else schema


def _types_and_values(
    before: Mapping[str, Json], after: Mapping[str, Json], path: _Path
) -> Iterator[str]:
    allowed, values = _values(after), _values(before)
    if allowed is not None:
        gone = None if values is None else [each for each in values if each not in allowed]
        if gone is None or gone:
            what = "any other value" if gone is None else ", ".join(map(repr, gone))
            yield _at(path, f"{what} is refused now")
        return
    types, names = type_names(after), type_names(before)
    wider = types | ({"integer"} if "number" in types else set())
    if types and (not names or not names <= wider):
        yield _at(path, f"it must be {' or '.join(sorted(types))} now")


def _values(schema: Mapping[str, Json]) -> list[Json] | None:
    if "const" in schema:
        return [schema["const"]]
    found: list[Json] | None = schema.get("enum")
    return found


def _bounds(before: Mapping[str, Json], after: Mapping[str, Json], path: _Path) -> Iterator[str]:
    for keyword in (*LEAST, *MOST):
        if keyword not in after or before.get(keyword) == after[keyword]:
            continue
        is_less = before.get(keyword) is not None and (
            before[keyword] > after[keyword]
            if keyword in LEAST
            else before[keyword] < after[keyword]
        )
        if not is_less and not (keyword in LEAST and after[keyword] == 0 and "Length" in keyword):
            yield _at(path, f"{keyword} is {after[keyword]} now")


def _lost(before: Json, path: _Path) -> str:
    names = type_names(before) if isinstance(before, dict) else frozenset()
    kind = " or ".join(sorted(names)) or "a value of before"
    return _at(path, f"{kind} is refused now, or only some of it")


def _reference(schema: Json) -> str:
    return str(schema.get("$ref", "")) if isinstance(schema, dict) else ""


def _at(path: _Path, problem: str) -> str:
    return f"{'.'.join(path) or 'the value'}: {problem}"
