"""Limits: rates as token buckets, what operators set, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.core.durations import SECOND
from trellis.core.limits import (
    UNSPENT,
    Limit,
    LimitSetting,
    Override,
    Rate,
    Reset,
    Scope,
    Spent,
    Use,
    allowance,
    decode_setting,
    encode_setting,
    parse_rate,
    slot_at,
)
from trellis.errors import ConfigurationError

SCOPE = Scope("queue", "shop", "mails")
RATES = st.builds(Rate, st.integers(1, 50), st.integers(100 * 50, 60 * SECOND), st.integers(1, 100))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limit(active=0), "A limit of 0 jobs would never start one.*trellis queues pause"),
        (lambda: Limit(active=-1), "A limit of -1 jobs would never start one"),
        (lambda: Limit(active=True), "must be a whole number"),
        (lambda: Limit(rate="0/1m"), "would never start a job.*trellis queues pause"),
        (lambda: Limit(rate="5/0s"), "would never start a job"),
        (lambda: Limit(rate="fast"), "is no rate"),
        (lambda: Limit(rate="5"), "is no rate"),
        (lambda: Limit(rate="5/soon"), "is not a duration"),
        (lambda: Limit(rate="1000000/1s"), "more than 10,000 per second"),
        (lambda: Limit(rate="5/1s", burst=0), "burst=0 must be a whole number of at least 1"),
        (lambda: Limit(burst=5), "burst=5 needs a rate"),
    ],
)
def test_a_limit_that_limits_nothing_or_everything_is_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()  # type: ignore[operator] # a lambda


def test_a_limit_is_written_in_words() -> None:
    assert str(Limit(active=5, rate="100/1m", burst=10)) == "5 at a time, 100 per 1m (burst 10)"
    assert str(Limit(rate="1/90s")) == "1 per 1m30s"
    assert str(Limit()) == "no limit"


STEPS = st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(0, 200)), max_size=60)


def exceeds(starts: list[tuple[int, int]], rate: Rate) -> bool:
    """Return whether a window has more starts than its share of a rate and one burst."""
    for index, (begin, _) in enumerate(starts):
        total = 0
        for end, taken in starts[index:]:
            total += taken
            # A take is rounded by less than a microsecond, which a start in the window may use.
            share = -(-(end - begin + len(starts)) * rate.starts // rate.period)
            if total > rate.burst + share:
                return True
    return False


@given(RATES, STEPS)
def test_no_window_has_more_starts_than_its_share_and_one_burst(
    rate: Rate, steps: list[tuple[int, int]]
) -> None:
    now, spent = 1_000_000_000, UNSPENT
    starts: list[tuple[int, int]] = []
    for pause, wanted in steps:
        now += pause
        taken = min(wanted, rate.tokens(spent, now))
        assert taken >= 0
        if taken:
            spent = rate.take(spent, now, taken)
            starts.append((now, taken))
    assert not exceeds(starts, rate)


@given(st.lists(RATES, min_size=2, max_size=4), STEPS, st.integers(1, 7))
def test_changes_of_the_rate_give_no_window_more_than_the_largest_rate_and_one_burst(
    rates: list[Rate], steps: list[tuple[int, int]], each: int
) -> None:
    now, spent = 1_000_000_000, UNSPENT
    starts: list[tuple[int, int]] = []
    for number, (pause, wanted) in enumerate(steps):
        now += pause
        rate = rates[number // each % len(rates)]
        taken = min(wanted, rate.tokens(spent, now))
        assert taken >= 0
        if taken or rate.is_outdated(spent, now):
            spent = rate.take(spent, now, taken)
        if taken:
            starts.append((now, taken))
    fastest = max(rates, key=lambda each: each.starts / each.period)
    assert not exceeds(starts, fastest._replace(burst=max(rate.burst for rate in rates)))


def test_a_lowered_rate_does_not_start_the_jobs_of_a_second_burst() -> None:
    fast, slow = parse_rate("100/1s"), parse_rate("10/10s")
    empty = fast.take(UNSPENT, 0, 100)
    assert slow.tokens(empty, 0) == 0
    assert slow.is_outdated(empty, 0)
    assert not slow.is_outdated(slow.take(empty, 0, 0), 0)
    assert slow.tokens(empty, SECOND // 20) == 5, "it filled by the old rate"
    assert slow.tokens(slow.take(empty, 0, 0), SECOND // 20) == 0, "and by the new one once stored"
    assert fast.tokens(slow.take(UNSPENT, 0, 1), 0) == 9, "a raised one has no more tokens"
    assert fast.tokens(slow.take(UNSPENT, 0, 1), 2 * SECOND) == 100, "until it is filled"


@given(RATES)
def test_the_next_token_is_there_when_it_is_said_to_come(rate: Rate) -> None:
    now = 1_000_000_000
    spent = rate.take(UNSPENT, now, rate.burst)
    assert rate.tokens(spent, now) == 0
    assert rate.tokens(spent, rate.next_at(spent, now)) >= 1
    for number in (1, rate.burst // 2 or 1, rate.burst):
        moment = rate.token_at(spent, now, number)
        assert rate.tokens(spent, moment) >= number
        assert rate.tokens(spent, moment - rate.period // rate.starts - 1) < number
    assert rate.tokens(spent, spent.full_at) == rate.burst


def test_a_slow_rate_is_awaited_to_the_microsecond_and_a_fast_one_a_little_longer() -> None:
    slow, fast = parse_rate("1/10s"), parse_rate("1000/1s")
    assert slow.next_at(slow.take(UNSPENT, 0, 1), 0) == 10 * SECOND
    assert fast.next_at(fast.take(UNSPENT, 0, 1000), 0) == SECOND // 20
    assert parse_rate("1000/1s", 1).next_at(Spent(1000, 1000, 1), 0) == 1000


@given(RATES, st.integers(0, 100), st.integers(0, 120))
def test_a_key_never_has_more_unclaimed_slots_than_tokens(
    rate: Rate, taken: int, unclaimed: int
) -> None:
    now = 1_000_000_000
    spent = rate.take(UNSPENT, now, min(taken, rate.burst))
    moment = slot_at(rate, spent, unclaimed, now)
    if moment is None:
        assert unclaimed >= rate.burst
    else:
        assert (moment <= now) == (rate.tokens(spent, now) > unclaimed)
        assert rate.tokens(spent, moment) > unclaimed


def test_the_strictest_part_decides() -> None:
    limit = Limit(active=5, rate="3/1s")
    assert allowance(limit, Use(running=1), 0) == 3
    assert allowance(limit, Use(running=4), 0) == 1
    assert allowance(limit, Use(running=9), 0) == 0
    assert allowance(Limit(), Use(running=9), 0) is None


def test_a_setting_is_stored_and_read_unchanged() -> None:
    setting = LimitSetting(SCOPE, Limit(active=3, rate="1/1s"))
    for change in (
        Override(Limit(active=9), frozenset({"active"})),
        Override(Limit(), frozenset({"rate"})),
        Override(Limit(rate="7/1h", burst=2), frozenset({"rate"})),
        Reset(),
    ):
        setting = setting.changed(change)
        assert decode_setting(SCOPE, *encode_setting(setting)) == setting
    assert setting.in_force == Limit(active=3, rate="1/1s")
