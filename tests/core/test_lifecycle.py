"""Every state meets every command; the result must be that of the table written by hand."""

from __future__ import annotations

from typing import Any, Final, get_args

import pytest

from tests.core.lifecycle_table import EXPECTED, Line, expected
from tests.core.situations import (
    BACKOFF,
    LATER,
    NEXT,
    NOW,
    OURS,
    OWN_DELAY,
    SNOOZE,
    WRONG,
    Situation,
    fenced_orders,
    jobs,
    situations,
)
from tools.lifecycle_page import render_markdown
from trellis.core.commands import (
    Adjust,
    Command,
    FencedCommand,
    ReleaseKey,
    Resolve,
    RetryItems,
)
from trellis.core.fold import evolve
from trellis.core.job import Fence, Head
from trellis.core.lifecycle import RULES, Refused, Rule, Stale, Transition, decide
from trellis.core.states import State
from trellis.core.transitions import Case

COMMANDS: Final[tuple[type[Command], ...]] = get_args(Command)
FENCED: Final[tuple[type[Command], ...]] = get_args(FencedCommand)


def test_there_are_twelve_states_and_eighteen_commands() -> None:
    assert len(State) == 12
    assert {kind.__name__ for kind in COMMANDS} == {line.command for line in EXPECTED}
    assert len(COMMANDS) == 18


#: What a refusal calls the commands whose names are no words of people.
WORDS = {
    Adjust: "A change of queue, priority, due time or attempts",
    Resolve: "The end of the jobs it follows",
    RetryItems: "A retry of failed items",
    ReleaseKey: "A release of the key",
}


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", State)
def test_each_state_answers_each_command_as_the_design_says(
    state: State, kind: type[Command]
) -> None:
    met = 0
    for situation in situations(state, kind):
        met += 1
        line = expected(kind.__name__, state, situation.facts)
        decision = decide(situation.record, situation.command, NOW)
        if line is not None:
            _check_transition(situation, line, decision)
        elif kind in FENCED and "fence" not in situation.facts:
            assert decision == Stale(situation.record.head), situation
        else:
            assert isinstance(decision, Refused), situation
            assert decision.head == situation.record.head
            assert decision.reason.startswith(f"{WORDS.get(kind, kind.__name__)} is not possible")
    assert met


def _check_transition(
    situation: Situation, line: Line, decision: Transition | Stale | Refused
) -> None:
    assert isinstance(decision, Transition), (situation, line)
    before, command = situation.record.head, situation.command
    if not isinstance(command, Adjust | Resolve):
        assert decision.definition is situation.record.definition
    assert decision.before is before
    assert decision.command is command
    assert _without_words(decision.head) == _expected_head(before, line, situation), situation
    event = decision.event
    assert (event.kind, event.version, event.state) == (line.event, before.version + 1, line.target)
    assert event.at == NOW
    spoken_of = before if before.state is State.ACTIVE else decision.head
    assert (event.attempt, event.fence) == (spoken_of.attempt, spoken_of.fence)
    assert evolve(before, event) == decision.head, situation


def _without_words(head: Head) -> tuple[object, ...]:
    return (*head._replace(error=None), head.error and head.error.code)


def _expected_head(before: Head, line: Line, situation: Situation) -> tuple[object, ...]:
    """Build the next head from the words of the line alone."""
    changed: dict[str, Any] = {"state": line.target, "version": before.version + 1}
    if line.target is not State.ACTIVE:
        ended = line.target not in {State.PENDING, State.RETRY}
        changed |= {"fence": None, "claimed_at": None, "asked_at": None, "blocked": False}
        changed |= {"suspect": False, "finished_at": NOW if ended else None}
    wait = OWN_DELAY if "own delay" in situation.facts else BACKOFF
    meanings: dict[str, dict[str, Any]] = {
        "new fence": {"fence": NEXT, "claimed_at": NOW},
        "claims+1": {"claims": before.claims + 1},
        "attempt+1": {"attempt": before.attempt + 1},
        "attempt-1": {"attempt": before.attempt - 1},
        "attempt=0": {"attempt": 0},
        "crashes+1": {"crashes": before.crashes + 1},
        "crashes=0": {"crashes": 0},
        "generation+1": {"generation": before.generation + 1},
        "run_at=now": {"run_at": NOW},
        "not before now": {"run_at": max(before.run_at, NOW)},
        "adjusted": _adjusted(before, situation),
        "run_at=wait": {"run_at": NOW + wait},
        "run_at=snooze": {"run_at": NOW + SNOOZE},
        "asked": {"asked_at": NOW},
        "blocked": {"blocked": True},
        "suspect": {"suspect": True},
    }
    code = before.error and before.error.code
    for effect in line.effects:
        if effect == "no error":
            code = None
        elif effect.startswith("error="):
            code = effect.removeprefix("error=")
        else:
            changed |= meanings[effect]
    return (*before._replace(**changed, error=None), code)


def _adjusted(before: Head, situation: Situation) -> dict[str, Any]:
    """Return what an operator's change leaves as it was, and its new due time."""
    due = LATER if "new time" in situation.facts else before.run_at
    return {"run_at": due, "suspect": before.suspect}


def test_an_adjustment_changes_only_what_it_names() -> None:
    for record, _ in jobs(State.PENDING):
        before = record.definition
        decision = decide(record, Adjust(queue="other", priority=3), NOW)
        assert isinstance(decision, Transition)
        assert decision.definition == before._replace(queue="other", priority=3)
        assert decision.event.data == {
            "queue": "other",
            "priority": 3,
            "was": {"queue": before.queue, "priority": before.priority},
            "actor": "operator",
        }
        more = decide(record, Adjust(attempts=9), NOW)
        assert isinstance(more, Transition)
        policy = more.definition.policy
        assert (more.definition.attempts, policy.retry.attempts) == (9, 9)
        assert policy.timeout == before.policy.timeout


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("state", State)
def test_a_stale_fence_changes_nothing_in_any_state(state: State, wrong: Fence) -> None:
    for command, _ in fenced_orders(wrong):
        for record, _ in jobs(state):
            assert decide(record, command, NOW) == Stale(record.head)


def test_the_right_fence_is_stale_once_the_attempt_is_over() -> None:
    for state in set(State) - {State.ACTIVE}:
        for command, _ in fenced_orders(OURS):
            for record, _ in jobs(state):
                assert isinstance(decide(record, command, NOW), Stale)


def test_no_rule_is_unreachable_and_none_is_listed_twice() -> None:
    fired: set[int] = set()
    for state in State:
        for kind in COMMANDS:
            for situation in situations(state, kind):
                rule = _first_fitting(situation, state)
                decision = decide(situation.record, situation.command, NOW)
                assert (rule is not None) == isinstance(decision, Transition)
                if rule is not None and isinstance(decision, Transition):
                    fired.add(id(rule))
                    assert (decision.head.state, decision.event.kind) == (rule.target, rule.event)
    unreached = [rule for rule in RULES if id(rule) not in fired]
    assert unreached == []


def _first_fitting(situation: Situation, state: State) -> Rule[Any] | None:
    if type(situation.command) in FENCED and "fence" not in situation.facts:
        return None
    case = Case(situation.record.definition, situation.record.head, situation.command, NOW)
    for rule in RULES:
        named = rule.command is type(situation.command) and state in rule.sources
        if named and (rule.when is None or rule.when.holds(case)):
            return rule
    return None


def test_the_generated_page_names_every_state_and_every_rule() -> None:
    page = render_markdown()
    for state in State:
        assert f"| `{state}` |" in page
    for line in EXPECTED:
        assert f"| `{line.target}` | `{line.event}` |" in page
    assert page.count("\n| ") >= len(State) + len(RULES)
