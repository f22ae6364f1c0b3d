"""Which JSON text an engine accepts: one rule for all engines.

No NaN or infinity (not JSON), no U+0000 (PostgreSQL cannot store it), no lone surrogates (not
UTF-8), at most 64 levels deep, at most the size limit. Checked before it is sent to an engine.
"""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

from trellis.errors import PayloadInvalid, PayloadTooLarge

DEFAULT_LIMIT: Final = 1024 * 1024
MAX_DEPTH: Final = 64
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def check_json_text(text: str, what: str = "payload", limit: int = DEFAULT_LIMIT) -> str:
    """Return the text if every engine can store it; it must already be JSON."""
    if len(text) > limit or (not text.isascii() and len(_utf8(text, what)) > limit):
        raise PayloadTooLarge(
            f"The {what} is {len(text):,} characters of JSON; the limit is {limit:,} bytes. "
            "Store large data elsewhere and put a reference to it into the job."
        )
    if "\\u0000" in text and _NUL.search(text):
        raise PayloadInvalid(
            f"The {what} contains U+0000 (NUL), which PostgreSQL cannot store. Remove it."
        )
    return text


def parse_json_text(text: str, what: str = "payload", limit: int = DEFAULT_LIMIT) -> object:
    """Parse JSON of unknown origin and check it."""
    check_json_text(text, what, limit)

    def refuse(constant: str) -> NoReturn:
        raise PayloadInvalid(f"The {what} contains {constant}, which is not JSON. Use null.")

    try:
        value: object = json.loads(text, parse_constant=refuse)
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: also an integer too long
        raise PayloadInvalid(f"The {what} is not JSON: {error}.") from error
    check_depth(value, what)
    dump_json(value, what, limit)  # refuses 1e999, which is read as infinity
    return value


def dump_json(value: object, what: str = "payload", limit: int = DEFAULT_LIMIT) -> str:
    """Write a plain value as compact JSON and check it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadInvalid(f"The {what} cannot be written as JSON: {error}.") from error
    check_depth(value, what)
    _utf8(text, what)
    return check_json_text(text, what, limit)


def check_depth(value: object, what: str = "payload") -> None:
    """Raise `PayloadInvalid` for a value nested more than 64 levels deep."""
    level = [value] if isinstance(value, dict | list | tuple) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise PayloadInvalid(f"The {what} is nested more than {MAX_DEPTH} levels deep.")
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list | tuple)
        ]


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise PayloadInvalid(
            f"The {what} contains a lone surrogate (U+{ord(text[error.start]):04X}), "
            "which is not valid Unicode text. Remove or replace it."
        ) from error
