"""What may be shown of a job's data: secrets stay in the engine, whoever looks.

A type's `SecretStr` and `SecretBytes` fields are pointed at by the policy of each of its jobs, so
that a tool without the types at hand (the command line, the dashboard) masks them as well. Values
under names such as `password` or `api_key` are masked too, whatever their type: payloads that are
plain dictionaries have no secret fields to point at.

Which fields of a type are secret, as pointers into its JSON: found in its schema, once.

A pointer names one step per level, with two wildcards: `*` is any one step (an item of a list, a
key of a mapping), `**` any number of them (a type that contains itself has no last level).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from trellis.core.policy import Policy

MASK: Final = "**********"

#: Names, without capitals and separators, whose values are hidden: alone or at another name's end.
_TELLING: Final = (
    "apikey",
    "accesskey",
    "authorization",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "pwd",
    "secret",
    "secretkey",
    "token",
)


def masked(text: str, policy: Policy, part: Literal["payload", "result", "config"]) -> str:
    """Return stored JSON text as it may be shown; the same text if it has no secrets.

    >>> masked('{"user":"ada","password":"hunter2"}', Policy(), "payload")
    '{"user":"ada","password":"**********"}'
    """
    ways = [steps[1:] for steps in map(read_pointer, policy.secrets) if steps[0] == part]
    value = json.loads(text)
    shown = mask_value(value, ways)
    if shown == value:
        return text
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def mask_value(value: Any, ways: Iterable[Steps] = ()) -> Any:  # noqa: ANN401 - the JSON edge
    """Return plain data with everything masked that these ways lead to or whose name tells."""
    ways = list(ways)
    if () in ways:
        return None if value is None else MASK
    if isinstance(value, Mapping):
        return {name: _field(name, inner, ways) for name, inner in value.items()}
    if isinstance(value, list):
        return [mask_value(inner, onward(ways, str(at))) for at, inner in enumerate(value)]
    return value


def _field(name: str, value: Any, ways: list[Steps]) -> Any:  # noqa: ANN401 - the JSON edge
    return mask_value(value, [()] if _tells(name) else onward(ways, name))


def _tells(name: str) -> bool:
    plain = name.lower().replace("_", "").replace("-", "")
    return plain.endswith(_TELLING)


Steps: TypeAlias = tuple[str, ...]
ANY: Final = "*"
ANY_DEPTH: Final = "**"

_CHOICES: Final = ("anyOf", "oneOf", "allOf")
_MAPPINGS: Final = ("additionalProperties", "patternProperties")


def secret_steps(schema: Mapping[str, Any]) -> frozenset[Steps]:
    """Return the ways to every secret that values of this JSON schema can have."""
    walk = _Walk(schema.get("$defs", {}))
    found = frozenset(walk.secrets(schema, (), ()))
    return frozenset(map(_at_any_depth, found)) if walk.is_recursive else found


def write_pointer(steps: Steps) -> str:
    """Write the way as a JSON pointer (RFC 6901)."""
    return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps)


def read_pointer(pointer: str) -> Steps:
    """Read a JSON pointer."""
    steps = pointer.split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


class _Walk:
    """One way through a schema."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        self._shared = shared
        #: Whether some type contains itself.
        self.is_recursive = False

    def secrets(self, schema: object, path: Steps, inside: Steps) -> Iterator[Steps]:
        """Yield the way to every secret below; `inside` are the shared types we are in."""
        if not isinstance(schema, Mapping):
            return
        if schema.get("writeOnly"):
            yield path
            return
        if "$ref" in schema:
            yield from self._shared_type(schema["$ref"].rpartition("/")[2], path, inside)
        for step, inner in _parts(schema):
            yield from self.secrets(inner, (*path, *step), inside)

    def _shared_type(self, name: str, path: Steps, inside: Steps) -> Iterator[Steps]:
        if name in inside:
            self.is_recursive = True
        else:
            yield from self.secrets(self._shared.get(name), path, (*inside, name))


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[Steps, object]]:
    for choice in _CHOICES:
        yield from (((), each) for each in schema.get(choice, ()))
    for name, inner in schema.get("properties", {}).items():
        yield (name,), inner
    yield (ANY,), schema.get(_MAPPINGS[0])
    yield from (((ANY,), each) for each in schema.get(_MAPPINGS[1], {}).values())
    yield (ANY,), schema.get("items")
    for number, inner in enumerate(schema.get("prefixItems", ())):
        yield (str(number),), inner


def _at_any_depth(steps: Steps) -> Steps:
    """Return the last name of the way and what follows it, wherever it is found."""
    names = [number for number, step in enumerate(steps) if step != ANY]
    return (ANY_DEPTH, *steps[names[-1] if names else 0 :])


def onward(ways: Iterable[Steps], step: str) -> Iterator[Steps]:
    """Yield what is left of these ways after one step."""
    for way in ways:
        if way[:1] == (ANY_DEPTH,):
            yield way
        rest = way[1:] if way[:1] == (ANY_DEPTH,) else way
        if rest[:1] in ((ANY,), (step,)):
            yield rest[1:]


def is_secret(place: Steps, ways: Iterable[Steps]) -> bool:
    """Tell whether one of the ways leads to this place, or to something around it."""
    left = list(ways)
    for step in place:
        if () in left:
            return True
        left = list(onward(left, step))
    return () in left
