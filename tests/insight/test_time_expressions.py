"""Moments and spans the way people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from trellis import ConfigurationError
from trellis.core.durations import SECOND
from trellis.insight.time_expressions import parse_moment, roughly

NOW = datetime(2030, 1, 31, 22, 30, tzinfo=UTC)
TWO_EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("10m", datetime(2030, 1, 31, 22, 40, tzinfo=UTC)),
        ("+1h30m", datetime(2030, 2, 1, 0, 0, tzinfo=UTC)),
        ("-1h", datetime(2030, 1, 31, 21, 30, tzinfo=UTC)),
        # Two hours further east it is already February.
        ("tomorrow 09:00", datetime(2030, 2, 2, 7, 0, tzinfo=UTC)),
        ("Today", datetime(2030, 1, 31, 22, 0, tzinfo=UTC)),
        ("yesterday  12:30", datetime(2030, 1, 31, 10, 30, tzinfo=UTC)),
        ("2030-03-01", datetime(2030, 2, 28, 22, 0, tzinfo=UTC)),
        ("2030-03-01T09:00", datetime(2030, 3, 1, 7, 0, tzinfo=UTC)),
        ("2030-03-01t09:00z", datetime(2030, 3, 1, 9, 0, tzinfo=UTC)),
        ("2030-03-01 09:00+05:00", datetime(2030, 3, 1, 4, 0, tzinfo=UTC)),
    ],
)
def test_a_moment_is_read_where_the_reader_is(text: str, moment: datetime) -> None:
    assert parse_moment(text, NOW, "future", TWO_EAST) == moment


def test_a_span_counts_backwards_when_the_past_is_meant() -> None:
    assert parse_moment("90s", NOW, "past") == NOW - timedelta(seconds=90)
    assert parse_moment("+90s", NOW, "past") == NOW + timedelta(seconds=90)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "tomorrow morning", "2030-13-01", "10 parsecs", "99999999w", "next week"],
)
def test_what_names_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Write a duration like 10m, a day like"):
        parse_moment(text, NOW, "future")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "under 1 s"),
        (0.999999, "under 1 s"),
        (9.98, "10 s"),
        (59, "59 s"),
        (3599.99, "1 h"),
        (61, "1 min 1 s"),
        (180, "3 min"),
        (725, "12 min"),
        (3600 + 300, "1 h 5 min"),
        (86_400 * 2 + 3600, "2 d 1 h"),
        (86_400 * 40, "40 d"),
    ],
)
def test_a_span_is_said_roughly(seconds: float, words: str) -> None:
    assert roughly(int(seconds * SECOND)) == words
