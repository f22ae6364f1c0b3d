"""The one table of the lifecycle: which command does what in which state.

`RULES` is read from top to bottom; the first rule whose command, state and condition fit decides.
What no rule allows is refused. `docs/lifecycle.md` is generated from this table. A rule's `change`
builds the next head and says what the event must carry so that `fold` can build the same head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from trellis.core import changes as to
from trellis.core.changes import Case, Change
from trellis.core.commands import (
    Cancel,
    Claim,
    Command,
    Complete,
    Crash,
    Dismiss,
    Expire,
    Fail,
    LoseLease,
    Release,
    ReleaseKey,
    Replay,
    Retry,
    Skip,
    Snooze,
)
from trellis.core.events import EventKind
from trellis.core.policy import OnLost
from trellis.core.states import LIVE, WAITING, State

C = TypeVar("C", bound=Command)


class When(NamedTuple, Generic[C]):
    """A condition: in words for people, as a function for the machine."""

    words: str
    holds: Callable[[Case[C]], bool]


@dataclass(frozen=True, slots=True)
class Rule(Generic[C]):
    """One line of the table."""

    command: type[C]
    sources: frozenset[State]
    when: When[C] | None
    target: State
    event: EventKind
    change: Callable[[Case[C]], Change]


AnyCase: TypeAlias = Case[Any]
_ACTIVE: Final = frozenset({State.ACTIVE})


def _asked(case: AnyCase) -> bool:
    return case.head.asked_at is not None


def _attempts_left(case: AnyCase) -> bool:
    return case.head.attempt < case.definition.policy.retry.attempts


def _dead_letters(case: AnyCase) -> bool:
    return case.definition.policy.dead_letters


def _expired(case: AnyCase) -> bool:
    deadline = case.definition.deadline_at
    return deadline is not None and deadline <= case.now


def _crash_loop(case: Case[Crash]) -> bool:
    return case.head.crashes + 1 >= case.definition.policy.max_crashes


def _all(*parts: When[Any] | Callable[[AnyCase], bool]) -> Callable[[AnyCase], bool]:
    tests = [part.holds if isinstance(part, When) else part for part in parts]
    return lambda case: all(test(case) for test in tests)


_CANCEL_ASKED: Final[When[Any]] = When("cancel was asked", _asked)


def _lost(
    command: type[C], words: str, applies: Callable[[AnyCase], bool]
) -> tuple[Rule[Any], ...]:
    """What a lost attempt leads to, by the type's `on_lost`; shared by three commands."""

    def when(policy: OnLost, more: str, *tests: Callable[[AnyCase], bool]) -> When[Any]:
        def on_lost(case: AnyCase) -> bool:
            return to.on_lost(case) == policy

        text = ", ".join(filter(None, (words, f"on_lost={policy}", more)))
        return When(text, _all(applies, on_lost, *tests))

    def none_left(case: AnyCase) -> bool:
        return not _attempts_left(case)

    def no_letters(case: AnyCase) -> bool:
        return not _dead_letters(case)

    return (
        Rule(
            command,
            _ACTIVE,
            when("retry", "attempts left", _attempts_left),
            State.RETRY,
            EventKind.RETRY,
            to.lost_retry,
        ),
        Rule(
            command,
            _ACTIVE,
            when("retry", "none left, dead letters on", none_left, _dead_letters),
            State.DEAD,
            EventKind.DEAD,
            to.lost_dead,
        ),
        Rule(
            command,
            _ACTIVE,
            when("retry", "none left, dead letters off", none_left, no_letters),
            State.FAILED,
            EventKind.FAILED,
            to.lost_failed,
        ),
        Rule(command, _ACTIVE, when("fail", ""), State.FAILED, EventKind.FAILED, to.lost_failed),
        Rule(command, _ACTIVE, when("stale", ""), State.STALE, EventKind.STALE, to.lost_stale),
    )


def _block(command: type[C], words: str, applies: Callable[[AnyCase], bool]) -> Rule[Any]:
    def blocks(case: AnyCase) -> bool:
        return to.on_lost(case) == "block" and not case.head.blocked

    text = ", ".join(filter(None, (words, "on_lost=block")))
    return Rule(
        command, _ACTIVE, When(text, _all(applies, blocks)), State.ACTIVE, EventKind.BLOCKED,
        to.blocked,
    )


def _always(_: AnyCase) -> bool:
    return True


def _is_alone(case: Case[Crash]) -> bool:
    return case.command.begun and case.command.alone


def _fail_rules() -> tuple[Rule[Any], ...]:
    def cancelled(case: Case[Fail]) -> bool:
        return case.command.cancelled or _asked(case)

    def retryable(case: Case[Fail]) -> bool:
        return case.command.retryable

    def spent(case: Case[Fail]) -> bool:
        return case.command.retryable and not _attempts_left(case)

    return (
        Rule(
            Fail,
            _ACTIVE,
            When("cancel was asked, or the handler raised Cancelled", cancelled),
            State.CANCELLED,
            EventKind.CANCELLED,
            to.cancelled,
        ),
        Rule(
            Fail,
            _ACTIVE,
            When("retryable, attempts left", _all(retryable, _attempts_left)),
            State.RETRY,
            EventKind.RETRY,
            to.failed_retry,
        ),
        Rule(
            Fail,
            _ACTIVE,
            When("retryable, none left, dead letters on", _all(spent, _dead_letters)),
            State.DEAD,
            EventKind.DEAD,
            to.failed_dead,
        ),
        Rule(
            Fail,
            _ACTIVE,
            When("retryable, none left, dead letters off", spent),
            State.FAILED,
            EventKind.FAILED,
            to.failed,
        ),
        Rule(
            Fail,
            _ACTIVE,
            When("not retryable", lambda case: not case.command.retryable),
            State.FAILED,
            EventKind.FAILED,
            to.failed,
        ),
    )


def _release_rules() -> tuple[Rule[Any], ...]:
    def requeues(case: Case[Release]) -> bool:
        return not case.command.begun or case.definition.policy.on_shutdown == "requeue"

    return (
        Rule(Release, _ACTIVE, _CANCEL_ASKED, State.CANCELLED, EventKind.CANCELLED, to.cancelled),
        Rule(
            Release,
            _ACTIVE,
            When("on_shutdown=requeue, or the handler had not begun", requeues),
            State.RETRY,
            EventKind.RETRY,
            to.released,
        ),
        Rule(
            Release,
            _ACTIVE,
            When("on_shutdown=fail", lambda case: not requeues(case)),
            State.FAILED,
            EventKind.FAILED,
            to.shut_down,
        ),
    )


def _crash_rules() -> tuple[Rule[Any], ...]:
    def suspects(case: Case[Crash]) -> bool:
        return case.command.begun and not case.command.alone

    return (
        Rule(Crash, _ACTIVE, _CANCEL_ASKED, State.CANCELLED, EventKind.CANCELLED, to.cancelled),
        Rule(
            Crash,
            _ACTIVE,
            When("the handler had not begun", lambda case: not case.command.begun),
            State.RETRY,
            EventKind.RETRY,
            to.released,
        ),
        Rule(
            Crash,
            _ACTIVE,
            When("other jobs were in the process", suspects),
            State.RETRY,
            EventKind.RETRY,
            to.suspected,
        ),
        Rule(
            Crash,
            _ACTIVE,
            When(
                "alone, crashes + 1 ≥ max_crashes, dead letters on",
                _all(_is_alone, _crash_loop, _dead_letters),
            ),
            State.DEAD,
            EventKind.DEAD,
            to.crash_loop_dead,
        ),
        Rule(
            Crash,
            _ACTIVE,
            When("alone, crashes + 1 ≥ max_crashes, dead letters off", _all(_is_alone, _crash_loop)),
            State.FAILED,
            EventKind.FAILED,
            to.crash_loop_failed,
        ),
        *_lost(Crash, "alone", _is_alone),
        _block(Crash, "alone", _is_alone),
    )


def _cancel_rules() -> tuple[Rule[Any], ...]:
    def asks(case: Case[Cancel]) -> bool:
        return not case.command.force and not _asked(case)

    return (
        Rule(Cancel, WAITING, None, State.CANCELLED, EventKind.CANCELLED, to.cancelled),
        Rule(
            Cancel,
            _ACTIVE,
            When("forced (an operator, or the grace has passed)", lambda case: case.command.force),
            State.CANCELLED,
            EventKind.CANCELLED,
            to.cancelled,
        ),
        Rule(
            Cancel,
            _ACTIVE,
            When("cooperative, not asked before", asks),
            State.ACTIVE,
            EventKind.CANCEL_REQUESTED,
            to.asked,
        ),
    )


def _release_key_rules() -> tuple[Rule[Any], ...]:
    def is_blocked(case: Case[ReleaseKey]) -> bool:
        return case.head.blocked

    return _lost(ReleaseKey, "the attempt blocks its key", is_blocked)[:4]


def _claimable(case: Case[Claim]) -> bool:
    return case.head.run_at <= case.now and not _expired(case)


RULES: Final[tuple[Rule[Any], ...]] = (
    Rule(
        Claim,
        WAITING,
        When("due, deadline not passed (and: queue open, type known, slot held)", _claimable),
        State.ACTIVE,
        EventKind.STARTED,
        to.started,
    ),
    Rule(
        Complete,
        _ACTIVE,
        When("no item errors", lambda case: case.command.item_errors == 0),
        State.COMPLETED,
        EventKind.COMPLETED,
        to.completed,
    ),
    Rule(
        Complete,
        _ACTIVE,
        When("some item errors", lambda case: case.command.item_errors > 0),
        State.COMPLETED_WITH_ERRORS,
        EventKind.COMPLETED,
        to.completed_with_errors,
    ),
    *_fail_rules(),
    Rule(Snooze, _ACTIVE, _CANCEL_ASKED, State.CANCELLED, EventKind.CANCELLED, to.cancelled),
    Rule(Snooze, _ACTIVE, None, State.RETRY, EventKind.RETRY, to.snoozed),
    *_release_rules(),
    Rule(LoseLease, _ACTIVE, _CANCEL_ASKED, State.CANCELLED, EventKind.CANCELLED, to.cancelled),
    *_lost(LoseLease, "", _always),
    _block(LoseLease, "", _always),
    *_crash_rules(),
    *_release_key_rules(),
    *_cancel_rules(),
    Rule(
        Expire, LIVE, When("deadline ≤ now", _expired), State.EXPIRED, EventKind.EXPIRED, to.expired
    ),
    Rule(
        Skip,
        frozenset({State.PENDING}),
        When("never claimed", lambda case: case.head.claims == 0),
        State.SKIPPED,
        EventKind.SKIPPED,
        to.skipped,
    ),
    Rule(Retry, frozenset({State.FAILED}), None, State.PENDING, EventKind.RETRIED, to.revived),
    Rule(Replay, frozenset({State.DEAD}), None, State.PENDING, EventKind.RETRIED, to.revived),
    Rule(
        Dismiss, frozenset({State.DEAD}), None, State.DISMISSED, EventKind.DISMISSED, to.dismissed
    ),
)
