"""Fingerprints: one short text for each configuration, the same on every machine.

A configuration is plain data: what JSON can express, or what can be written as JSON (dataclasses,
pydantic models, msgspec structs, enums, moments, UUIDs, paths, ...). Its fingerprint is the SHA-256
of a canonical JSON text, shortened to 128 bits:

- The keys of an object are sorted by their code points; the members of a set by their JSON.
- Numbers are compared by value: 1 and 1.0 are the same, 1 and true are not. NaN and infinity are
  refused. A `Decimal` is text, as pydantic writes it.
- Texts and keys are compared in the Unicode normal form NFC: a letter with an accent is the same,
  whether it is stored as one character or as two.
- Secrets are refused: operators can see a configuration and its fingerprint.

The snapshot that a job stores (`config_text`) has the fingerprint of what it was made from.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final
from unicodedata import normalize

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from trellis.core.json_text import MAX_DEPTH, dump_json
from trellis.errors import PayloadInvalid

_PREFIX: Final = "sha256:"
_DIGITS: Final = 32
_FINGERPRINT: Final = re.compile(rf"{_PREFIX}[0-9a-f]{{{_DIGITS}}}")


def fingerprint(config: object) -> str:
    """Return the fingerprint of a configuration; raise `PayloadInvalid` if it can have none.

    >>> fingerprint({"region": "eu", "nodes": 3}) == fingerprint({"nodes": 3.0, "region": "eu"})
    True
    >>> fingerprint([])
    'sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5'
    """
    try:
        text = _canonical(plain(config))
    except ValueError as error:  # Python does not write a whole number of thousands of digits
        raise PayloadInvalid(f"The config cannot be written as JSON: {error}.") from error
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{_PREFIX}{digest[:_DIGITS]}"


def is_fingerprint(text: str) -> bool:
    """Return whether a text can be the fingerprint of a configuration."""
    return _FINGERPRINT.fullmatch(text) is not None


def config_text(config: object) -> str:
    """Return the snapshot of a configuration that a job stores: JSON text with a fingerprint."""
    snapshot = plain(config)
    fingerprint(snapshot)
    return dump_json(snapshot, "config")


def plain(value: object, depth: int = 0) -> Any:  # noqa: ANN401 - JSON
    """Return a configuration as dictionaries, lists, texts, numbers, booleans and None."""
    if depth > MAX_DEPTH:
        raise PayloadInvalid(f"The config is nested more than {MAX_DEPTH} levels deep.")
    match value:
        case Enum():
            return plain(value.value, depth)
        case None | bool() | int() | str():
            return value
        case float():
            return _finite(value)
        case Mapping():
            return _object(value, depth)
        case list() | tuple():
            return [plain(each, depth + 1) for each in value]
        case AbstractSet():
            return sorted((plain(each, depth + 1) for each in value), key=_canonical)
        case BaseModel():
            return _object(value.model_dump(), depth)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _object({each.name: getattr(value, each.name) for each in fields(value)}, depth)
        case _:
            return _other(value, depth)


def _object(value: Mapping[Any, object], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        name = key.value if isinstance(key, Enum) else key
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise PayloadInvalid(
                f"The config has the key {key!r}. Keys must be texts or whole numbers."
            )
        if str(name) in found:
            raise PayloadInvalid(f"The config has the key {name!r} as a text and as a number.")
        found[str(name)] = plain(inner, depth + 1)
    return found


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise PayloadInvalid(f"The config contains {value}, which is not JSON. Use None.")
    return value


def _other(value: object, depth: int) -> Any:  # noqa: ANN401 - JSON
    if hasattr(value, "get_secret_value"):
        raise PayloadInvalid(
            "The config contains a secret, which operators would see or could guess from the "
            "fingerprint. Leave it out, and let the handler read it where it is kept."
        )
    msgspec = sys.modules.get("msgspec")
    if msgspec is not None and isinstance(value, msgspec.Struct):
        return plain(msgspec.to_builtins(value), depth)
    try:
        return plain(to_jsonable_python(value), depth)
    except (PydanticSerializationError, ValueError) as error:
        raise PayloadInvalid(
            f"The config contains {type(value).__name__}, which cannot be written as JSON."
        ) from error


def _canonical(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return the one JSON text of plain data."""
    return json.dumps(_normalized(value), sort_keys=True, separators=(",", ":"))


def _normalized(value: Any) -> Any:  # noqa: ANN401 - JSON
    match value:
        case str():
            return normalize("NFC", value)
        case bool():
            return value
        case float() if value.is_integer():
            return int(value)
        case dict():
            found = {normalize("NFC", key): _normalized(inner) for key, inner in value.items()}
            if len(found) < len(value):
                raise PayloadInvalid("The config has two keys that differ only in their encoding.")
            return found
        case list():
            return [_normalized(each) for each in value]
        case _:
            return value
