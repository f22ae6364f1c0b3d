"""Every situation a command can meet: all states, with every fact that any rule could look at.

Each job and command is built from plain words ("asked", "left", "on_lost=block"), and the words
travel with it, so that what is expected can be looked up without asking the code under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Final, NamedTuple, get_args

from trellis.core.commands import (
    Adjust,
    Cancel,
    Claim,
    Command,
    Complete,
    Crash,
    Dismiss,
    Exhaust,
    Expire,
    Fail,
    LoseLease,
    Release,
    ReleaseKey,
    Replay,
    Resolve,
    Retry,
    RetryItems,
    Skip,
    Snooze,
)
from trellis.core.durations import SECOND, Instant
from trellis.core.job import Failure, Fence, JobId, JobRecord, SessionId, first_head
from trellis.core.policy import KeyPolicy, OnLost, OnShutdown, Policy
from trellis.core.retry import Retry as RetryPolicy
from trellis.core.states import WAITING, State
from trellis.testing.builders import a_definition

NOW: Final[Instant] = 2_000_000_000 * SECOND
CREATED: Final = NOW - 100 * SECOND
OURS: Final = Fence(SessionId(11), 22)
NEXT: Final = Fence(SessionId(77), 88)
WRONG: Final = (Fence(SessionId(11), 23), Fence(SessionId(12), 22), Fence(SessionId(0), 0))
EARLIER: Final = Failure("exception", "an earlier attempt failed")
ERROR: Final = Failure("exception", "boom", "Traceback")
ROLL: Final = 0.5
ATTEMPTS: Final = 3
_RETRY: Final = RetryPolicy(ATTEMPTS, "list", (10 * SECOND, 60 * SECOND), jitter=0.5)
#: After the first failed attempt: ten seconds, and half of half of that by the dice.
BACKOFF: Final = 12_500_000
OWN_DELAY: Final = 7 * SECOND
SNOOZE: Final = 9 * SECOND
LATER: Final = NOW + 11 * SECOND
_KEY: Final = KeyPolicy("user/{id}")


class Situation(NamedTuple):
    """A job, a command, and the words that are true of both together."""

    record: JobRecord
    command: Command
    facts: frozenset[str]


class Job(NamedTuple):
    """A job and what is true of it."""

    record: JobRecord
    facts: frozenset[str]


class Order(NamedTuple):
    """A command and what is true of it."""

    command: Command
    facts: frozenset[str]


def _true(**words: bool) -> frozenset[str]:
    return frozenset(word.replace("_", " ") for word, is_true in words.items() if is_true)


@cache
def _policy(on_lost: OnLost, on_shutdown: OnShutdown, dead_letters: bool) -> Policy:
    return Policy(
        retry=_RETRY,
        on_lost=on_lost,
        on_shutdown=on_shutdown,
        dead_letters=dead_letters,
        max_crashes=3,
        key=_KEY,
    )


def _policies() -> Iterator[tuple[Policy, frozenset[str]]]:
    for on_lost, on_shutdown, letters in product(
        get_args(OnLost), get_args(OnShutdown), (True, False)
    ):
        words = {f"on_lost={on_lost}", f"on_shutdown={on_shutdown}"}
        yield _policy(on_lost, on_shutdown, letters), _true(dlq=letters) | words


@cache
def _jobs_with_policies() -> tuple[tuple[JobRecord, frozenset[str]], ...]:
    """Return a pending job for every policy and every kind of deadline."""
    made = []
    for (policy, words), deadline in product(_policies(), (None, NOW - 1, NOW, NOW + 1)):
        passed = deadline is not None and deadline <= NOW
        definition = a_definition(
            1, CREATED, policy=policy, deadline_at=deadline, key="user/1", id=JobId("01J")
        )
        made.append(
            (JobRecord(definition, first_head(CREATED)), words | _true(deadline_passed=passed))
        )
    return tuple(made)


def _active(record: JobRecord, words: frozenset[str]) -> Iterator[Job]:
    flags = (True, False)
    for asked, left, blocked, last_crash in product(flags, flags, flags, flags):
        head = record.head._replace(
            state=State.ACTIVE,
            version=7,
            attempt=1 if left else ATTEMPTS,
            claims=5,
            crashes=2 if last_crash else 1,
            fence=OURS,
            claimed_at=NOW - 40 * SECOND,
            asked_at=NOW - SECOND if asked else None,
            blocked=blocked,
            error=EARLIER,
        )
        more = _true(asked=asked, left=left, blocked=blocked, last_crash=last_crash)
        yield Job(record._replace(head=head), words | more)


def _waiting(record: JobRecord, words: frozenset[str], state: State) -> Iterator[Job]:
    for run_at, claimed, suspect in product((NOW - 1, NOW, NOW + 1), (True, False), (True, False)):
        if suspect and not claimed:
            continue
        head = record.head._replace(
            state=state,
            version=5,
            attempt=1 if claimed else 0,
            claims=3 if claimed else 0,
            run_at=run_at,
            suspect=suspect,
            error=EARLIER if claimed else None,
        )
        yield Job(
            record._replace(head=head), words | _true(due=run_at <= NOW, never_claimed=not claimed)
        )


def _ended(record: JobRecord, words: frozenset[str], state: State) -> Iterator[Job]:
    head = record.head._replace(
        state=state,
        version=9,
        generation=1,
        attempt=2,
        claims=4,
        crashes=1,
        error=EARLIER,
        finished_at=NOW - SECOND,
    )
    yield Job(record._replace(head=head), words)


@cache
def jobs(state: State) -> tuple[Job, ...]:
    """Return jobs in this state, one for each combination of facts."""
    made: list[Job] = []
    for record, words in _jobs_with_policies():
        if state is State.ACTIVE:
            made += _active(record, words)
        elif state in WAITING:
            made += _waiting(record, words, state)
        else:
            made += _ended(record, words, state)
    return tuple(made)


def _fails(fence: Fence) -> Iterator[Order]:
    flags = (True, False)
    for retryable, gave_up, delay in product(flags, flags, (None, OWN_DELAY)):
        command = Fail(fence, ERROR, retryable, delay, gave_up, ROLL)
        facts = _true(retryable=retryable, gave_up=gave_up, own_delay=delay is not None)
        yield Order(command, facts)


def fenced_orders(fence: Fence) -> Iterator[Order]:
    """Return every command that the attempt with this fence could give."""
    flags = (True, False)
    yield Order(Complete(fence, '"done"'), frozenset())
    yield Order(Complete(fence, '"done"', item_errors=2), _true(item_errors=True))
    yield from _fails(fence)
    yield Order(Snooze(fence, SNOOZE), frozenset())
    for begun in flags:
        yield Order(Release(fence, begun), _true(begun=begun))
    for stopped in flags:
        yield Order(LoseLease(fence, roll=ROLL, stopped=stopped), frozenset())
    for begun, alone in product(flags, flags):
        yield Order(
            Crash(fence, "exit code 139", begun, alone, ROLL), _true(begun=begun, alone=alone)
        )


def other_orders() -> Iterator[Order]:
    """Return every command that shows no fence."""
    yield Order(Claim(NEXT), frozenset())
    yield Order(ReleaseKey("retry", "ann", ROLL), frozenset({"then=retry"}))
    yield Order(ReleaseKey("fail", "ann", ROLL), frozenset({"then=fail"}))
    yield Order(Cancel("not needed", force=True, actor="ann"), _true(forced=True))
    yield Order(Cancel("not needed", actor="ann"), frozenset())
    yield Order(Adjust("other", 3, attempts=9, actor="ann"), frozenset())
    yield Order(Adjust(run_at=LATER, actor="ann"), _true(**{"new time": True}))
    yield Order(Resolve(), frozenset())
    yield Order(Resolve('{"n":1}'), frozenset())
    yield Order(Expire(), frozenset())
    yield Order(Skip(JobId("01K")), frozenset())
    yield Order(Exhaust("5 deliveries"), frozenset())
    yield Order(Retry("ann"), frozenset())
    yield Order(RetryItems("ann"), frozenset())
    yield Order(Replay("ann"), frozenset())
    yield Order(Dismiss("ann"), frozenset())


@cache
def orders() -> tuple[Order, ...]:
    """Return every command, fenced ones with the right fence and with wrong ones."""
    right = [Order(each.command, each.facts | {"shown"}) for each in fenced_orders(OURS)]
    wrong = [each for fence in WRONG for each in fenced_orders(fence)]
    return (*right, *wrong, *other_orders())


def situations(state: State, kind: type[Command]) -> Iterator[Situation]:
    """Return every situation in which this kind of command meets a job in this state."""
    for command, facts in orders():
        if type(command) is not kind:
            continue
        for record, true in jobs(state):
            held = {"fence"} if state is State.ACTIVE and "shown" in facts else set()
            yield Situation(record, command, true | (facts - {"shown"}) | held)
