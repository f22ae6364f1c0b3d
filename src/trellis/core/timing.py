"""When a schedule is due: a cron expression in a time zone, or an interval.

A slot is one moment at which a schedule is due. Slots follow from the text and the zone alone, so
every process computes the same ones. The rules of summer time are those of Debian's cron:

- A fixed local time that does not exist (02:30 when clocks go from 02:00 to 03:00) is due once, at
  the first moment after the gap. One that exists twice is due once, the first time.
- An expression whose minute or hour begins with `*` follows elapsed time: `*/15 * * * *` is due
  every quarter of an hour, whatever the clocks on the wall do.

Intervals (`@every 15m`) are counted from the Unix epoch: `@every 15m` is due at every full quarter
of an hour in UTC, on every machine and after every restart. The zone database is that of the
system, else that of the package `tzdata`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from trellis.core.durations import (
    SECOND,
    Duration,
    Instant,
    Micros,
    in_words,
    micros,
    to_datetime,
    to_instant,
)
from trellis.errors import ConfigurationError

_EVERY: Final = "@every "
_FIELDS: Final = 5
_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def write_interval(every: Duration) -> str:
    """Return the interval as the text of a schedule; raise for one that is too short.

    >>> write_interval("90m")
    '@every 1h30m'
    """
    length = micros(every)
    if length < SECOND:
        raise ConfigurationError(
            f"every={every!r} is too short. A schedule is due at most once per second: write "
            "every='15m'."
        )
    return f"{_EVERY}{in_words(length)}"


def check_timing(when: object, tz: str) -> str:
    """Return the text in its stored form; raise `ConfigurationError` if it is never due.

    >>> check_timing(" 0  3 * * * ", "Europe/Vienna")
    '0 3 * * *'
    """
    zone = find_zone(tz)
    text = " ".join(when.split()) if isinstance(when, str) else ""
    if text.startswith("@"):
        if text.startswith(_EVERY):
            return write_interval(text.removeprefix(_EVERY))
        if text not in _NAMED:
            raise ConfigurationError(
                f"{when!r} is not known. Write '@every 15m', {', '.join(sorted(_NAMED))}, or a "
                "cron expression such as '0 3 * * *'."
            )
        return text
    if len(text.split()) != _FIELDS:
        raise ConfigurationError(
            f"{when!r} is not a cron expression. Write five fields (minute, hour, day of the "
            "month, month, day of the week), as in '0 3 * * *', or an interval: '@every 15m'."
        )
    try:
        CronSim(text, _EPOCH)
    except CronSimError as error:
        raise ConfigurationError(
            f"{when!r} is not a cron expression: {str(error).lower()}. Write it like '0 3 * * *' "
            "(every day at 03:00) or '*/15 8-18 * * MON-FRI'."
        ) from error
    if next(iter_slots(text, zone.key, 0), None) is None:
        raise ConfigurationError(f"{when!r} is never due: no date fits. Write it like '0 3 * * *'.")
    return text


@lru_cache(maxsize=256)
def find_zone(tz: str) -> ZoneInfo:
    """Return the time zone of this name; raise `ConfigurationError` if there is none."""
    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise ConfigurationError(
            f"There is no time zone {tz!r}. Write a name of the IANA database, such as "
            "'Europe/Vienna' or 'UTC'."
        ) from error


def interval_of(when: str) -> Micros | None:
    """Return the length of an interval; None for a cron expression."""
    return micros(when.removeprefix(_EVERY)) if when.startswith(_EVERY) else None


def iter_slots(when: str, tz: str, after: Instant) -> Iterator[Instant]:
    """Yield the slots after this moment, in order; the text must have passed `check_timing`."""
    interval = interval_of(when)
    if interval is not None:
        slot = after - after % interval
        while True:
            slot += interval
            yield slot
    last = after
    for moment in _walk(when, tz, after):
        slot = to_instant(moment)
        if slot > last:  # two local times before and in a gap can be the same moment
            yield slot
            last = slot


def next_slot(when: str, tz: str, after: Instant) -> Instant | None:
    """Return the first slot after this moment; None if there is none."""
    return next(iter_slots(when, tz, after), None)


def latest_slot(when: str, tz: str, until: Instant) -> Instant | None:
    """Return the last slot that is not after this moment; None if there is none."""
    interval = interval_of(when)
    if interval is not None:
        return until - until % interval
    # Backwards, cron's rules for gaps can pass over a slot by an hour or two: look ahead again.
    for moment in _walk(when, tz, until + SECOND, reverse=True):
        slot = to_instant(moment)
        if slot <= until:
            for later in iter_slots(when, tz, slot):
                if later > until:
                    return slot
                slot = later
    return None


def _walk(when: str, tz: str, start: Instant, *, reverse: bool = False) -> Iterator[datetime]:
    """Yield local times as cronsim finds them, at most for 50 years without one."""
    begin = to_datetime(start).astimezone(find_zone(tz))
    return CronSim(_NAMED.get(when, when), begin, reverse=reverse)
