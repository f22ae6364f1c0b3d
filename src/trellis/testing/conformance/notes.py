"""Notes of attempts: stored, fenced, without a change of version."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Release, RetryItems
from trellis.core.durations import SECOND
from trellis.core.job import JobRecord
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import (
    Activity,
    Begun,
    Heartbeat,
    Item,
    ItemEntry,
    LogEntry,
    LogLine,
    Note,
    NoteBody,
    NoteResult,
    Phase,
    Progress,
)
from trellis.testing.builders import a_job, a_job_id, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept_one,
    claim_one,
    head,
    journal,
    settle,
    start,
)
from trellis.testing.conformance.suite import EngineSuite


async def report(engine: Engine, taken: JobRecord, *bodies: NoteBody) -> None:
    """Store notes of an attempt that must still hold its job."""
    row, claims, fence = taken.definition.row, taken.head.claims, fence_of(taken)
    results = await engine.note([Note(row, claims, fence, body) for body in bodies])
    assert results == [NoteResult.NOTED] * len(bodies)


async def activity(engine: Engine, taken: JobRecord) -> Activity:
    """Return the activity of the attempt; there must be some."""
    found = await engine.activity(taken.definition.id)
    assert found is not None
    return found


class TestNotes(EngineSuite):
    """Progress, phase and items of the latest attempt, as last reported."""

    async def test_a_job_without_notes_has_no_activity(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        assert await engine.activity(record.definition.id) is None
        assert await engine.activity(a_job_id()) is None

    async def test_every_note_of_an_attempt_is_stored(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        progress = Progress(3, 10.5, "render", "Seite 3 von Zoë")
        await report(
            engine,
            taken,
            Begun(clock.now() - 5),
            Phase("upload"),
            progress,
            Item("b.md", "in_progress"),
            Item("a.md", "failed", "no such file"),
        )
        assert await activity(engine, taken) == Activity(
            1,
            clock.now() - 5,
            clock.now(),
            progress,
            "upload",
            (Item("a.md", "failed", "no such file"), Item("b.md", "in_progress")),
        )

    async def test_a_note_moves_no_version_and_leaves_no_event(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        before = await journal(engine, taken)
        await report(
            engine, taken, Begun(1), Heartbeat(), Progress(1), Phase("x"), LogLine("a", "b")
        )
        assert await head(engine, taken) == taken.head
        assert await journal(engine, taken) == before

    async def test_later_progress_takes_the_place_of_earlier(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await report(engine, taken, Progress(1, 10, "a", "b"), Progress(2))
        assert (await activity(engine, taken)).progress == Progress(2)

    async def test_an_item_has_one_status_at_a_time(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await report(engine, taken, Item("a", "in_progress"), Item("b", "in_progress"))
        await report(engine, taken, Item("a", "completed"), Item("b", "skipped", "unchanged"))
        items = (await activity(engine, taken)).items
        assert items == (Item("a", "completed"), Item("b", "skipped", "unchanged"))

    async def test_a_new_phase_starts_without_progress_and_keeps_the_items(
        self, engine: Engine
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        one, two = Item("a", "failed", "404", "one"), Item("a", "completed", None, "two")
        await report(engine, taken, Phase("one"), Progress(1, 2), one)
        await report(engine, taken, Phase("two"))
        found = await activity(engine, taken)
        assert (found.phase, found.items, found.progress) == ("two", (one,), None)
        await report(engine, taken, two)
        assert (await activity(engine, taken)).items == (one, two)

    async def test_of_many_reports_in_one_call_the_last_about_an_item_counts(
        self, engine: Engine
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        names = [f"item-{number:03}" for number in range(300)]
        begun = [Item(name, "in_progress") for name in names]
        ended = [Item(name, "failed", name) for name in names]
        await report(engine, taken, *begun, *ended)
        assert (await activity(engine, taken)).items == tuple(ended)

    async def test_items_belong_to_their_attempt_and_stay_after_the_end(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        await report(engine, first, Item("b", "failed", "x"), Item("a", "completed"))
        await settle(engine, first, Release(fence_of(first)))
        second = await claim_one(engine, session)
        job_id = second.definition.id
        of_first = [ItemEntry(1, Item("a", "completed")), ItemEntry(1, Item("b", "failed", "x"))]
        assert await engine.items(job_id) == of_first
        await report(engine, second, Item("b", "completed"))
        await settle(engine, second, complete(second))
        assert await engine.items(job_id) == [*of_first, ItemEntry(2, Item("b", "completed"))]
        assert (await activity(engine, second)).items == (Item("b", "completed"),)
        assert await engine.items(a_job_id()) == []

    async def test_items_of_earlier_attempts_stay_when_the_job_runs_again(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        await report(engine, taken, Item("a", "completed"), Item("b", "failed"))
        ended = await settle(engine, taken, complete(taken, item_errors=1))
        again = await settle(engine, ended, RetryItems("ann"))
        assert (again.head.state, again.head.generation) == (State.PENDING, 1)
        assert (await journal(engine, again))[-1].data == {"actor": "ann", "failed_items": True}
        rerun = await claim_one(engine, session)
        await report(engine, rerun, Item("b", "completed"))
        await settle(engine, rerun, complete(rerun))
        items = await engine.items(taken.definition.id)
        assert [(each.claim, *each.item[:2]) for each in items] == [
            (1, "a", "completed"),
            (1, "b", "failed"),
            (2, "b", "completed"),
        ]

    async def test_a_phase_does_not_forget_when_the_attempt_began(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await report(engine, taken, Begun(77), Phase("one"))
        assert (await activity(engine, taken)).began_at == 77

    async def test_every_note_is_a_sign_of_life(self, engine: Engine, clock: ManualClock) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        bodies = (Heartbeat(), Progress(1), Phase("x"), Item("a", "failed"), LogLine("info", "x"))
        for body in bodies:
            clock.advance_micros(SECOND)
            await report(engine, taken, body)
            assert (await activity(engine, taken)).seen_at == clock.now()

    async def test_a_new_attempt_starts_without_activity(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        await report(engine, first, Begun(1), Phase("x"), Progress(1), Item("a", "failed"))
        await settle(engine, first, Release(fence_of(first)))
        second = await claim_one(engine, session)
        assert await engine.activity(second.definition.id) is None
        await report(engine, second, Progress(5))
        found = await activity(engine, second)
        assert (found.claim, found.progress) == (2, Progress(5))
        assert (found.began_at, found.phase, found.items) == (None, None, ())

    async def test_the_activity_of_the_last_attempt_stays_after_the_end(
        self, engine: Engine
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await report(engine, taken, Progress(9, 10))
        before = await activity(engine, taken)
        await settle(engine, taken, complete(taken))
        assert await activity(engine, taken) == before

    async def test_notes_are_answered_one_by_one(self, engine: Engine) -> None:
        session = await a_session(engine)
        one, two = await start(engine, session, a_job()), await start(engine, session, a_job())
        await settle(engine, one, complete(one))
        notes = [Note(each.definition.row, 1, fence_of(each), Heartbeat()) for each in (one, two)]
        assert await engine.note(notes) == [NoteResult.STALE, NoteResult.NOTED]
        assert await engine.note([]) == []

    async def test_a_note_about_a_job_that_is_not_there_is_stale(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        stray = Note(taken.definition.row + 999, 1, fence_of(taken), Heartbeat())
        assert await engine.note([stray]) == [NoteResult.STALE]


class TestLogs(EngineSuite):
    """Log lines are stored in order, for all attempts of a job."""

    async def test_lines_come_back_in_order_with_all_they_carry(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await report(engine, taken, LogLine("info", "one"), LogLine("error", "zwei ü", '{"n":1}'))
        lines = await engine.logs(taken.definition.id)
        assert [line[1:] for line in lines] == [
            (clock.now(), 1, "info", "one", None),
            (clock.now(), 1, "error", "zwei ü", '{"n":1}'),
        ]
        assert 0 < lines[0].number < lines[1].number

    async def test_lines_are_read_from_where_the_reader_left_off(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken, other = await start(engine, session, a_job()), await start(engine, session, a_job())
        for number in range(5):
            await report(engine, taken, LogLine("info", str(number)))
            await report(engine, other, LogLine("info", "noise"))
        read: list[LogEntry] = []
        while page := await engine.logs(
            taken.definition.id, after=read[-1].number if read else 0, limit=2
        ):
            assert len(page) <= 2
            read += page
        assert [line.message for line in read] == ["0", "1", "2", "3", "4"]

    async def test_lines_of_every_attempt_are_kept(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        await report(engine, first, LogLine("info", "first"))
        await settle(engine, first, Release(fence_of(first)))
        second = await claim_one(engine, session)
        await report(engine, second, LogLine("info", "second"))
        await settle(engine, second, complete(second))
        lines = await engine.logs(first.definition.id)
        assert [(line.claim, line.message) for line in lines] == [(1, "first"), (2, "second")]

    async def test_a_job_without_lines_or_no_job_has_none(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        assert await engine.logs(record.definition.id) == []
        assert await engine.logs(a_job_id()) == []
