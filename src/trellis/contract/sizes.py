"""Amounts of memory as people write them: '512MB', '2GiB'."""

from __future__ import annotations

import re
from typing import Final

from trellis.errors import ConfigurationError

_UNITS: Final[dict[str, int]] = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_SHOWN: Final = ("TB", "TiB", "GB", "GiB", "MB", "MiB", "kB", "KiB")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?i?b)?", re.IGNORECASE)


def to_bytes(name: str, given: str | int) -> int:
    """Return an amount of memory in bytes; a bare number counts bytes."""
    found = _SIZE.fullmatch(str(given).strip())
    if found is None or (found[2] or "b").lower() not in _UNITS:
        raise ConfigurationError(
            f"{name}={given!r} is not an amount of memory. Write it like '512MB' or '2GiB'."
        )
    return round(float(found[1]) * _UNITS[(found[2] or "b").lower()])


def size_in_words(value: int) -> str:
    """Write bytes in the largest unit that needs no fraction: 512000000 is '512MB'."""
    for unit in _SHOWN:
        if value and value % _UNITS[unit.lower()] == 0:
            return f"{value // _UNITS[unit.lower()]}{unit}"
    return f"{value}B"
