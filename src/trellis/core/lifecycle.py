"""The lifecycle of a job: the table of rules, and `decide`, which applies it.

`RULES` is read from top to bottom: the first rule whose command, state and condition fit decides. A
command that no rule allows is refused. The function of a rule (in `transitions.py`) builds the next
head and the data of the event. `docs/lifecycle.md` is generated from this table.

`decide` takes a job, a command and an instant. It returns a `Transition` (the event, the new head
and the head before), or `Stale` or `Refused`. Engines commit transitions; they do not decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from trellis.core import transitions as to
from trellis.core.commands import (
    FENCED,
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
from trellis.core.durations import Instant
from trellis.core.events import Event, EventKind, build_event
from trellis.core.job import Definition, Head, JobRecord, NewJob, first_head
from trellis.core.states import LIVE, WAITING, State
from trellis.core.transitions import Case, Change, build_case

#: Builds a named tuple from its fields in order and checks nothing; see `job.py`.
_make: Final = tuple.__new__
C = TypeVar("C", bound=Command)
AnyCase: TypeAlias = Case[Any]


class When(NamedTuple):
    """A condition: its text for the documentation and its function."""

    text: str
    holds: Callable[[AnyCase], bool]

    def __and__(self, other: When) -> When:
        """Return a condition that holds when both do."""
        one, two = self.holds, other.holds
        return When(f"{self.text}, {other.text}", lambda case: one(case) and two(case))


class Rule(NamedTuple, Generic[C]):
    """One row of the table."""

    command: type[C]
    sources: frozenset[State]
    when: When | None
    target: State
    event: EventKind
    change: Callable[[Case[C]], Change]


# -- conditions --------------------------------------------------------------------------------


def _attempts_left(case: AnyCase) -> bool:
    return case.head.attempt < case.definition.policy.retry.attempts


def _expired(case: AnyCase) -> bool:
    deadline = case.definition.deadline_at
    return deadline is not None and deadline <= case.now


def _requeued(case: Case[Release]) -> bool:
    return not case.command.begun or case.definition.policy.on_shutdown == "requeue"


def _on_lost(policy: str) -> When:
    return When(f"on_lost={policy}", lambda case: to.on_lost(case) == policy)


DUE: Final = When(
    "due, deadline not passed (and: queue open, type known, slot held)",
    lambda case: case.head.run_at <= case.now and not _expired(case),
)
CLEAN: Final = When("no item errors", lambda case: case.command.item_errors == 0)
PARTIAL: Final = When("some item errors", lambda case: case.command.item_errors > 0)
ASKED: Final = When("cancel requested", lambda case: case.head.asked_at is not None)
STOPPED: Final = When(
    "cancel requested, or the handler raised Cancelled",
    lambda case: case.command.cancelled or case.head.asked_at is not None,
)
RETRYABLE: Final = When("retryable", lambda case: case.command.retryable)
HOPELESS: Final = When("not retryable", lambda case: not case.command.retryable)
LEFT: Final = When("attempts left", _attempts_left)
NONE_LEFT: Final = When("none left", lambda case: not _attempts_left(case))
LETTERS: Final = When("dead letters on", lambda case: case.definition.policy.dead_letters)
NO_LETTERS: Final = When("dead letters off", lambda case: not case.definition.policy.dead_letters)
REQUEUED: Final = When("on_shutdown=requeue, or the handler had not begun", _requeued)
SHUT_DOWN: Final = When("on_shutdown=fail", lambda case: not _requeued(case))
UNBEGUN: Final = When("the handler had not begun", lambda case: not case.command.begun)
SHARED: Final = When(
    "other jobs were in the process", lambda case: case.command.begun and not case.command.alone
)
ALONE: Final = When("alone", lambda case: case.command.begun and case.command.alone)
LOOPING: Final = When(
    "crashes + 1 ≥ max_crashes",
    lambda case: case.head.crashes + 1 >= case.definition.policy.max_crashes,
)
BLOCKED: Final = When("the attempt blocks its key", lambda case: case.head.blocked)
BLOCKS: Final = _on_lost("block") & When("not blocked yet", lambda case: not case.head.blocked)
FORCED: Final = When(
    "forced (an operator, or the grace has passed)", lambda case: case.command.force
)
ASKS: Final = When(
    "not forced, not requested before",
    lambda case: not case.command.force and case.head.asked_at is None,
)
KEEPS_TIME: Final = When("the due time stays", lambda case: case.command.run_at is None)
PASSED: Final = When("deadline ≤ now", _expired)
UNCLAIMED: Final = When("never claimed", lambda case: case.head.claims == 0)

# -- the table ---------------------------------------------------------------------------------

_S, _E = State, EventKind
_ACTIVE: Final = frozenset({_S.ACTIVE})
_FAILED: Final = frozenset({_S.FAILED})
_DEAD: Final = frozenset({_S.DEAD})
#: What may have left failed items behind.
_INCOMPLETE: Final = frozenset({_S.COMPLETED_WITH_ERRORS, _S.FAILED, _S.DEAD})
_PENDING: Final = frozenset({_S.PENDING})
_RETRY: Final = frozenset({_S.RETRY})


def _lost(command: type[C], *also: When) -> tuple[Rule[Any], ...]:
    """Return the rules for a lost attempt, by `on_lost`; three commands share them."""

    def when(*parts: When) -> When:
        every = (*also, *parts)
        first = every[0]
        for part in every[1:]:
            first = first & part
        return first

    again = _on_lost("retry")
    spent, fail, stale = again & NONE_LEFT, _on_lost("fail"), _on_lost("stale")
    return (
        Rule(command, _ACTIVE, when(again, LEFT), _S.RETRY, _E.RETRY, to.lost_retry),
        Rule(command, _ACTIVE, when(spent, LETTERS), _S.DEAD, _E.DEAD, to.lost_dead),
        Rule(command, _ACTIVE, when(spent, NO_LETTERS), _S.FAILED, _E.FAILED, to.lost_failed),
        Rule(command, _ACTIVE, when(fail), _S.FAILED, _E.FAILED, to.lost_failed),
        Rule(command, _ACTIVE, when(stale), _S.STALE, _E.STALE, to.lost_stale),
        Rule(command, _ACTIVE, when(BLOCKS), _S.ACTIVE, _E.BLOCKED, to.blocked),
    )


_SPENT: Final = RETRYABLE & NONE_LEFT
_LOOP: Final = ALONE & LOOPING

RULES: Final[tuple[Rule[Any], ...]] = (
    Rule(Claim, WAITING, DUE, _S.ACTIVE, _E.STARTED, to.started),
    Rule(Complete, _ACTIVE, CLEAN, _S.COMPLETED, _E.COMPLETED, to.completed),
    Rule(
        Complete, _ACTIVE, PARTIAL, _S.COMPLETED_WITH_ERRORS, _E.COMPLETED, to.completed_with_errors
    ),
    Rule(Fail, _ACTIVE, STOPPED, _S.CANCELLED, _E.CANCELLED, to.cancelled),
    Rule(Fail, _ACTIVE, RETRYABLE & LEFT, _S.RETRY, _E.RETRY, to.failed_retry),
    Rule(Fail, _ACTIVE, _SPENT & LETTERS, _S.DEAD, _E.DEAD, to.failed_dead),
    Rule(Fail, _ACTIVE, _SPENT & NO_LETTERS, _S.FAILED, _E.FAILED, to.failed),
    Rule(Fail, _ACTIVE, HOPELESS, _S.FAILED, _E.FAILED, to.failed),
    Rule(Snooze, _ACTIVE, ASKED, _S.CANCELLED, _E.CANCELLED, to.cancelled),
    Rule(Snooze, _ACTIVE, None, _S.RETRY, _E.RETRY, to.snoozed),
    Rule(Release, _ACTIVE, ASKED, _S.CANCELLED, _E.CANCELLED, to.cancelled),
    Rule(Release, _ACTIVE, REQUEUED, _S.RETRY, _E.RETRY, to.released),
    Rule(Release, _ACTIVE, SHUT_DOWN, _S.FAILED, _E.FAILED, to.shut_down),
    Rule(LoseLease, _ACTIVE, ASKED, _S.CANCELLED, _E.CANCELLED, to.cancelled),
    *_lost(LoseLease),
    Rule(Crash, _ACTIVE, ASKED, _S.CANCELLED, _E.CANCELLED, to.cancelled),
    Rule(Crash, _ACTIVE, UNBEGUN, _S.RETRY, _E.RETRY, to.released),
    Rule(Crash, _ACTIVE, SHARED, _S.RETRY, _E.RETRY, to.suspected),
    Rule(Crash, _ACTIVE, _LOOP & LETTERS, _S.DEAD, _E.DEAD, to.crash_loop_dead),
    Rule(Crash, _ACTIVE, _LOOP & NO_LETTERS, _S.FAILED, _E.FAILED, to.crash_loop_failed),
    *_lost(Crash, ALONE),
    Rule(ReleaseKey, _ACTIVE, BLOCKED & ASKED, _S.CANCELLED, _E.CANCELLED, to.cancelled),
    *_lost(ReleaseKey, BLOCKED)[:4],
    Rule(Cancel, WAITING, None, _S.CANCELLED, _E.CANCELLED, to.cancelled),
    Rule(Cancel, _ACTIVE, FORCED, _S.CANCELLED, _E.CANCELLED, to.cancelled),
    Rule(Cancel, _ACTIVE, ASKS, _S.ACTIVE, _E.CANCEL_REQUESTED, to.cancel_requested),
    Rule(Resolve, _PENDING, UNCLAIMED, _S.PENDING, _E.RESOLVED, to.resolved),
    Rule(Adjust, _PENDING, None, _S.PENDING, _E.ADJUSTED, to.adjusted),
    Rule(Adjust, _RETRY, None, _S.RETRY, _E.ADJUSTED, to.adjusted),
    Rule(Adjust, _ACTIVE, KEEPS_TIME, _S.ACTIVE, _E.ADJUSTED, to.adjusted),
    Rule(Expire, LIVE, PASSED, _S.EXPIRED, _E.EXPIRED, to.expired),
    Rule(Skip, _PENDING, UNCLAIMED, _S.SKIPPED, _E.SKIPPED, to.skipped),
    Rule(Exhaust, WAITING, LETTERS, _S.DEAD, _E.DEAD, to.exhausted_dead),
    Rule(Exhaust, WAITING, NO_LETTERS, _S.FAILED, _E.FAILED, to.exhausted_failed),
    Rule(Retry, _FAILED, None, _S.PENDING, _E.RETRIED, to.revived),
    Rule(RetryItems, _INCOMPLETE, None, _S.PENDING, _E.RETRIED, to.revived),
    Rule(Replay, _DEAD, None, _S.PENDING, _E.RETRIED, to.revived),
    Rule(Dismiss, _DEAD, None, _S.DISMISSED, _E.DISMISSED, to.dismissed),
)

# -- decisions ---------------------------------------------------------------------------------


class Transition(NamedTuple):
    """A decision, ready to be committed."""

    #: After the decision: only `Adjust` and `Resolve` change it.
    definition: Definition
    #: The head it was decided against: its version and fence guard the commit.
    before: Head
    command: Command
    event: Event
    head: Head


class Stale(NamedTuple):
    """The fence of the command is not that of the job: its attempt has ended."""

    head: Head


class Refused(NamedTuple):
    """No rule allows this command in the present state."""

    head: Head
    reason: str


#: What `decide` needs of a rule, in a form that is fast to read: condition, change and event.
_Row: TypeAlias = tuple[Callable[[Any], bool] | None, Callable[[Any], Change], EventKind]


def _index() -> dict[type, dict[str, tuple[_Row, ...]]]:
    """Return the rules by command and state; by the state's text, because enums hash slowly."""
    table: dict[type, dict[str, tuple[_Row, ...]]] = {}
    for rule in RULES:
        row = (rule.when and rule.when.holds, rule.change, rule.event)
        for state in rule.sources:
            states = table.setdefault(rule.command, {})
            states[state.value] = (*states.get(state.value, ()), row)
    return table


_TABLE: Final = _index()


def decide(record: JobRecord, command: Command, now: Instant) -> Transition | Stale | Refused:
    """Return what the command does to this job at this instant."""
    definition, head = record
    if isinstance(command, FENCED) and command.fence != head.fence:
        return Stale(head)
    case = build_case(definition, head, command, now)
    for holds, change, kind in _TABLE[type(command)].get(head.state._value_, ()):
        if holds is None or holds(case):
            after, data = change(case)
            held = head if head.fence is not None else after
            event = build_event(
                kind, after.version, after.state, now, held.attempt, held.fence, data
            )
            if type(command) is Adjust or type(command) is Resolve:
                definition = to.redefine(definition, command)
            return _make(Transition, (definition, head, command, event, after))
    return Refused(head, _why_not(command, head))


#: Commands in the words of people, where the name of the class is not one.
_IN_WORDS: Final[dict[type, str]] = {
    Adjust: "A change of queue, priority, due time or attempts",
    Resolve: "The end of the jobs it follows",
    RetryItems: "A retry of failed items",
    ReleaseKey: "A release of the key",
}


def _why_not(command: Command, head: Head) -> str:
    name = _IN_WORDS.get(type(command), type(command).__name__)
    if head.state.value in _TABLE[type(command)]:
        return f"{name} is not possible now for this {head.state} job."
    return f"{name} is not possible for a job that is {head.state}."


def creation(at: Instant, run_at: Instant) -> tuple[Event, Head]:
    """Return the first event and the first head of a job accepted at this instant."""
    data = None if run_at == at else {"run_at": run_at}
    event = Event(
        kind=EventKind.CREATED,
        version=1,
        state=State.PENDING,
        at=at,
        attempt=0,
        fence=None,
        data=data,
    )
    return event, first_head(run_at)


def first_run_at(new: NewJob, now: Instant) -> Instant:
    """Return when a new job may start: not before it is accepted."""
    asked = now + new.delay if new.run_at is None else new.run_at
    return max(asked, now)
