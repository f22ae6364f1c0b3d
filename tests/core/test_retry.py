"""How long to wait: each shape of backoff, its cap, its dice, its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import retries
from trellis.core.durations import SECOND, micros
from trellis.core.retry import Retry
from trellis.errors import ConfigurationError


def _delays(policy: Retry, count: int, roll: float = 0.0) -> list[float]:
    return [policy.delay(attempt, roll) / SECOND for attempt in range(1, count + 1)]


def test_the_default_is_five_attempts_with_the_documented_delays() -> None:
    assert Retry().attempts == 5
    assert _delays(Retry(), 7) == [5, 30, 120, 600, 1800, 1800, 1800]


def test_a_list_repeats_its_last_delay() -> None:
    policy = Retry.after("5s", "30s")
    assert policy.attempts == 3
    assert _delays(policy, 4) == [5, 30, 30, 30]


def test_fixed_waits_the_same_every_time() -> None:
    assert _delays(Retry.fixed("7s", attempts=9), 9) == [7] * 9


def test_quadratic_grows_with_the_square_up_to_its_cap() -> None:
    assert _delays(Retry.quadratic("2s", cap="50s"), 6) == [2, 8, 18, 32, 50, 50]


def test_exponential_doubles_up_to_its_cap() -> None:
    policy = Retry.exponential("1s", cap="10s", jitter=0)
    assert _delays(policy, 6) == [1, 2, 4, 8, 10, 10]
    assert _delays(Retry.exponential("1s", factor=3, cap="1h", jitter=0), 4) == [1, 3, 9, 27]


def test_exponential_survives_a_thousand_attempts() -> None:
    policy = Retry.exponential("1s", attempts=2000, cap="1h", jitter=0)
    assert policy.delay(1999, 0.0) == micros("1h")


def test_never_means_one_attempt() -> None:
    assert Retry.never().attempts == 1


def test_jitter_lengthens_by_its_part_times_the_roll() -> None:
    policy = Retry.fixed("10s", jitter=0.2)
    assert [policy.delay(1, roll) / SECOND for roll in (0.0, 0.5, 1.0)] == [10, 11, 12]


def test_without_jitter_the_roll_means_nothing() -> None:
    assert Retry.fixed("10s").delay(1, 1.0) == 10 * SECOND


def test_an_attempt_below_one_waits_like_the_first() -> None:
    assert Retry().delay(0, 0.0) == Retry().delay(1, 0.0) == 5 * SECOND


@pytest.mark.parametrize("wrong", [lambda: Retry(attempts=0), lambda: Retry(delays=())])
def test_a_policy_that_cannot_work_is_refused(wrong: Callable[[], Retry]) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


@given(retries, st.integers(1, 10_000), st.floats(0, 1))
def test_a_delay_is_a_whole_number_between_its_cap_and_nothing(
    policy: Retry, attempt: int, roll: float
) -> None:
    delay = policy.delay(attempt, roll)
    assert isinstance(delay, int)
    assert 0 <= delay <= policy.cap * (1 + policy.jitter) + 1


@given(retries, st.integers(1, 50), st.floats(0, 1))
def test_the_same_roll_gives_the_same_delay(policy: Retry, attempt: int, roll: float) -> None:
    assert policy.delay(attempt, roll) == policy.delay(attempt, roll)
    assert policy.delay(attempt, 0.0) <= policy.delay(attempt, roll)


class Overloaded(ConnectionError):
    pass


@pytest.mark.parametrize(
    ("policy", "retried", "failed"),
    [
        (Retry(), [ValueError(), KeyboardInterrupt()], []),
        (Retry(on=(ConnectionError,)), [Overloaded(), BrokenPipeError()], [ValueError()]),
        (Retry(never_on=(ValueError,)), [OSError()], [UnicodeError(), ValueError()]),
        (Retry.fixed("1s", on=(OSError,), never_on=(Overloaded,)), [OSError()], [Overloaded()]),
        (Retry.after("1s", on=["ConnectionError"]), [Overloaded()], [OSError()]),
        (Retry.exponential(never_on=(f"{__name__}.Overloaded",)), [OSError()], [Overloaded()]),
        (Retry.quadratic("1s", on=OSError), [Overloaded()], [ValueError()]),
    ],
)
def test_exceptions_are_retried_by_their_class_and_its_bases(
    policy: Retry, retried: list[BaseException], failed: list[BaseException]
) -> None:
    assert [policy.allows(error) for error in retried] == [True] * len(retried)
    assert [policy.allows(error) for error in failed] == [False] * len(failed)


def test_classes_and_their_names_make_equal_policies() -> None:
    by_class = Retry(on=(Overloaded, OSError), never_on={ValueError})
    by_name = Retry(on=["builtins.OSError", f"{__name__}.Overloaded"], never_on=("ValueError",))
    assert by_class == by_name


@pytest.mark.parametrize("wrong", [(int,), ("no name",), (7,), ("",)])
def test_what_is_not_a_class_of_exceptions_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"never_on names .* is not a class of exceptions"):
        Retry(never_on=wrong)


def test_a_backoff_that_is_not_a_function_is_refused() -> None:
    wrong: Any = "30s"
    with pytest.raises(ConfigurationError, match="is not a function"):
        Retry(backoff=wrong)
