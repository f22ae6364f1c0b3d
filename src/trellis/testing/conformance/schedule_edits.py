"""Schedules that are edited, retired or run by hand: no due slot is lost, and each is audited."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from typing import Final

import pytest

from trellis import schedules as control
from trellis.core import schedules as rules
from trellis.core.durations import Instant, micros
from trellis.core.schedules import Changes, Schedule, SlotDecision, Step
from trellis.core.states import State
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, QueueSettings, Rejected
from trellis.testing.builders import QUEUE, SERVICE, a_declaration, a_job_id
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import the
from trellis.testing.conformance.schedules import coming, jobs_of, ledger, put, step_of
from trellis.testing.conformance.suite import EngineSuite

MINUTE, HOUR = micros("1m"), micros("1h")


async def change(engine: Engine, changes: Changes) -> Schedule:
    """Change the plan of the schedule as an operator does."""

    def decide(schedule: Schedule, _: Instant) -> tuple[Schedule, Change]:
        return rules.change_plan(schedule, changes), Change("schedule.set", schedule.title)

    return await control.change_schedule(engine, SERVICE, "nightly", decide, By("ann"))


async def edit_of(engine: Engine, changes: Changes) -> Step:
    """Return the decision about a change of the schedule."""
    before = await control.find_schedule(engine, SERVICE, "nightly")
    return rules.edit(before, rules.change_plan(before, changes), await engine.now(), ())


#: The values that an edit replaces and brings, as the audit has them.
BEFORE: Final = {"when": "@every 1m"}
AFTER: Final = {"when": "@every 1h"}


class TestScheduleEdits(EngineSuite):
    """An edit of the times, and a retirement, decide the slots that are due in the same step."""

    @pytest.mark.parametrize(
        "changes", [{"when": "30 4 * * *"}, {"tz": "Asia/Kathmandu"}, {"when": "@every 7m"}]
    )
    async def test_a_slot_that_is_due_when_the_times_change_creates_its_job(
        self, engine: Engine, clock: ManualClock, changes: Changes
    ) -> None:
        stored = await put(engine, a_declaration(when="0 * * * *"))
        slot = stored.next_slot or 0
        clock.advance_to(slot + 5 * MINUTE)
        after = await change(engine, changes)
        assert await ledger(engine) == [SlotDecision(slot, "created", late=True)]
        (job_id,) = await jobs_of(engine)
        assert await control.find_schedule(engine, SERVICE, "nightly") == after
        assert (dict(after.changes), after.live) == (changes, (job_id,))
        assert (after.next_slot or 0) > clock.now()
        assert len(await engine.audit(AuditFilter(action="schedule"))) == 1

    async def test_a_declaration_with_other_times_decides_the_due_slots_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration(when="@every 5m"))
        clock.advance_to(coming(clock.now(), 5 * MINUTE) + 12 * MINUTE)
        after = await put(engine, a_declaration(when="@every 1h", missed="skip"))
        assert [each.outcome for each in await ledger(engine)] == ["missed", "missed", "created"]
        assert (after.next_slot, len(after.live)) == (coming(clock.now(), HOUR), 1)

    async def test_the_due_slots_of_a_retired_schedule_are_in_the_ledger(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        stored = await put(engine, a_declaration(when="@every 5m", missed="all"))
        slot = stored.next_slot or 0
        clock.advance_to(slot + 12 * MINUTE)
        await control.declare_schedules(engine, SERVICE, [], lambda _: True)
        assert await ledger(engine) == [
            SlotDecision(slot, "missed", True, "retired", slot + 10 * MINUTE)
        ]
        assert await jobs_of(engine) == []
        (retired,) = await engine.schedules()
        assert (retired.retired_at, retired.next_slot) == (clock.now(), None)

    async def test_more_due_slots_than_one_step_decides_come_before_the_edit(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration(when="@every 1s", missed="all", paused=True))
        clock.advance("1500s")
        after = await change(engine, {"when": "@every 1h"})
        assert after.plan.when == "@every 1h"
        entries = await ledger(engine)
        assert (len(entries), {each.why for each in entries}) == (1500, {"paused"})
        assert len(await engine.audit(AuditFilter(action="schedule"))) == 1

    async def test_a_due_slot_whose_times_stay_is_decided_by_the_new_plan(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration())
        clock.advance("1m")
        await change(engine, {"paused": True})
        assert await ledger(engine) == []
        await control.fire_due(engine)
        assert [each.why for each in await ledger(engine)] == ["paused"]

    async def test_a_leader_does_not_store_what_an_edit_has_decided(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration())
        clock.advance("1m")
        firing = await step_of(engine)
        await change(engine, {"when": "@every 1h"})
        assert await engine.advance_schedule(firing) is None
        assert [each.outcome for each in await ledger(engine)] == ["created"]
        assert len(await jobs_of(engine)) == 1

    async def test_an_edit_does_not_store_what_a_leader_has_decided(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration())
        clock.advance("1m")
        edit = await edit_of(engine, {"when": "@every 1h"})
        await control.fire_due(engine)
        assert await engine.advance_schedule(edit, Change("schedule.set", "x")) is None
        assert (await change(engine, {"when": "@every 1h"})).plan.when == "@every 1h"
        assert [each.outcome for each in await ledger(engine)] == ["created"]
        assert len(await jobs_of(engine)) == len(await engine.audit(AuditFilter())) == 1

    async def test_an_edit_is_decided_again_when_a_slot_becomes_due_meanwhile(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        stored = await put(engine, a_declaration())
        edit = await edit_of(engine, {"when": "@every 1h"})
        retired = rules.retire(stored, clock.now())
        assert retired is not None
        retirement = rules.edit(stored, retired, clock.now(), ())
        clock.advance("1m")
        for step in (edit, retirement):
            assert await engine.advance_schedule(step, Change("schedule.set", "x")) is None
        assert await engine.schedules() == [stored]
        assert await engine.audit(AuditFilter()) == []
        await change(engine, {"when": "@every 1h"})
        assert [each.slot for each in await ledger(engine)] == [stored.next_slot]


class TestScheduleChanges(EngineSuite):
    """Operators change schedules; each change is one audit entry."""

    async def test_a_change_and_its_audit_entry_are_stored_together(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration())

        def decide(schedule: Schedule, _: Instant) -> tuple[Schedule, Change]:
            changed = rules.change_plan(schedule, {"when": "@every 1h"})
            return changed, Change("schedule.set", schedule.title, BEFORE, AFTER)

        by = By("ann", "too often")
        after = await control.change_schedule(engine, SERVICE, "nightly", decide, by)
        assert after.plan.when == "@every 1h"
        assert after.next_slot == coming(clock.now(), micros("1h"))
        (entry,) = await engine.audit(AuditFilter())
        assert (entry.change.action, entry.change.after, entry.by) == (
            "schedule.set",
            AFTER,
            by,
        )

    async def test_a_job_runs_outside_of_the_slots(self, engine: Engine) -> None:
        before = await put(engine, a_declaration())
        new, answer = await control.run_schedule(engine, SERVICE, "nightly", By("ann", "now"))
        assert answer == Accepted(new.id)
        record = await the(engine, new.id)
        assert record.head.state is State.PENDING
        assert record.definition.relations is not None
        assert record.definition.relations[2:4] == ("nightly", None)
        after = await control.find_schedule(engine, SERVICE, "nightly")
        assert after == before._replace(live=(new.id,), version=before.version + 1)
        assert await ledger(engine) == []
        (entry,) = await engine.audit(AuditFilter())
        assert (entry.change, entry.by) == (
            Change("schedule.run", "shop/nightly", None, {"job": new.id}),
            By("ann", "now"),
        )

    async def test_a_job_that_is_refused_or_late_leaves_nothing(self, engine: Engine) -> None:
        stored = await put(engine, a_declaration())
        stale = stored._replace(version=7)
        new = rules.job_of(stored, a_job_id(), None, 5)
        assert await engine.run_schedule(stale, new, By()) is None
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        answer = await engine.run_schedule(stored, new, By())
        assert isinstance(answer, Rejected)
        assert await jobs_of(engine) == []
        assert await engine.audit(AuditFilter(action="schedule")) == []
        assert await control.find_schedule(engine, SERVICE, "nightly") == stored
