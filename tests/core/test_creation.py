"""How a job begins: its definition, first event and head; and what a journal may not say."""

from __future__ import annotations

import pytest

from trellis.core.durations import SECOND
from trellis.core.events import Event, EventKind
from trellis.core.fold import evolve, fold
from trellis.core.job import NewJob, Relations, define
from trellis.core.lifecycle import creation, first_run_at
from trellis.core.states import State
from trellis.testing.builders import a_fence, a_job, a_record
from trellis.testing.clock import START


@pytest.mark.parametrize(
    ("new", "run_at"),
    [
        (a_job(), START),
        (a_job(delay=5), START + 5),
        (a_job(run_at=START + 7), START + 7),
        (a_job(run_at=START - 7), START),
        (a_job(run_at=START + 7, delay=99), START + 7),
    ],
)
def test_a_job_starts_when_asked_but_never_before_it_was_accepted(new: NewJob, run_at: int) -> None:
    assert first_run_at(new, START) == run_at


def test_a_definition_keeps_everything_that_was_asked() -> None:
    new = a_job(
        priority=3,
        key="user/7",
        tags=(("team", "a"),),
        config='{"a":1}',
        expect="abc",
        schema_version=4,
        clone_of=a_job().id,
        relations=Relations(tenant="acme"),
    )
    made = define(new, 12, START)
    assert (made.row, made.created_at) == (12, START)
    shared = set(new._fields) & set(made._fields) - {"deadline_at"}
    assert {name: getattr(made, name) for name in shared} == {
        name: getattr(new, name) for name in shared
    }


def test_a_deadline_is_an_instant_or_counts_from_acceptance() -> None:
    assert define(a_job(), 1, START).deadline_at is None
    assert define(a_job(deadline_at=START + 9), 1, START).deadline_at == START + 9
    assert define(a_job(deadline_in=9 * SECOND), 1, START).deadline_at == START + 9 * SECOND


@pytest.mark.parametrize("delay", [0, 5])
def test_the_first_event_folds_to_the_first_head(delay: int) -> None:
    event, head = creation(START, START + delay)
    assert fold([event]) == head
    assert (event.kind, event.version, event.at) == (EventKind.CREATED, 1, START)
    assert (head.state, head.run_at, head.claims) == (State.PENDING, START + delay, 0)


def test_an_empty_journal_has_no_head() -> None:
    assert fold([]) is None


def test_a_note_in_the_journal_changes_nothing() -> None:
    event, head = creation(START, START)
    note = Event(
        EventKind.STALE_COMPLETION_IGNORED, 0, State.PENDING, START, 1, a_fence(), {"command": "x"}
    )
    assert fold([event, note, note]) == head


@pytest.mark.parametrize(
    "broken",
    [
        Event(EventKind.STARTED, 1, State.ACTIVE, START, 1, a_fence(), None),
        Event(EventKind.CREATED, 2, State.PENDING, START, 0, None, None),
    ],
)
def test_a_journal_must_begin_with_the_creation(broken: Event) -> None:
    with pytest.raises(ValueError, match="must begin"):
        fold([broken])


@pytest.mark.parametrize("version", [1, 3])
def test_a_gap_or_a_repetition_in_a_journal_is_noticed(version: int) -> None:
    started = Event(EventKind.STARTED, version, State.ACTIVE, START, 1, a_fence(), None)
    with pytest.raises(ValueError, match="cannot follow"):
        evolve(a_record().head, started)


@pytest.mark.parametrize("kind", [EventKind.CREATED, EventKind.STALE_COMPLETION_IGNORED])
def test_a_job_is_not_created_twice(kind: EventKind) -> None:
    event = Event(kind, 2, State.PENDING, START, 0, None, None)
    with pytest.raises(ValueError, match="cannot follow"):
        evolve(a_record().head, event)
