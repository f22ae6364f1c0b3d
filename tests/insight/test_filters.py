"""The words by which jobs are chosen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trellis import ConfigurationError, State
from trellis.core.durations import SECOND
from trellis.engines.values import JobFilter
from trellis.insight.filters import WORDS, Moment, make_filter, parse_filters
from trellis.testing.clock import START

HOUR = 3600 * SECOND


def test_words_become_a_filter() -> None:
    words = "state:failed,dead type:shop/sync key:eu tag:k=v tag:plan=a:b since:1h error:time out:"
    found = parse_filters([*words.split(" ")[:-2], "error:time out: 3"])
    assert make_filter(START, **found) == JobFilter(
        services=("shop",),
        types=("sync",),
        states=(State.FAILED, State.DEAD),
        key="eu",
        tags=(("k", "v"), ("plan", "a:b")),
        created_from=START - HOUR,
        error_contains="time out: 3",
    )


def test_a_list_may_be_said_in_parts() -> None:
    found = parse_filters(["state:failed", "state:dead", "queue:a,b", "id:01jc"])
    made = make_filter(START, **found)
    assert made.states == (State.FAILED, State.DEAD)
    assert (made.queues, made.id_prefix) == (("a", "b"), "01JC")


@pytest.mark.parametrize(
    ("since", "moment"),
    [
        ("1h", START - HOUR),
        (timedelta(hours=1), START - HOUR),
        (3600, START - HOUR),
        (datetime(2030, 1, 1, tzinfo=UTC), START),
    ],
)
def test_moments_may_be_spans_or_datetimes(since: Moment, moment: int) -> None:
    assert make_filter(START, since=since, until=since) == JobFilter(
        created_from=moment, created_before=moment
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["failed"], "'failed' is not a filter. Write it like state:failed"),
        (["sate:failed"], "Did you mean state:...?"),
        (["colour:red"], "Known filters: state, type,"),
        (["state:"], "is not a filter"),
        (["state:faild"], "'faild' is not a state of a job. Did you mean failed?"),
        (["state:x"], "Known states: pending, active"),
        (["key:a", "key:b"], "key: is given twice"),
        (["tag:tenant"], "Write tag:name=value"),
        (["since:soon"], "'soon' is not a time"),
        (["type:a/x,b/y"], "are of several services"),
        (["type:a/x,y"], "are of several services"),
        (["type:a/x", "service:b"], "a/x is not of service b"),
    ],
)
def test_a_wrong_word_is_refused_and_never_ignored(words: list[str], text: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        make_filter(START, **parse_filters(words))
    assert text in str(refusal.value)


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        ({"colour": "red"}, "Known filters:"),
        ({"since": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - that is the point
        ({"since": [1]}, "is not a time"),
        ({"key": 3}, "is not a text"),
    ],
)
def test_programs_get_the_same_errors(filters: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make_filter(START, **filters)


def test_every_word_of_a_filter_does_something() -> None:
    values: dict[str, Any] = dict.fromkeys(WORDS, "1h")
    values |= {"state": "dead", "tag": {"a": "b"}}
    made = make_filter(START, **values)
    unused = {"finished_from", "finished_before", "id_suffix"}
    assert {name for name, value in made._asdict().items() if not value} == unused
