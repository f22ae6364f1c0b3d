"""The words of profiles: every state has one, and every word stands for its states."""

from __future__ import annotations

import pytest

from trellis.core.state_words import (
    AGENT_ORCHESTRATION,
    DOCS_PUBLISHING,
    PROFILES,
    PROVISIONING,
    SYNONYMS,
    TABLE_MAINTENANCE,
    StateWords,
)
from trellis.core.states import GROUPS, LIVE, SUCCEEDED, UNSUCCESSFUL, WAITING, State
from trellis.errors import ConfigurationError


def test_the_words_are_those_of_the_systems() -> None:
    assert set(PROVISIONING.known) == {
        "QUEUED", "CLAIMED", "PROCESSING", "SUCCESS", "FAILED", "CANCELLED",
    }  # fmt: skip
    assert set(DOCS_PUBLISHING.known) == {
        "queued", "in_progress", "completed", "completed_with_errors", "failed", "cancelled",
    }  # fmt: skip
    for profile in (TABLE_MAINTENANCE, AGENT_ORCHESTRATION):
        assert set(profile.known) == {"pending", "running", "completed", "failed", "cancelled"}


@pytest.mark.parametrize("profile", PROFILES)
def test_words_and_states_belong_together(profile: StateWords) -> None:
    for state in State:
        assert state in profile.states(profile.word(state))
    found = [state for word in profile.known if word != profile.begun
             for state in profile.states(word)]  # fmt: skip
    assert sorted(found) == sorted(State)
    assert {profile.word(state) for state in WAITING} == {profile.word(State.PENDING)}
    unsuccessful = {profile.word(state) for state in UNSUCCESSFUL}
    assert len(unsuccessful) == 1
    assert unsuccessful.isdisjoint(profile.word(state) for state in LIVE | SUCCEEDED)


def test_only_an_active_job_has_begun() -> None:
    assert PROVISIONING.word(State.ACTIVE, begun=True) == "PROCESSING"
    assert PROVISIONING.word(State.RETRY, begun=True) == "QUEUED"
    assert DOCS_PUBLISHING.word(State.ACTIVE, begun=True) == "in_progress"


def test_an_unknown_word_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'dead' is not a status here. Known: pending"):
        AGENT_ORCHESTRATION.states("dead")


def test_synonyms_are_no_states_and_no_groups() -> None:
    assert {"queued", "claimed", "processing", "success", "in_progress"} == set(SYNONYMS)
    assert set(SYNONYMS).isdisjoint({*State, *GROUPS})
    assert SYNONYMS["queued"] == WAITING
    assert SYNONYMS["success"] == SUCCEEDED
