"""When the clock alone changes a job: the moment and the command always agree."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import durations, policies
from trellis.core.commands import Cancel, Expire, Fail, LoseLease
from trellis.core.durations import SECOND, Instant, micros
from trellis.core.job import Dedupe, Definition, Fence, Head, JobRecord, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.states import ENDED, WAITING, State
from trellis.core.timers import TIMEOUT_SLACK, keep_until, look_at, overdue
from trellis.testing.builders import a_definition, a_record
from trellis.testing.clock import START

FENCE: Final = Fence(SessionId(1), 2)
CLAIMED: Final = START + SECOND


def _active(
    policy: Policy, deadline: Instant | None = None, asked_at: Instant | None = None
) -> JobRecord:
    record = a_record(policy=policy, deadline_at=deadline)
    head = record.head._replace(
        state=State.ACTIVE,
        attempt=1,
        claims=1,
        fence=FENCE,
        claimed_at=CLAIMED,
        asked_at=asked_at,
    )
    return record._replace(head=head)


def _asks_at(record: JobRecord, now: Instant, seen_at: Instant | None = None) -> object:
    return overdue(record.definition, record.head, seen_at, now, 0.5)


@st.composite
def live_jobs(draw: st.DrawFn) -> tuple[Definition, Head, Instant | None]:
    policy = draw(policies)
    deadline = draw(st.none() | durations.map(lambda duration: START + duration))
    state = draw(st.sampled_from((State.PENDING, State.RETRY, State.ACTIVE, State.ACTIVE)))
    definition = a_definition(policy=policy, deadline_at=deadline)
    head = a_record().head._replace(state=state)
    seen = None
    if state is State.ACTIVE:
        head = head._replace(
            fence=FENCE,
            attempt=1,
            claims=1,
            claimed_at=CLAIMED,
            asked_at=draw(st.none() | durations.map(lambda duration: CLAIMED + duration)),
            blocked=draw(st.booleans()),
        )
        seen = draw(st.none() | durations.map(lambda duration: CLAIMED + duration))
    return definition, head, seen


@given(live_jobs())
def test_a_job_is_looked_at_exactly_when_something_is_overdue(
    job: tuple[Definition, Head, Instant | None],
) -> None:
    definition, head, seen = job
    moment = look_at(definition, head, seen)
    if moment is None:
        assert overdue(definition, head, seen, START + 10**18, 0.5) is None
        return
    assert overdue(definition, head, seen, moment - 1, 0.5) is None
    command = overdue(definition, head, seen, moment, 0.5)
    assert command is not None
    assert overdue(definition, head, seen, moment + 10**15, 0.5) is not None


@given(live_jobs())
def test_what_is_overdue_is_always_a_command_the_lifecycle_allows(
    job: tuple[Definition, Head, Instant | None],
) -> None:
    definition, head, seen = job
    moment = look_at(definition, head, seen)
    if moment is not None:
        command = overdue(definition, head, seen, moment, 0.5)
        assert command is not None
        decision = decide(JobRecord(definition, head), command, moment)
        assert isinstance(decision, Transition)
        after = decision.head
        if after.state is State.ACTIVE:
            later = look_at(definition, after, seen)
            assert later is None or later > moment or after.blocked


def test_a_job_with_nothing_to_run_out_is_never_looked_at() -> None:
    record = a_record()
    assert look_at(*record) is None
    assert look_at(*_active(Policy())) is None


@pytest.mark.parametrize("state", sorted(WAITING))
def test_a_waiting_job_is_looked_at_at_its_deadline_alone(state: State) -> None:
    policy = Policy(timeout=SECOND, activity_timeout=SECOND)
    record = a_record(policy=policy, deadline_at=START + 99)
    head = record.head._replace(state=state)
    assert look_at(record.definition, head) == START + 99
    assert overdue(record.definition, head, None, START + 98, 0) is None
    assert overdue(record.definition, head, None, START + 99, 0) == Expire()


def test_a_running_job_expires_at_its_deadline() -> None:
    record = _active(Policy(timeout=micros("1h")), deadline=CLAIMED + 10)
    assert look_at(*record) == CLAIMED + 10
    assert _asks_at(record, CLAIMED + 10) == Expire()


def test_a_cancel_is_forced_when_its_grace_has_passed() -> None:
    record = _active(Policy(cancel_grace=30 * SECOND), asked_at=CLAIMED + SECOND)
    moment = CLAIMED + 31 * SECOND
    assert look_at(*record) == moment
    assert _asks_at(record, moment - 1) is None
    command = _asks_at(record, moment)
    assert isinstance(command, Cancel)
    assert command.force
    assert command.actor == "maintenance"


def test_the_clock_ends_a_timed_out_attempt_only_after_its_worker_had_time_to() -> None:
    record = _active(Policy(timeout=60 * SECOND))
    moment = CLAIMED + 60 * SECOND + TIMEOUT_SLACK
    assert look_at(*record) == moment
    assert _asks_at(record, moment - 1) is None
    command = _asks_at(record, moment)
    assert isinstance(command, Fail)
    assert (command.fence, command.error.code, command.retryable) == (FENCE, "timeout", True)
    assert "1m" in command.error.message
    assert (command.roll, command.stopped) == (0.5, False)


def test_silence_counts_from_the_last_sign_of_life() -> None:
    record = _active(Policy(activity_timeout=10 * SECOND))
    definition, head = record
    assert look_at(definition, head) == CLAIMED + 10 * SECOND
    seen = CLAIMED + 7 * SECOND
    assert look_at(definition, head, seen) == CLAIMED + 17 * SECOND
    assert _asks_at(record, CLAIMED + 16 * SECOND, seen) is None
    command = _asks_at(record, CLAIMED + 17 * SECOND, seen)
    assert isinstance(command, LoseLease)
    assert (command.fence, command.stopped) == (FENCE, False)


def test_a_deadline_comes_before_everything_else() -> None:
    policy = Policy(timeout=SECOND, activity_timeout=SECOND, cancel_grace=SECOND)
    record = _active(policy, deadline=CLAIMED + micros("1h"), asked_at=CLAIMED)
    assert _asks_at(record, CLAIMED + micros("1h")) == Expire()
    assert isinstance(_asks_at(record, CLAIMED + micros("1h") - 1), Cancel)


def test_a_blocked_attempt_waits_for_an_operator_or_its_deadline() -> None:
    policy = Policy(timeout=SECOND, activity_timeout=SECOND, on_lost="block", key=KeyPolicy("k"))
    record = _active(policy)
    head = record.head._replace(blocked=True)
    assert look_at(record.definition, head) is None
    assert overdue(record.definition, head, None, START + 10**15, 0) is None
    with_deadline = record.definition._replace(deadline_at=START + 99)
    assert look_at(with_deadline, head) == START + 99
    assert overdue(with_deadline, head, None, START + 99, 0) == Expire()


@pytest.mark.parametrize("state", sorted(ENDED))
def test_an_ended_job_is_kept_as_long_as_its_state_is(state: State) -> None:
    retention = Retention(completed=1, failed=2, dead=3, other=4)
    record = a_record(policy=Policy(retention=retention))
    head = record.head._replace(state=state, finished_at=START)
    kept = {State.COMPLETED: 1, State.COMPLETED_WITH_ERRORS: 1, State.FAILED: 2, State.DEAD: 3}
    assert keep_until(record.definition, head) == START + kept.get(state, 4)


def test_a_live_job_has_no_end_of_retention() -> None:
    record = a_record()
    assert keep_until(record.definition, record.head) is None


def test_an_ended_job_is_kept_at_least_as_long_as_its_dedupe_key_holds() -> None:
    policy = Policy(retention=Retention(completed=10))
    record = a_record(policy=policy, dedupe=Dedupe("d", None, 99))
    head = record.head._replace(state=State.COMPLETED, finished_at=START + 5)
    assert keep_until(record.definition, head) == START + 99
    later = head._replace(finished_at=START + 95)
    assert keep_until(record.definition, later) == START + 105
