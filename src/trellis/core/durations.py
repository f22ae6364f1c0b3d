"""Durations and instants: whole microseconds.

An `Instant` is microseconds since the Unix epoch on the *engine's* clock. Integers compare and
store exactly on every engine and are fast; the public API takes and returns aware datetimes
(`to_instant`, `to_datetime`) and durations such as "1h30m" (`micros`, `in_words`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Final, TypeAlias

from trellis.errors import ConfigurationError

#: Microseconds since the Unix epoch, by the engine's clock.
Instant: TypeAlias = int
#: A length of time in microseconds.
Micros: TypeAlias = int
#: How callers write a length of time: "30s", "1h30m", 2.5 (seconds) or a timedelta.
Duration: TypeAlias = str | float | timedelta

SECOND: Final = 1_000_000
_UNITS: Final = {
    "ms": SECOND // 1000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
    "d": 86_400 * SECOND,
    "w": 7 * 86_400 * SECOND,
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d|w)")
_PARTS: Final = re.compile(rf"{_PART.pattern}(?: ?{_PART.pattern})*")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def micros(duration: Duration) -> Micros:
    """Return the duration in microseconds; a bare number is in seconds."""
    if isinstance(duration, timedelta):
        value = duration // timedelta(microseconds=1)
    elif isinstance(duration, str):
        value = _parse(duration)
    elif isfinite(duration):
        value = round(duration * SECOND)
    else:
        raise ConfigurationError(f"A duration must be finite, not {duration!r}.")
    if value < 0:
        raise ConfigurationError(f"A duration cannot be negative: {duration!r}.")
    return value


def _parse(text: str) -> Micros:
    if not _PARTS.fullmatch(text):
        raise ConfigurationError(
            f"{text!r} is not a duration. Write it like '30s', '10m', '1h30m' or '7d'."
        )
    return sum(round(float(number) * _UNITS[unit]) for number, unit in _PART.findall(text))


def in_words(value: Micros) -> str:
    """Write microseconds the way `micros` reads them: 5400000000 is '1h30m'."""
    if value % 1000:
        return f"{value / SECOND:.6f}".rstrip("0") + "s"
    words = ""
    for unit in ("d", "h", "m", "s", "ms"):  # "30d" is easier to read than "4w2d"
        count, value = divmod(value, _UNITS[unit])
        words += f"{count}{unit}" if count else ""
    return words or "0s"


def to_instant(time: datetime) -> Instant:
    """Convert an aware datetime; a naive one raises `ConfigurationError`."""
    if time.tzinfo is None:
        raise ConfigurationError(
            f"{time!r} has no time zone, so the instant is not known. "
            "Use datetime.now(UTC) or add a tzinfo."
        )
    return (time - _EPOCH) // timedelta(microseconds=1)


def to_datetime(instant: Instant) -> datetime:
    """Convert to an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=instant)
