"""`decide`: one job, one command, one moment in; one value out. The only place a job changes state.

The value is a `Transition` (the event, the new head, and what they were decided against), or the
reason why there is none. An engine commits transitions; it never makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from trellis.core.changes import Change, build_case
from trellis.core.commands import FENCED, Command
from trellis.core.events import Event, EventKind, build_event
from trellis.core.job import Definition, Head, JobRecord, NewJob, first_head
from trellis.core.rules import RULES
from trellis.core.spans import Instant
from trellis.core.states import State

#: Builds a named tuple from its fields in order and checks nothing; see `job.py`.
_make: Final = tuple.__new__


class Transition(NamedTuple):
    """A decision, ready to be committed."""

    definition: Definition
    #: The head it was decided against: its version and fence guard the commit.
    before: Head
    command: Command
    event: Event
    head: Head


class Stale(NamedTuple):
    """The command's fence does not hold: another attempt, or the end, has come since."""

    head: Head


class Refused(NamedTuple):
    """No rule allows this command now."""

    head: Head
    reason: str


#: What `decide` needs of a rule, in a form that is read fast: condition, change and event.
_Line: TypeAlias = tuple[Callable[[Any], bool] | None, Callable[[Any], Change], EventKind]


def _index() -> dict[type, dict[str, tuple[_Line, ...]]]:
    """Sort the rules by command and state; by the state's word, because enums hash slowly."""
    table: dict[type, dict[str, tuple[_Line, ...]]] = {}
    for rule in RULES:
        line = (rule.when and rule.when.holds, rule.change, rule.event)
        for state in rule.sources:
            places = table.setdefault(rule.command, {})
            places[state.value] = (*places.get(state.value, ()), line)
    return table


_TABLE: Final = _index()


def decide(record: JobRecord, command: Command, now: Instant) -> Transition | Stale | Refused:
    """Decide what the command does to this job now."""
    definition, head = record
    if isinstance(command, FENCED) and command.fence != head.fence:
        return Stale(head)
    case = build_case(definition, head, command, now)
    for holds, change, kind in _TABLE[type(command)].get(head.state._value_, ()):
        if holds is None or holds(case):
            after, data = change(case)
            who = head if head.fence is not None else after
            event = build_event(kind, after.version, after.state, now, who.attempt, who.fence, data)
            return _make(Transition, (definition, head, command, event, after))
    return Refused(head, _why_not(command, head))


def _why_not(command: Command, head: Head) -> str:
    name = type(command).__name__
    if head.state.value in _TABLE[type(command)]:
        return f"{name} does not apply to this {head.state} job at this moment."
    return f"{name} is not possible for a job that is {head.state}."


def born(at: Instant, run_at: Instant) -> tuple[Event, Head]:
    """Return the first event and head of a job accepted at this moment."""
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
    """Return when a new job may start: never before it was accepted."""
    asked = now + new.delay if new.run_at is None else new.run_at
    return max(asked, now)
