"""JSON schemas of payloads and results: their canonical form, and whether a value fits one.

Only what pydantic, msgspec and TypeBox write is understood: types, properties, items, enumerations,
bounds, patterns, alternatives and references inside the document. Other keywords are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

#: A JSON value; a schema is one, too.
Json: TypeAlias = Any

#: Keywords that say nothing about which values fit.
_ANNOTATIONS: Final = frozenset(
    {"$comment", "$id", "$schema", "deprecated", "description", "example", "examples", "title"}
)
#: Keywords whose value is a mapping of names to schemas: the names are no keywords.
_NAMED: Final = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
#: What a bound measures, by keyword: the least allowed, and the most.
LEAST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
MOST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def canonical_schema(schema: Json) -> Json:
    """Return the schema without titles, descriptions and the like; required fields in order."""
    if isinstance(schema, list):
        return [canonical_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Json] = {}
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword in _NAMED and isinstance(value, dict):
            found[keyword] = {name: canonical_schema(each) for name, each in value.items()}
        elif keyword in {"default", "const", "enum"}:
            found[keyword] = value
        elif keyword == "required":
            found[keyword] = sorted(value)
        else:
            found[keyword] = canonical_schema(value)
    return found


def resolved(schema: Json, root: Json) -> Json:
    """Return the schema that a reference names; a schema without one as it is."""
    for _ in range(100):  # a reference that leads to itself allows everything
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        target = root
        for step in str(schema["$ref"]).removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            target = target.get(name, {}) if isinstance(target, dict) else {}
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**target, **rest} if isinstance(target, dict) else target
    return {}


def type_names(schema: Mapping[str, Json]) -> frozenset[str]:
    """Return the types that a schema allows; empty: any."""
    found = schema.get("type", ())
    return frozenset({found} if isinstance(found, str) else found)


def problems(schema: Json, value: Json) -> list[str]:
    """Return why the value does not fit, each with its path; empty if it fits."""
    return list(_problems(schema, value, schema, ()))


def _problems(schema: Json, value: Json, root: Json, path: tuple[str, ...]) -> Iterator[str]:
    schema = resolved(schema, root)
    if schema is False:
        yield _at(path, "no value is allowed")
    if not isinstance(schema, dict):
        return
    types = type_names(schema)
    if types and not any(_is_type(value, name) for name in types):
        yield _at(path, f"it must be {' or '.join(sorted(types))}")
        return
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        yield _at(path, "it is none of the allowed values")
    if "const" in schema and not _same(value, schema["const"]):
        yield _at(path, "it is not the allowed value")
    yield from _alternatives(schema, value, root, path)
    yield from _out_of_bounds(schema, value, path)
    if isinstance(value, dict):
        yield from _in_object(schema, value, root, path)
    if isinstance(value, list):
        yield from _in_array(schema, value, root, path)


def _alternatives(
    schema: Mapping[str, Json], value: Json, root: Json, path: tuple[str, ...]
) -> Iterator[str]:
    for each in schema.get("allOf", ()):
        yield from _problems(each, value, root, path)
    for keyword in ("anyOf", "oneOf"):
        choices = schema.get(keyword, ())
        if choices and all(any(_problems(each, value, root, path)) for each in choices):
            yield _at(path, "it fits none of the alternatives")


def _in_object(
    schema: Mapping[str, Json], value: Mapping[str, Json], root: Json, path: tuple[str, ...]
) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield _at((*path, name), "it is required")
    for name, inner in value.items():
        if name in properties:
            yield from _problems(properties[name], inner, root, (*path, name))
        elif "additionalProperties" in schema:
            yield from _problems(schema["additionalProperties"], inner, root, (*path, name))


def _in_array(
    schema: Mapping[str, Json], value: list[Json], root: Json, path: tuple[str, ...]
) -> Iterator[str]:
    first = schema.get("prefixItems", ())
    for number, inner in enumerate(value):
        each = first[number] if number < len(first) else schema.get("items", True)
        yield from _problems(each, inner, root, (*path, str(number)))


def _out_of_bounds(schema: Mapping[str, Json], value: Json, path: tuple[str, ...]) -> Iterator[str]:
    for keyword in (*LEAST, *MOST):
        measured = _measured(keyword, value)
        if keyword not in schema or measured is None:
            continue
        bound, is_least = schema[keyword], keyword in LEAST
        exceeds = measured < bound if is_least else measured > bound
        if exceeds or (keyword.startswith("exclusive") and measured == bound):
            yield _at(path, f"its {keyword} is {bound}")
    if isinstance(value, str) and "pattern" in schema and not _matches(schema["pattern"], value):
        yield _at(path, f"it does not match {schema['pattern']}")


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:  # a dialect that Python does not read is not checked
        return True


def _measured(keyword: str, value: Json) -> float | None:
    if "Length" in keyword:
        return len(value) if isinstance(value, str) else None
    if "Items" in keyword:
        return len(value) if isinstance(value, list) else None
    if "Properties" in keyword:
        return len(value) if isinstance(value, dict) else None
    return value if _is_type(value, "number") else None


def _is_type(value: Json, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(name, (object,)))


def _same(one: Json, other: Json) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _at(path: tuple[str, ...], problem: str) -> str:
    return f"{'.'.join(path) or 'the value'}: {problem}"
