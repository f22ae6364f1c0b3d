"""Times and durations as people write them: `10m`, `tomorrow 09:00`, ISO 8601.

A time without a zone is in the local zone, unless the caller names another. Durations are written
with their two largest units, which is precise enough to act on.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, tzinfo
from typing import Final, Literal

from trellis.core.durations import SECOND, Micros, micros
from trellis.errors import ConfigurationError

_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_DURATION: Final = re.compile(r"[+-]?(?:\d+(?:\.\d+)? ?(?:ms|s|m|h|d|w) ?)+")
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def parse_moment(
    text: str, now: datetime, towards: Literal["past", "future"], zone: tzinfo | None = None
) -> datetime:
    """Return the time that a text names; a duration counts from now, backwards or forwards."""
    words = " ".join(text.strip().lower().split())
    if words == "now":
        return now
    if _DURATION.fullmatch(words):
        return _counted(words, now, towards)
    day, _, clock = words.partition(" ")
    try:
        if day not in _DAYS:
            return _in_zone(datetime.fromisoformat(words.upper()), zone)
        at = time.fromisoformat(clock) if clock else time()
        date = now.astimezone(zone).date() + timedelta(days=_DAYS[day])
        return _in_zone(datetime.combine(date, at), zone)
    except (ValueError, OverflowError) as error:
        raise _unreadable(text) from error


def _counted(words: str, now: datetime, towards: str) -> datetime:
    sign = -1 if words[0] == "-" or (words[0] != "+" and towards == "past") else 1
    try:
        return now + sign * timedelta(microseconds=micros(words.lstrip("+-")))
    except OverflowError as error:
        raise _unreadable(words) from error


def _in_zone(moment: datetime, zone: tzinfo | None) -> datetime:
    if moment.tzinfo is not None:
        return moment
    return moment.astimezone() if zone is None else moment.replace(tzinfo=zone)


def _unreadable(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text!r} is not a time. Write a duration like 10m, a day like 'tomorrow 09:00', or "
        "ISO 8601 like 2030-01-31T09:00."
    )


def roughly(duration: Micros) -> str:
    """Return a duration in its two largest units at most: '3 min', '2 h 5 min'."""
    if abs(duration) < SECOND:
        return "under 1 s"
    seconds = (abs(duration) + SECOND // 2) // SECOND
    for number, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            count, rest = divmod(seconds, size)
            return f"{count} {unit}{_smaller(number + 1, rest, count)}"
    return "0 s"


def _smaller(number: int, rest: int, larger: int) -> str:
    """Return the second unit, where the first alone would be too rough."""
    if number == len(_UNITS) or larger >= 10:  # noqa: PLR2004 - a tenth is precise enough
        return ""
    size, unit = _UNITS[number]
    return f" {rest // size} {unit}" if rest >= size else ""


def took(duration: timedelta) -> str:
    """Return how long something took, with three digits at most: '12 ms', '3.4 s', '2 h 5 min'."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:  # noqa: PLR2004 - beyond that, tenths do not matter
        return f"{seconds:.1f} s"
    return roughly(round(seconds * SECOND))
