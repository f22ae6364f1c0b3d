"""Key templates: how the key of a job is derived from its payload.

A template is a text with fields of the payload in braces: `"zendesk/{origin}/tickets"`. Contracts
write it as a list of constants and JSON pointers, which `/` joins: `["zendesk", "/origin",
"tickets"]`; `{user.id}` is `/user/id`, and `{/user/e.mail}` is a pointer as it is. A pointer must
lead to a string, number or boolean.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeGuard

from trellis.errors import ConfigurationError, KeyUnresolved

_HOLE: Final = re.compile(r"\{([^{}]*)\}")
_STEP: Final = re.compile(r"[A-Za-z0-9_-]+")
#: A slash between two parts of a template, not one of a pointer in braces.
_JOINT: Final = re.compile(r"/(?![^{}]*\})")
MAX_KEY_LENGTH: Final = 512


class Pointer(NamedTuple):
    """A path into the payload."""

    steps: tuple[str, ...]


@lru_cache(maxsize=1024)
def parse_template(template: str) -> tuple[str | Pointer, ...]:
    """Compile a template into constants and pointers."""
    parts: list[str | Pointer] = []
    position = 0
    for hole in _HOLE.finditer(template):
        parts.append(template[position : hole.start()])
        parts.append(_pointer(template, hole.group(1)))
        position = hole.end()
    parts.append(template[position:])
    compiled = tuple(part for part in parts if part != "")
    if not compiled or any(isinstance(part, str) and set("{}") & set(part) for part in compiled):
        raise ConfigurationError(
            f"{template!r} is not a key template. Write constants and fields of the payload in "
            "braces, like 'user/{user.id}'."
        )
    return compiled


def template_of(segments: Sequence[str]) -> str:
    """Return the template of a list of constants and JSON pointers.

    >>> template_of(["zendesk", "/user/id", "tickets"])
    'zendesk/{user.id}/tickets'
    """
    if not all(isinstance(each, str) for each in segments):
        raise ConfigurationError(f"{list(segments)!r} is not a key template: write texts.")
    template = "/".join(_hole(each) if each.startswith("/") else each for each in segments)
    for each in segments:
        if not each.startswith("/") and set("{}") & set(each):
            raise ConfigurationError(
                f"{each!r} in the key template {list(segments)!r} has braces. Write a field of the "
                "payload as a JSON pointer, like '/user/id'."
            )
    parse_template(template)
    return template


def segments_of(template: str) -> list[str] | None:
    """Return a template as a list; None if a part between `/` is neither constant nor field.

    >>> segments_of("zendesk/{user.id}/tickets"), segments_of("user-{id}")
    (['zendesk', '/user/id', 'tickets'], None)
    """
    segments = []
    for part in _JOINT.split(template):
        hole = _HOLE.fullmatch(part)
        if hole is None and set("{}") & set(part):
            return None
        segments.append(part if hole is None else _escaped(_pointer(template, hole.group(1))))
    return segments


def _hole(pointer: str) -> str:
    """Return the field of a template that a JSON pointer names."""
    steps = _steps(pointer)
    is_path = all(map(_STEP.fullmatch, steps))
    return "{" + (".".join(steps) if is_path else pointer) + "}"


def _steps(pointer: str) -> tuple[str, ...]:
    """Return the names in a JSON pointer, in which `~1` is a slash and `~0` a tilde."""
    return tuple(
        each.replace("~1", "/").replace("~0", "~") for each in pointer.removeprefix("/").split("/")
    )


def _escaped(pointer: Pointer) -> str:
    return "".join("/" + each.replace("~", "~0").replace("/", "~1") for each in pointer.steps)


def _pointer(template: str, text: str) -> Pointer:
    if text.startswith("/") and not re.search("~(?![01])", text):
        return Pointer(_steps(text))
    steps = tuple(text.split("."))
    if not all(_STEP.fullmatch(step) for step in steps):
        raise ConfigurationError(
            f"{{{text}}} in the key template {template!r} is not a field. "
            "Write a path of field names, like {user.id}, or a JSON pointer, like {/user/e.mail}."
        )
    return Pointer(steps)


def derive_key(template: str, payload: object, what: str = "key") -> str:
    """Return the readable key of this (decoded) payload, or what else its template makes of it."""
    key = "".join(
        _scalar(template, part, payload, what) if isinstance(part, Pointer) else part
        for part in parse_template(template)
    )
    if len(key) > MAX_KEY_LENGTH:
        raise KeyUnresolved(
            f"The {what} from {template!r} has {len(key)} characters; the limit is "
            f"{MAX_KEY_LENGTH}. Point at something shorter, such as an id."
        )
    return key


def _scalar(template: str, pointer: Pointer, payload: object, what: str) -> str:
    value = payload
    for step in pointer.steps:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif _is_list(value) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise KeyUnresolved(
                f"The {what} template {template!r} points at {_escaped(pointer)}, "
                "which the payload does not have."
            )
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise KeyUnresolved(
        f"The {what} template {template!r} points at {_escaped(pointer)}, which is "
        f"{type(value).__name__}; a {what} needs a string, number or boolean."
    )


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def hash_key(service: str, job_type: str, key: str) -> str:
    """Return the stable hash under which engines keep the slots of this key."""
    text = f"{service}\0{job_type}\0{key}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
