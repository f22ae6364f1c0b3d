"""What may be shown of a job's data: secrets stay in the engine, whoever looks.

A type's `SecretStr` and `SecretBytes` fields are pointed at by the policy of each of its jobs, so
that a tool without the types at hand (the command line, the dashboard) masks them as well. Values
under names such as `password` or `api_key` are masked too, whatever their type: payloads that are
plain dictionaries have no secret fields to point at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from trellis.contract.secret_fields import Steps, onward, read_pointer
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
