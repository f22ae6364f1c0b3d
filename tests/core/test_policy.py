"""Policies: written once as canonical text, read back as they were, by older code too."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given

from tests.core.strategies import policies
from trellis.core.durations import micros
from trellis.core.policy import (
    DEFAULT_POLICY,
    KeyPolicy,
    Policy,
    Retention,
    decode_policy,
    encode_policy,
)
from trellis.core.retry import Retry
from trellis.core.states import ENDED, State
from trellis.errors import ConfigurationError


@given(policies)
def test_a_policy_reads_back_as_it_was(policy: Policy) -> None:
    assert decode_policy(encode_policy(policy)) == policy


def test_a_policy_without_a_key_reads_back_as_it_was() -> None:
    assert decode_policy(encode_policy(DEFAULT_POLICY)) == DEFAULT_POLICY


def test_what_is_secret_reads_back_as_it_was() -> None:
    policy = Policy(secrets=("/payload/password", "/result/*/token"))
    assert decode_policy(encode_policy(policy)) == policy


def test_a_backoff_function_is_not_part_of_the_text() -> None:
    with_function = Policy(retry=Retry(backoff=lambda attempt, _: attempt))
    assert encode_policy(with_function) == encode_policy(DEFAULT_POLICY)


def test_equal_policies_are_the_same_text() -> None:
    one = Policy(retry=Retry.after("5s", "30s"), timeout=micros("1m"))
    same = Policy(timeout=60_000_000, retry=Retry(3, "list", (5_000_000, 30_000_000)))
    assert encode_policy(one) == encode_policy(same)
    assert encode_policy(one) != encode_policy(DEFAULT_POLICY)


def test_words_of_a_newer_version_are_ignored_at_every_level() -> None:
    body = json.loads(encode_policy(Policy(key=KeyPolicy("user/{id}"))))
    for part in (body, body["retry"], body["key"], body["retention"]):
        part["invented_later"] = {"deep": [1]}
    assert decode_policy(json.dumps(body)) == Policy(key=KeyPolicy("user/{id}"))


def test_words_an_older_version_did_not_write_take_their_defaults() -> None:
    body = json.loads(encode_policy(DEFAULT_POLICY))
    for word in (
        "max_crashes",
        "cancel_grace",
        "on_shutdown",
        "key",
        "activity_timeout",
        "secrets",
    ):
        del body[word]
    assert decode_policy(json.dumps(body)) == DEFAULT_POLICY


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: KeyPolicy("k", active=0),
        lambda: KeyPolicy("k", queued=-1),
        lambda: Policy(on_lost="block"),
        lambda: Policy(max_crashes=0),
    ],
)
def test_a_policy_that_cannot_work_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


def test_the_defaults_are_the_documented_ones() -> None:
    assert DEFAULT_POLICY.retry == Retry()
    assert (DEFAULT_POLICY.on_lost, DEFAULT_POLICY.on_shutdown) == ("retry", "requeue")
    assert DEFAULT_POLICY.dead_letters
    key = KeyPolicy("k")
    assert (key.active, key.queued, key.when_full, key.hold) == (1, 0, "reject", "attempt")


def test_each_state_is_kept_as_long_as_documented() -> None:
    days = {State.COMPLETED: 7, State.COMPLETED_WITH_ERRORS: 7, State.FAILED: 30, State.DEAD: 90}
    for state in ENDED:
        assert Retention().keep(state) == micros(f"{days.get(state, 7)}d")


def test_each_state_follows_its_own_setting() -> None:
    retention = Retention(completed=1, failed=2, dead=3, other=4)
    kept = {state: retention.keep(state) for state in ENDED}
    assert {state for state in ENDED if kept[state] == 1} == {
        State.COMPLETED,
        State.COMPLETED_WITH_ERRORS,
    }
    assert kept[State.FAILED] == 2
    assert kept[State.DEAD] == 3
    assert kept[State.DISMISSED] == kept[State.STALE] == kept[State.SKIPPED] == 4
