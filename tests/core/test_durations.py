"""Spans and instants: what people write, what the core counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.core.durations import SECOND, Duration, in_words, micros, to_datetime, to_instant
from trellis.errors import ConfigurationError


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("30s", 30 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1h 30m", 5400 * SECOND),
        ("7d", 7 * 86_400 * SECOND),
        ("2w", 14 * 86_400 * SECOND),
        ("250ms", 250_000),
        ("1.5h", 5400 * SECOND),
        ("0s", 0),
        (2.5, 2_500_000),
        (3, 3 * SECOND),
        (0, 0),
        (timedelta(minutes=1, microseconds=1), 60 * SECOND + 1),
    ],
)
def test_a_duration_is_counted_in_microseconds(duration: Duration, expected: int) -> None:
    assert micros(duration) == expected


@pytest.mark.parametrize(
    "text", ["", "s", "5", "5x", "five", "-5s", "5s!", "1h-2m", "5 5s", "1..5s"]
)
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        micros(text)


@pytest.mark.parametrize("duration", [-1, -0.5, timedelta(microseconds=-1)])
def test_a_duration_cannot_be_negative(duration: Duration) -> None:
    with pytest.raises(ConfigurationError, match="negative"):
        micros(duration)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0s"),
        (5400 * SECOND, "1h30m"),
        (250_000, "250ms"),
        (8 * 86_400 * SECOND, "8d"),
        (1_500_000, "1s500ms"),
        (1_000_500, "1.0005s"),
    ],
)
def test_microseconds_are_written_in_words(value: int, words: str) -> None:
    assert in_words(value) == words


@given(st.integers(0, 10**12))
def test_whole_milliseconds_in_words_read_back_as_they_were(milliseconds: int) -> None:
    value = milliseconds * 1000
    assert micros(in_words(value)) == value


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_reads_back_as_the_same_moment(moment: datetime) -> None:
    assert to_datetime(to_instant(moment)) == moment


def test_an_instant_does_not_depend_on_the_time_zone() -> None:
    berlin = timezone(timedelta(hours=2))
    here, there = datetime(2030, 1, 1, 2, tzinfo=berlin), datetime(2030, 1, 1, tzinfo=UTC)
    assert to_instant(here) == to_instant(there) == 1_893_456_000 * SECOND


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no time zone"):
        to_instant(datetime(2030, 1, 1))  # noqa: DTZ001 - that it has none is the point
