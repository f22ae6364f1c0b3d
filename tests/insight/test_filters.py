"""The words by which jobs are chosen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trellis import ConfigurationError, State
from trellis.core.durations import SECOND
from trellis.engines.values import GroupBy, JobFilter, TagGroup
from trellis.insight.filters import WORDS, Moment, make_filter, parse_filters, read_groups
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
    ("words", "services"),
    [
        (["schedule:nightly"], ()),
        (["schedule:shop/nightly"], ("shop",)),
        (["schedule:shop/nightly", "service:shop"], ("shop",)),
        (["schedule:nightly", "service:shop,mail"], ("shop", "mail")),
    ],
)
def test_a_schedule_may_name_its_service(words: list[str], services: tuple[str, ...]) -> None:
    made = make_filter(START, **parse_filters(words))
    assert made == JobFilter(schedule="nightly", services=services)


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
        (["state:runing"], "Did you mean running?"),
        (["finished_after:1h"], "Did you mean finished-after:...?"),
        (["finished-after:1h", "finished-after:2h"], "finished-after: is given twice"),
        (["key:a", "key:b"], "key: is given twice"),
        (["tag:tenant"], "Write tag:name=value"),
        (["since:soon"], "'soon' is not a time"),
        (["type:a/x,b/y"], "are of several services"),
        (["type:a/x,y"], "are of several services"),
        (["type:a/x", "service:b"], "a/x is not of service b"),
        (["schedule:a/x", "service:b"], "a/x is not of service b"),
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
    values: dict[str, Any] = dict.fromkeys((word.replace("-", "_") for word in WORDS), "1h")
    values |= {"state": "dead", "tag": {"a": "b"}}
    made = make_filter(START, **values)
    assert [name for name, value in made._asdict().items() if not value] == ["id_suffix", "blocked"]


@pytest.mark.parametrize(
    ("words", "states"),
    [
        ("waiting", {"pending", "retry"}),
        ("running", {"active"}),
        ("unsuccessful", {"failed", "dead", "stale", "expired"}),
        ("Unsuccessful,dead,cancelled", {"failed", "dead", "stale", "expired", "cancelled"}),
        ("waiting,running,ended", set(State)),
        ("QUEUED,in_progress", {"pending", "retry", "active"}),
        ("success", {"completed", "completed_with_errors"}),
    ],
)
def test_a_group_stands_for_its_states(words: str, states: set[str]) -> None:
    made = make_filter(START, **parse_filters([f"state:{words}"])).states
    assert set(made) == states
    assert len(made) == len(states)


def test_jobs_are_chosen_by_when_they_ended() -> None:
    found = parse_filters(["finished-after:1h", "finished-before:2030-01-01T00:00Z"])
    assert make_filter(START, **found) == JobFilter(
        finished_from=START - HOUR, finished_before=START
    )


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("type", ("service", "type")),
        ("queue", ("service", "queue")),
        ("error", ("error",)),
        ("tag:tag:x", (TagGroup("tag:x"),)),
    ],
)
def test_names_are_counted_together_with_their_service(by: str, groups: tuple[GroupBy]) -> None:
    assert read_groups(by) == groups


@pytest.mark.parametrize("by", ["colour", "tag", "tag:", ""])
def test_an_unknown_group_is_refused(by: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Count by state, .* or tag:NAME\."):
        read_groups(by)


def test_tags_that_are_no_mapping_are_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match="Write it like tag="):
        make_filter(START, tag="customer=ada")  # type: ignore[arg-type] # a mistake
