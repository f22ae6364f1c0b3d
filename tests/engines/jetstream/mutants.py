"""Ways to break the JetStream engine on purpose, each with the test that catches it.

Each is one small fault: an expectation left out of a write, a hint forgotten, a fact not read. A
mutant changes this process through a `MonkeyPatch`, whose undo restores the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pytest

from tests.conformance.mutants import Mutant
from trellis.admin import janitor, projector
from trellis.core.states import State
from trellis.engines.jetstream import claim, commit, keys, removal
from trellis.engines.jetstream.claim import ClaimVerb
from trellis.engines.jetstream.commit import CommitVerb
from trellis.engines.jetstream.create import CreateVerb
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.keys import KeyState
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.locks import LockTable
from trellis.engines.jetstream.notes import NoteVerbs
from trellis.engines.jetstream.sessions import SessionTable
from trellis.engines.jetstream.settings import Openness
from trellis.engines.sql import projection
from trellis.engines.values import NoteResult

_RACES: Final = "tests/engines/jetstream/test_races.py"
_TORN: Final = "tests/engines/jetstream/test_torn_writes.py"


class Fault(NamedTuple):
    """A fault, and the test that must fail with it: of the suite, or in a file of its own."""

    mutate: Mutant
    caught_by: str

    @property
    def is_by_suite(self) -> bool:
        """Whether a test of the suite catches it."""
        return not self.caught_by.startswith("tests/")


def _answer(owner: object, name: str, answer: object) -> Mutant:
    """Let a coroutine function do nothing and answer this."""

    async def answering(*_: object, **__: object) -> object:
        return answer

    return lambda patch: patch.setattr(owner, name, answering)


def _without_expectations(is_meant: Callable[[str], bool]) -> Mutant:
    """Write messages on some subjects whatever was written since they were decided."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        honest = Link.write

        async def write(self: Link, *messages: Message) -> object:
            sent = (
                each._replace(expect=None) if is_meant(each.subject) else each for each in messages
            )
            return await honest(self, *sent)

        patch.setattr(Link, "write", write)

    return mutate


def _each_without_expectations(is_meant: Callable[[str], bool]) -> Mutant:
    """Write messages that are sent together, each alone, whatever was written since."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        honest = Link.write_each

        async def write_each(self: Link, messages: Sequence[Message]) -> object:
            sent = [
                each._replace(expect=None) if is_meant(each.subject) else each for each in messages
            ]
            return await honest(self, sent)

        patch.setattr(Link, "write_each", write_each)

    return mutate


def _is_event(*kinds: str) -> Callable[[str], bool]:
    def is_meant(subject: str) -> bool:
        tokens = subject.split(".")
        is_event = len(tokens) == 6 and tokens[1] == "jobs" and tokens[2] != "trellis"
        return is_event and (tokens[5] in kinds if kinds else tokens[5] != "created")

    return is_meant


def _hint_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Draft, "hint", lambda _draft, _current: None)


def _only_acknowledge(patch: pytest.MonkeyPatch) -> None:
    async def postpone(self: ClaimVerb, work: Any, _current: object) -> None:  # noqa: ANN401
        await self._ack(work)

    patch.setattr(ClaimVerb, "_postpone", postpone)


def _purge_all(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: removal.RemovalVerbs, current: Any) -> None:  # noqa: ANN401
        subjects = self._store.subjects
        await self._store.link.api(
            f"STREAM.PURGE.{subjects.jobs}", {"filter": subjects.whole(current.job)}
        )

    patch.setattr(removal.RemovalVerbs, "_delete", delete)


def _renew_anything(patch: pytest.MonkeyPatch) -> None:
    honest = SessionTable.change

    async def change(self: SessionTable, session: Any, change: Any) -> object:  # noqa: ANN401
        return await honest(self, session, lambda value: change(value._replace(ended_at=None)))

    patch.setattr(SessionTable, "change", change)


def _keep_slots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keys, "slot_effect", lambda _: "keep")


def _follow_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "is_end", lambda _: False)


def _open_always(patch: pytest.MonkeyPatch) -> None:
    honest = Openness.read

    async def read(*args: Any) -> Openness:  # noqa: ANN401
        return (await honest(*args))._replace(paused=frozenset())

    patch.setattr(Openness, "read", read)


def _place_afterwards(patch: pytest.MonkeyPatch) -> None:
    intend, write = SessionTable.intend, ClaimVerb._write

    async def later(*_: object) -> None:
        return None

    async def first(self: ClaimVerb, starts: Any, *others: Any) -> object:  # noqa: ANN401
        answer = await write(self, starts, *others)
        held = [claim._held(each) for each in starts]
        fence = starts[0].transition.head.fence
        await intend(self._sessions, fence.session, held)
        return answer

    patch.setattr(SessionTable, "intend", later)
    patch.setattr(ClaimVerb, "_write", first)


def _give_up_whatever_it_does(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(janitor, "WAITING", frozenset(State))


def _store_any_page(patch: pytest.MonkeyPatch) -> None:
    honest = projection.project

    async def project(*given: Any) -> bool:  # noqa: ANN401
        tx, numbers, stream, places, changes = given
        before, after = places
        stored = await projection.place(tx, stream)
        at = before if stored is None else before._replace(sequence=stored.sequence)
        return await honest(tx, numbers, stream, (at, after), changes)

    patch.setattr(projection, "project", project)


def _divide_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(projector, "whole", lambda page, _size: page)


def _leave_out_of_line(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyState, "has", lambda _state, _job_id: True)


MUTANTS: Final[dict[str, Fault]] = {
    "store a decision whatever happened since": Fault(
        _without_expectations(_is_event()),
        "TestConflicts::test_of_concurrent_settlements_exactly_one_is_stored",
    ),
    "store a second job with the same id": Fault(
        _without_expectations(_is_event("created")),
        "TestCreate::test_the_same_job_sent_twice_is_stored_once",
    ),
    "write the state of a key whatever happened since": Fault(
        _without_expectations(lambda subject: ".jobs.trellis.keys." in subject),
        "TestAdmission::test_concurrent_creates_never_let_in_one_too_many",
    ),
    "write a mark whatever happened since": Fault(
        _without_expectations(lambda subject: ".jobs.trellis.marks." in subject),
        "TestDedupe::test_concurrent_creates_of_a_dedupe_key_make_one_job",
    ),
    "take a lock whatever happened since": Fault(
        _without_expectations(lambda subject: ".state.lock." in subject),
        "TestLocks::test_of_many_who_ask_at_once_one_has_it",
    ),
    "hint at no job that gets a slot": Fault(
        _hint_nothing, "TestSlots::test_the_next_of_a_key_waits_until_the_slot_is_free"
    ),
    "forget a job that is looked at before its time": Fault(
        _only_acknowledge, "TestClaimTimes::test_a_job_is_not_claimed_before_its_time"
    ),
    "read no mark": Fault(
        _answer(CreateVerb, "_marked", None),
        "TestDedupe::test_a_second_job_of_a_dedupe_key_is_merged_into_the_first",
    ),
    "claim under a session that was reaped": Fault(
        _answer(SessionTable, "is_over", answer=False),
        "TestClaimLimits::test_an_unknown_or_ended_session_claims_nothing",
    ),
    "renew a session that was reaped": Fault(
        _renew_anything, "TestReap::test_a_reaped_session_cannot_be_renewed"
    ),
    "forget what a session has claimed": Fault(
        _answer(SessionTable, "lost", {}),
        "TestReap::test_the_claims_of_a_reaped_session_are_due_as_lost",
    ),
    "delete the last event of a removed job, too": Fault(
        _purge_all, "TestRemoval::test_a_job_in_any_ended_state_is_removed"
    ),
    "forget a slot release": Fault(
        _keep_slots, "TestAdmission::test_a_busy_key_rejects_and_names_its_holder"
    ),
    "free a slot whose handler may still run": Fault(
        _answer(CommitVerb, "_linger_until", None),
        "TestRemoval::test_a_slot_whose_handler_may_still_run_outlives_its_removed_job",
    ),
    "free a lock whose handler may still run": Fault(
        _answer(LockTable, "linger", None),
        "TestLockLingering::test_the_lock_stays_held_until_the_worker_reports_that_the_handler_stopped",
    ),
    "believe any note": Fault(
        _answer(NoteVerbs, "_note_all", NoteResult.NOTED),
        "TestFences::test_an_old_attempt_notes_nothing",
    ),
    "let what follows a job wait for ever": Fault(
        _follow_nothing,
        "TestDependencies::test_a_job_that_follows_another_starts_only_after_its_success",
    ),
    "claim from a paused queue": Fault(
        _open_always, "TestQueues::test_nothing_is_claimed_from_a_paused_queue"
    ),
    "create a plain job whatever happened since": Fault(
        _each_without_expectations(_is_event("created")),
        "TestCreate::test_the_same_job_sent_twice_is_stored_once",
    ),
    "start a plain job whatever happened since": Fault(
        _each_without_expectations(_is_event("started")),
        "TestCancel::test_a_waiting_job_is_cancelled_at_once",
    ),
    "settle a plain job whatever happened since": Fault(
        _each_without_expectations(
            lambda subject: _is_event()(subject) and not subject.endswith(".started")
        ),
        "TestConflicts::test_of_concurrent_settlements_exactly_one_is_stored",
    ),
    "write the place of a claim after its start": Fault(
        _place_afterwards,
        f"{_RACES}::test_what_a_cancelled_claim_has_started_is_found_by_its_session",
    ),
    "give up a job whatever its state is": Fault(
        _give_up_whatever_it_does,
        "tests/admin/test_janitor.py::test_an_advisory_about_a_job_that_runs_changes_nothing",
    ),
    "store a page whatever another projector has stored": Fault(
        _store_any_page,
        "tests/admin/test_projector.py::test_a_page_that_is_stored_is_not_stored_again",
    ),
    "end a page within a write": Fault(
        _divide_writes,
        "tests/admin/test_projected_flow.py::test_a_full_page_ends_with_a_whole_write",
    ),
    "leave a job out of its line": Fault(
        _leave_out_of_line,
        f"{_TORN}::test_a_keyed_job_runs_whatever_was_kept_of_its_creation",
    ),
}
