"""Slots of cron expressions and intervals, with the rules of summer time."""

from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.core.durations import SECOND, micros, to_datetime, to_instant
from trellis.core.timing import (
    check_timing,
    find_zone,
    iter_slots,
    latest_slot,
    next_slot,
    write_interval,
)
from trellis.errors import ConfigurationError

VIENNA = "Europe/Vienna"
EXPRESSIONS = ("30 2 * * *", "0,30 2,3 * * *", "*/15 * * * *", "0 */2 * * *", "15 3 * * SUN")


def instant(text: str, tz: str = VIENNA) -> int:
    return to_instant(datetime.fromisoformat(text).replace(tzinfo=find_zone(tz)))


def slots(when: str, start: str, count: int) -> list[str]:
    found = islice(iter_slots(when, VIENNA, instant(start)), count)
    return [f"{to_datetime(each).astimezone(find_zone(VIENNA)):%d %H:%M%z}" for each in found]


def test_a_local_time_that_does_not_exist_is_due_once_after_the_gap() -> None:
    assert slots("30 2 * * *", "2026-03-28T00:00", 3) == [
        "28 02:30+0100",
        "29 03:00+0200",
        "30 02:30+0200",
    ]


def test_several_times_in_the_gap_are_due_once() -> None:
    assert slots("0,30 2,3 * * *", "2026-03-29T00:00", 3) == [
        "29 03:00+0200",
        "29 03:30+0200",
        "30 02:00+0200",
    ]


def test_a_local_time_that_exists_twice_is_due_once() -> None:
    assert slots("30 2 * * *", "2026-10-24T12:00", 2) == ["25 02:30+0200", "26 02:30+0100"]


def test_a_doubled_time_is_not_due_again_when_looked_for_in_the_second_hour() -> None:
    second = to_instant(datetime(2026, 10, 25, 1, 15, tzinfo=UTC))  # 02:15 for the second time
    assert next_slot("30 2 * * *", VIENNA, second) == instant("2026-10-26T02:30")


def test_an_expression_with_a_star_follows_elapsed_time() -> None:
    assert slots("*/30 * * * *", "2026-10-25T01:30", 5) == [
        "25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100", "25 03:00+0100",
    ]  # fmt: skip
    assert slots("*/30 * * * *", "2026-03-29T01:00", 3) == [
        "29 01:30+0100",
        "29 03:00+0200",
        "29 03:30+0200",
    ]


def test_an_interval_is_counted_from_the_epoch() -> None:
    start = instant("2026-06-01T10:07:12", "UTC")
    found = list(islice(iter_slots("@every 15m", "UTC", start), 2))
    assert found == [instant("2026-06-01T10:15", "UTC"), instant("2026-06-01T10:30", "UTC")]
    assert next_slot("@every 15m", "UTC", found[0]) == found[1]


@given(
    when=st.sampled_from((*EXPRESSIONS, "@every 7m", "@daily")),
    moment=st.integers(instant("2026-03-27T00:00"), instant("2026-10-29T00:00")),
)
def test_slots_only_grow_and_the_latest_is_the_last_before(when: str, moment: int) -> None:
    found = list(islice(iter_slots(when, VIENNA, moment), 5))
    assert sorted(set(found)) == found
    assert found[0] > moment
    assert latest_slot(when, VIENNA, found[3]) == found[3]
    assert latest_slot(when, VIENNA, found[3] + SECOND) == found[3]
    latest = latest_slot(when, VIENNA, moment)
    assert latest is not None
    assert latest <= moment
    assert next_slot(when, VIENNA, latest) == found[0]


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("0 25 * * *", "bad hour"),
        ("0 3 * *", "five fields"),
        ("0 0 3 * * *", "five fields"),
        ("", "five fields"),
        (7, "five fields"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 31 2,4,6 *", "bad day-of-month"),
        ("@often", "'@every 15m', @annually"),
        ("@every 0s", "at most once per second"),
        ("@every 100ms", "at most once per second"),
        ("@every -5m", "is not a duration"),
        ("@every soon", "is not a duration"),
    ],
)
def test_a_text_that_is_no_schedule_is_refused_with_what_to_write(
    when: object, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_timing(when, "UTC")


@pytest.mark.parametrize("tz", ["Europe/Vienn", "", "../etc/passwd", "Europe", "CEST+1"])
def test_a_zone_that_does_not_exist_is_refused(tz: str) -> None:
    with pytest.raises(ConfigurationError, match="There is no time zone"):
        check_timing("0 3 * * *", tz)


def test_texts_are_stored_in_one_form() -> None:
    assert check_timing("  0   3 * *  * ", "UTC") == "0 3 * * *"
    assert check_timing("@every 90m", "UTC") == "@every 1h30m"
    assert write_interval(micros("1d") / SECOND) == "@every 1d"
