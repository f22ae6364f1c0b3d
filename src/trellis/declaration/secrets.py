"""Secrets: which values of a job are secret, and how they are masked when they are shown.

The `SecretStr` and `SecretBytes` fields of a type are found in its JSON schema. Pointers to them
are part of the policy of each of its jobs, so that a tool that does not know the types (the command
line, the dashboard) masks them as well. Values under names such as `password` or `api_key` are
masked too: a payload that is a plain dictionary has no secret types.

A path has one step per level and two wildcards: `*` is any one step (an item of a list, a key of a
mapping), `**` is any number of steps (a type that contains itself has no last level).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from trellis.core.policy import Policy

Steps: TypeAlias = tuple[str, ...]
ANY: Final = "*"
ANY_DEPTH: Final = "**"
MASK: Final = "**********"

#: Lower-case names without separators whose values are masked: whole names, or ends of names.
_SECRET_NAMES: Final = (
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
_CHOICES: Final = ("anyOf", "oneOf", "allOf")


# -- paths -------------------------------------------------------------------------------------


def write_pointer(steps: Steps) -> str:
    """Write a path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps)


def read_pointer(pointer: str) -> Steps:
    """Read a JSON pointer."""
    steps = pointer.split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def is_secret(path: Steps, secrets: Iterable[Steps]) -> bool:
    """Return whether the value at this path is a secret or inside one."""
    remaining = list(secrets)
    for step in path:
        if () in remaining:
            return True
        remaining = list(_after_step(remaining, step))
    return () in remaining


def _after_step(paths: Iterable[Steps], step: str) -> Iterator[Steps]:
    """Yield what remains of these paths after one step."""
    for path in paths:
        if path[:1] == (ANY_DEPTH,):
            yield path
        rest = path[1:] if path[:1] == (ANY_DEPTH,) else path
        if rest[:1] in ((ANY,), (step,)):
            yield rest[1:]


# -- secrets of a type -------------------------------------------------------------------------


def secret_steps(schema: Mapping[str, Any]) -> frozenset[Steps]:
    """Return the paths to all secrets that values of this JSON schema can have."""
    walk = _SchemaWalk(schema.get("$defs", {}))
    found = frozenset(walk.secrets(schema, (), ()))
    return frozenset(map(_at_any_depth, found)) if walk.is_recursive else found


class _SchemaWalk:
    """Walks through every part of a schema."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        self._shared = shared
        #: Whether a type contains itself.
        self.is_recursive = False

    def secrets(self, schema: object, path: Steps, inside: Steps) -> Iterator[Steps]:
        """Yield the path to every secret below; `inside` are the shared types around it."""
        if not isinstance(schema, Mapping):
            return
        if schema.get("writeOnly"):
            yield path
            return
        if "$ref" in schema:
            yield from self._shared_type(schema["$ref"].rpartition("/")[2], path, inside)
        for steps, part in _parts(schema):
            yield from self.secrets(part, (*path, *steps), inside)

    def _shared_type(self, name: str, path: Steps, inside: Steps) -> Iterator[Steps]:
        if name in inside:
            self.is_recursive = True
        else:
            yield from self.secrets(self._shared.get(name), path, (*inside, name))


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[Steps, object]]:
    for choice in _CHOICES:
        yield from (((), each) for each in schema.get(choice, ()))
    for name, part in schema.get("properties", {}).items():
        yield (name,), part
    yield (ANY,), schema.get("additionalProperties")
    yield from (((ANY,), each) for each in schema.get("patternProperties", {}).values())
    yield (ANY,), schema.get("items")
    for number, part in enumerate(schema.get("prefixItems", ())):
        yield (str(number),), part


def _at_any_depth(steps: Steps) -> Steps:
    """Return the end of the path, from its last name on, at any depth."""
    names = [number for number, step in enumerate(steps) if step != ANY]
    return (ANY_DEPTH, *steps[names[-1] if names else 0 :])


# -- masking -----------------------------------------------------------------------------------


def masked(text: str, policy: Policy, part: Literal["payload", "result", "config"]) -> str:
    """Return stored JSON text with secrets masked; the same text if it has none.

    >>> masked('{"user":"ada","password":"hunter2"}', Policy(), "payload")
    '{"user":"ada","password":"**********"}'
    """
    paths = [steps[1:] for steps in map(read_pointer, policy.secrets) if steps[0] == part]
    value = json.loads(text)
    shown = mask_value(value, paths)
    if shown == value:
        return text
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def mask_value(value: Any, secrets: Iterable[Steps] = ()) -> Any:  # noqa: ANN401 - any JSON value
    """Return plain data with secrets masked: those at these paths and those with secret names."""
    paths = list(secrets)
    if () in paths:
        return None if value is None else MASK
    if isinstance(value, Mapping):
        return {name: _mask_field(name, inner, paths) for name, inner in value.items()}
    if isinstance(value, list):
        return [mask_value(inner, _after_step(paths, str(at))) for at, inner in enumerate(value)]
    return value


def _mask_field(name: str, value: Any, paths: list[Steps]) -> Any:  # noqa: ANN401 - any JSON value
    return mask_value(value, [()] if _is_secret_name(name) else _after_step(paths, name))


def _is_secret_name(name: str) -> bool:
    return name.lower().replace("_", "").replace("-", "").endswith(_SECRET_NAMES)
