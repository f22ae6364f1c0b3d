"""Making text from anywhere fit to be stored: logs and error messages must never poison a batch."""

from __future__ import annotations

from typing import Final

_LIMIT: Final = 16_384


def storable(text: str, limit: int = _LIMIT) -> str:
    """Return the text without NUL and lone surrogates, and not longer than the limit."""
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text) - limit:,} more characters)"
    if text.isascii():
        return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text
    clean = text.encode("utf-8", "replace").decode()
    return clean.replace("\0", "\N{REPLACEMENT CHARACTER}")
