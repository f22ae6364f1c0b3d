"""Properties that hold for every job after any commands in any order."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.strategies import Step, durations, policies, steps
from trellis.core.events import Event
from trellis.core.fold import fold
from trellis.core.job import Head, JobRecord, define
from trellis.core.lifecycle import Transition, creation, decide, first_run_at
from trellis.core.policy import Policy
from trellis.core.states import ENDED, FINAL, State
from trellis.core.timers import keep_until
from trellis.testing.builders import a_job
from trellis.testing.clock import START


class Life(NamedTuple):
    """The heads a job had, one after the other, and its journal."""

    record: JobRecord
    heads: list[Head]
    journal: list[Event]
    #: Heads before which a command was turned down, with what it left.
    refusals: list[tuple[Head, Head]]


def _live(policy: Policy, delay: int, deadline: int | None, asked: list[Step]) -> Life:
    new = a_job(policy=policy, key="user/1", delay=delay, deadline_in=deadline)
    definition = define(new, 1, START)
    event, head = creation(START, first_run_at(new, START))
    life = Life(JobRecord(definition, head), [head], [event], [])
    now = START
    for number, step in enumerate(asked, start=1):
        now += step.pause
        head = life.heads[-1]
        decision = decide(JobRecord(definition, head), step.command(head, number), now)
        if isinstance(decision, Transition):
            life.heads.append(decision.head)
            life.journal.append(decision.event)
        else:
            life.refusals.append((head, decision.head))
    return life


lives = st.builds(
    _live, policies, st.just(0) | durations, st.none() | durations, st.lists(steps, max_size=30)
)


@settings(max_examples=400)
@given(lives)
def test_the_journal_always_folds_to_the_head(life: Life) -> None:
    for length, head in enumerate(life.heads, start=1):
        assert fold(life.journal[:length]) == head


@given(lives)
def test_each_transition_adds_exactly_one_to_the_version(life: Life) -> None:
    assert [head.version for head in life.heads] == list(range(1, len(life.heads) + 1))
    assert [event.version for event in life.journal] == [head.version for head in life.heads]


@given(lives)
def test_a_final_state_is_never_left(life: Life) -> None:
    for head in life.heads[:-1]:
        assert head.state not in FINAL


@given(lives)
def test_an_ended_job_comes_back_only_as_a_new_generation(life: Life) -> None:
    for before, after in zip(life.heads, life.heads[1:], strict=False):
        revived = before.state in ENDED and after.state not in ENDED
        assert after.generation == before.generation + revived
        if revived:
            assert before.state in ENDED - FINAL
            assert (after.state, after.attempt, after.crashes) == (State.PENDING, 0, 0)


@given(lives)
def test_claims_only_grow(life: Life) -> None:
    for before, after in zip(life.heads, life.heads[1:], strict=False):
        claimed = before.state is not State.ACTIVE and after.state is State.ACTIVE
        assert after.claims == before.claims + claimed


@given(lives)
def test_the_attempt_stays_within_its_budget(life: Life) -> None:
    attempts = life.record.definition.policy.retry.attempts
    for head in life.heads:
        assert 0 <= head.attempt <= attempts
        assert 0 <= head.crashes <= life.record.definition.policy.max_crashes


@given(lives)
def test_exactly_the_active_job_has_a_fence(life: Life) -> None:
    for head in life.heads:
        active = head.state is State.ACTIVE
        assert (head.fence is not None) == active
        assert (head.claimed_at is not None) == active
        assert active or (head.asked_at is None and not head.blocked)


@given(lives)
def test_exactly_the_ended_job_has_a_finishing_time(life: Life) -> None:
    definition = life.record.definition
    for head in life.heads:
        ended = head.state in ENDED
        assert (head.finished_at is not None) == ended
        assert (keep_until(definition, head) is not None) == ended


@given(lives)
def test_no_two_attempts_share_a_fence(life: Life) -> None:
    fences = [event.fence for event in life.journal if event.kind == "started"]
    assert len(set(fences)) == len(fences)


@given(lives)
def test_a_refused_command_hands_back_the_head_it_met(life: Life) -> None:
    for before, after in life.refusals:
        assert before is after


@given(lives)
def test_no_job_starts_before_its_time_or_after_its_deadline(life: Life) -> None:
    deadline = life.record.definition.deadline_at
    for before, after in zip(life.heads, life.heads[1:], strict=False):
        if after.claims > before.claims:
            assert after.claimed_at is not None
            assert after.claimed_at >= before.run_at
            assert deadline is None or after.claimed_at < deadline
