"""Spans of time and instants as the core counts them: whole microseconds.

An `Instant` is microseconds since the Unix epoch on the *engine's* clock. Integers compare and
store exactly on every engine and cost nothing on the hot path; people see aware datetimes at the
edges (`to_datetime`).
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
#: What people may write for a length of time: "30s", "1h30m", 2.5 (seconds) or a timedelta.
Span: TypeAlias = str | float | timedelta

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


def micros(span: Span) -> Micros:
    """Return the span in microseconds; a bare number counts seconds."""
    if isinstance(span, timedelta):
        value = span // timedelta(microseconds=1)
    elif isinstance(span, str):
        value = _parse(span)
    elif isfinite(span):
        value = round(span * SECOND)
    else:
        raise ConfigurationError(f"A span of time must be finite, not {span!r}.")
    if value < 0:
        raise ConfigurationError(f"A span of time cannot be negative: {span!r}.")
    return value


def _parse(text: str) -> Micros:
    if not _PARTS.fullmatch(text):
        raise ConfigurationError(
            f"{text!r} is not a span of time. Write it like '30s', '10m', '1h30m' or '7d'."
        )
    return sum(round(float(number) * _UNITS[unit]) for number, unit in _PART.findall(text))


def in_words(value: Micros) -> str:
    """Write microseconds the way `micros` reads them: 5400000000 is '1h30m'."""
    if value % 1000:
        return f"{value / SECOND:.6f}".rstrip("0") + "s"
    words = ""
    for unit in ("w", "d", "h", "m", "s", "ms"):
        count, value = divmod(value, _UNITS[unit])
        words += f"{count}{unit}" if count else ""
    return words or "0s"


def to_instant(moment: datetime) -> Instant:
    """Turn an aware datetime into an instant; a naive one is refused."""
    if moment.tzinfo is None:
        raise ConfigurationError(
            f"{moment!r} has no time zone, so it names no instant. "
            "Use datetime.now(UTC) or add a tzinfo."
        )
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(instant: Instant) -> datetime:
    """Turn an instant into an aware UTC datetime."""
    return _EPOCH + timedelta(microseconds=instant)
