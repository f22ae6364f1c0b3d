"""Settings from the environment and from the program: what cannot work is named."""

from __future__ import annotations

from typing import Any

import pytest

from trellis import ConfigurationError
from trellis.config import WorkerSettings, worker_settings
from trellis.core.durations import SECOND


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TRELLIS_CONCURRENCY", "many", "must be a whole number, not 'many'"),
        ("TRELLIS_CONCURRENCY", "0", "concurrency must be at least 1, not 0"),
        ("TRELLIS_LEASE", "long", "'long' is not a duration. Write it like '30s'"),
        ("TRELLIS_LEASE", "0s", "leaves no time at all"),
        ("TRELLIS_LEASE", "99999w", "is longer than 100 years"),
        ("TRELLIS_HEARTBEAT", "20s", "is too rare for a lease of 30s"),
        ("TRELLIS_GRACE", "a while", "'a while' is not a duration"),
        ("TRELLIS_POLL", "0s", "must be above zero"),
        ("TRELLIS_SWEEP", "-1s", "'-1s' is not a duration"),
    ],
)
def test_a_variable_with_a_bad_value_is_named(variable: str, value: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        worker_settings({variable: value})
    assert variable in str(refusal.value)
    assert words in str(refusal.value)


def test_variables_that_do_not_go_together_are_all_named() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        worker_settings({"TRELLIS_LEASE": "6s", "TRELLIS_HEARTBEAT": "3s"})
    assert "TRELLIS_LEASE=6s, TRELLIS_HEARTBEAT=3s cannot be used" in str(refusal.value)


def test_an_option_overrides_a_variable_before_it_is_judged() -> None:
    settings = worker_settings({"TRELLIS_HEARTBEAT": "60s"}, lease="1800s")
    assert (settings.heartbeat, settings.lease) == (60 * SECOND, 1800 * SECOND)
    assert worker_settings({"TRELLIS_LEASE": "long"}, lease="6s").heartbeat == 2 * SECOND
    with pytest.raises(ConfigurationError) as refusal:
        worker_settings({"TRELLIS_NAME": "left", "TRELLIS_HEARTBEAT": "60s"}, lease="90s")
    assert str(refusal.value).startswith(
        "TRELLIS_HEARTBEAT=60s cannot be used: A heartbeat every 1m is too rare for a lease"
    )


def test_an_empty_variable_says_nothing() -> None:
    assert worker_settings({"TRELLIS_LEASE": "", "TRELLIS_CONCURRENCY": ""}) == WorkerSettings()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": "8"}, "concurrency='8' is not a whole number"),
        ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
        ({"lease": [1]}, r"lease=\[1\] is not a duration"),
        ({"lease": 0}, "lease=0 leaves no time at all"),
        ({"grace": "soon"}, "grace: 'soon' is not a duration"),
        ({"poll": 0}, "poll=0 leaves no time at all"),
    ],
)
def test_what_the_program_asks_for_is_checked_too(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        WorkerSettings().with_options(**options)
