"""What each transition means for the key slot of its job: the whole table."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from tests.core.situations import NOW, OURS, jobs, orders
from trellis.core.commands import Cancel, Expire, Fail, LoseLease, Release
from trellis.core.job import Failure, JobRecord
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import Hold, KeyPolicy, Policy
from trellis.core.slots import slot_effect
from trellis.core.states import ENDED, WAITING, State


def _held(record: JobRecord, hold: Hold) -> JobRecord:
    policy = record.definition.policy
    key = KeyPolicy("user/{id}", hold=hold)
    kept = Policy(
        retry=policy.retry,
        on_lost=policy.on_lost,
        on_shutdown=policy.on_shutdown,
        dead_letters=policy.dead_letters,
        key=key,
    )
    return record._replace(definition=record.definition._replace(policy=kept))


def _is_from_outside(command: object) -> bool:
    """Tell whether the handler may still run when this ends its attempt."""
    if isinstance(command, Cancel | Expire):
        return True
    return isinstance(command, Fail | LoseLease | Release) and not command.stopped


@pytest.mark.parametrize("hold", get_args(Hold))
@pytest.mark.parametrize("state", [State.PENDING, State.RETRY, State.ACTIVE])
def test_every_transition_keeps_frees_or_lingers_as_designed(state: State, hold: Hold) -> None:
    late_fail = Fail(OURS, Failure("timeout", "late"), roll=0.5, stopped=False)
    commands = [order.command for order in orders()]
    seen = set()
    for job, command in product(jobs(state), (*commands, late_fail)):
        decision = decide(_held(job.record, hold), command, NOW)
        if not isinstance(decision, Transition):
            continue
        after = decision.head.state
        if after is State.ACTIVE:
            expected = "keep"
        elif state is State.ACTIVE and _is_from_outside(command):
            expected = "linger"
        elif hold == "job" and after in WAITING and job.record.head.claims:
            expected = "keep"
        else:
            expected = "free"
        assert slot_effect(decision) == expected, (job, command)
        seen.add(expected)
    assert seen == ({"keep", "free", "linger"} if state is State.ACTIVE else {"keep", "free"})


def test_a_revived_job_without_a_strict_hold_keeps_no_slot() -> None:
    for state in ENDED & {State.FAILED, State.DEAD}:
        for job, order in product(jobs(state), orders()):
            decision = decide(_held(job.record, "attempt"), order.command, NOW)
            if isinstance(decision, Transition):
                assert slot_effect(decision) == "free"
