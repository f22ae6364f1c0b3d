"""Schedules: each slot is decided once, creates at most one job and has one ledger entry."""
# ruff: noqa: D102, S101, PLR2004 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio

from trellis import schedules as control
from trellis.core import schedules as rules
from trellis.core.commands import Complete
from trellis.core.durations import Instant, micros
from trellis.core.job import JobId
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.schedules import Declared, Schedule, SlotDecision, Step, Window
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.operating import Drain
from trellis.engines.port import Engine
from trellis.engines.schedules import SlotRecord
from trellis.engines.values import JobFilter, QueueSettings
from trellis.testing.builders import (
    QUEUE,
    SERVICE,
    a_declaration,
    a_job,
    fence_of,
)
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept_one,
    claim_answer,
    claim_one,
    settle,
    the,
)
from trellis.testing.conformance.suite import Another, EngineSuite

MINUTE = micros("1m")


async def put(engine: Engine, declared: Declared) -> Schedule:
    """Declare one schedule; return it as stored."""
    await control.declare_schedules(engine, SERVICE, [declared], lambda _: False)
    return await control.find_schedule(engine, SERVICE, declared.name)


async def step_of(engine: Engine, name: str = "nightly") -> Step:
    """Return the decision about the due slots of a schedule."""
    schedule = await control.find_schedule(engine, SERVICE, name)
    return rules.decide_slots(schedule, await engine.now(), ())


async def ledger(engine: Engine, name: str = "nightly") -> list[SlotDecision]:
    """Return the decisions about the slots of a schedule, the oldest first."""
    return [each.decision for each in reversed(await engine.slots(SERVICE, name, limit=5000))]


async def jobs_of(engine: Engine) -> list[JobId]:
    """Return all jobs, the oldest first."""
    page = await engine.find(JobFilter(), limit=5000)
    return [each.definition.id for each in reversed(page.jobs)]


def coming(now: Instant, length: int = MINUTE) -> Instant:
    """Return the first slot of an interval after this moment."""
    return now - now % length + length


class TestSchedules(EngineSuite):
    """Declarations are stored; what operators changed stays."""

    async def test_a_declared_schedule_is_stored_whole(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        policy = Policy(timeout=micros("9s"), key=KeyPolicy("o/{order}"))
        declared = a_declaration(
            when="0 3 * * *", tz="Europe/Vienna", jitter=7, missed="all", policy=policy
        )
        stored = await put(engine, declared)
        assert stored == rules.declare(declared, clock.now())._replace(version=1)
        assert await engine.schedules() == [stored]
        assert await engine.schedules(["other"]) == []

    async def test_the_same_declaration_again_changes_nothing(self, engine: Engine) -> None:
        stored = await put(engine, a_declaration())
        assert await put(engine, a_declaration()) == stored

    async def test_schedules_are_listed_by_service_and_name(self, engine: Engine) -> None:
        for name in ("b", "A", "c"):
            await put(engine, a_declaration(name))
        assert [each.name for each in await engine.schedules([SERVICE])] == ["A", "b", "c"]

    async def test_a_new_declaration_leaves_the_operators_change(self, engine: Engine) -> None:
        stored = await put(engine, a_declaration())
        changed = rules.change_plan(stored, {"missed": "all"})
        assert await engine.advance_schedule(Step(changed)) == []
        after = await put(engine, a_declaration(missed="skip", overlap="skip"))
        assert (after.plan.missed, after.plan.overlap, after.version) == ("all", "skip", 3)

    async def test_a_schedule_that_is_gone_is_retired_and_comes_back(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration())
        await control.declare_schedules(engine, SERVICE, [], lambda _: False)
        assert (await engine.schedules())[0].retired_at is None
        await control.declare_schedules(engine, SERVICE, [], lambda _: True)
        retired = (await engine.schedules())[0]
        assert (retired.retired_at, retired.next_slot) == (clock.now(), None)
        clock.advance("1h")
        assert (await engine.due_schedules(10)).schedules == ()
        back = await put(engine, a_declaration())
        assert (back.retired_at, back.next_slot) == (None, coming(clock.now()))

    async def test_a_stale_version_stores_nothing(self, engine: Engine) -> None:
        stored = await put(engine, a_declaration())
        for version in (0, 2):
            stale, change = stored._replace(version=version), Change("schedule.set", "x")
            assert await engine.advance_schedule(Step(stale), change) is None
        good = stored._replace(windows=(Window(1, 2),))
        assert await engine.advance_schedule(Step(good)) == []
        assert await engine.audit(AuditFilter()) == []
        after = await control.find_schedule(engine, SERVICE, "nightly")
        assert after == stored._replace(windows=(Window(1, 2),), version=2)

    async def test_a_schedule_is_added_once(self, engine: Engine, clock: ManualClock) -> None:
        first, second = (rules.declare(a_declaration(name), clock.now()) for name in ("a", "b"))
        assert await engine.add_schedules([first]) == [True]
        assert await engine.add_schedules([first._replace(windows=(Window(1, 2),)), second]) == [
            False,
            True,
        ]
        assert await engine.schedules() == [each._replace(version=1) for each in (first, second)]

    async def test_two_workers_that_start_together_declare_once(
        self, engine: Engine, another: Another
    ) -> None:
        other = await another()
        wanted = [a_declaration("a"), a_declaration("b")]
        await asyncio.gather(
            *(
                control.declare_schedules(each, SERVICE, wanted, lambda _: True)
                for each in (engine, other)
            )
        )
        assert [(each.name, each.version) for each in await engine.schedules()] == [
            ("a", 1),
            ("b", 1),
        ]


class TestFiring(EngineSuite):
    """The due slots of a schedule become jobs and entries of the ledger, exactly once."""

    async def test_a_slot_creates_its_job_when_it_is_due(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        stored = await put(engine, a_declaration())
        slot = coming(clock.now())
        assert stored.next_slot == slot
        due = await engine.due_schedules(10)
        assert (due.schedules, due.next_slot) == ((), slot)
        clock.advance_to(slot)
        due = await engine.due_schedules(10)
        assert (due.now, due.schedules, due.next_slot) == (slot, (stored,), None)
        records = await engine.advance_schedule(await step_of(engine))
        (job_id,) = await jobs_of(engine)
        assert records == [SlotRecord(SlotDecision(slot, "created"), job_id, slot)]
        assert await engine.slots(SERVICE, "nightly") == records
        definition = (await the(engine, job_id)).definition
        assert definition.relations is not None
        assert (definition.relations.schedule, definition.relations.slot) == ("nightly", slot)
        assert (definition.payload, definition.queue) == ('{"order":7}', QUEUE)
        after = await control.find_schedule(engine, SERVICE, "nightly")
        assert after == stored._replace(next_slot=slot + MINUTE, live=(job_id,), version=2)
        assert (await claim_one(engine, await a_session(engine))).definition.id == job_id

    async def test_jobs_are_found_by_their_schedule(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await accept_one(engine, a_job())
        await put(engine, a_declaration())
        await put(engine, a_declaration("other"))
        clock.advance("1m")
        await control.fire_due(engine)
        new, _ = await control.run_schedule(engine, SERVICE, "nightly", By())
        (entry,) = await engine.slots(SERVICE, "nightly")
        found = await engine.find(JobFilter(schedule="nightly"))
        assert [each.definition.id for each in found.jobs] == [new.id, entry.job_id]
        assert (await engine.count(JobFilter(schedule="other"), "state")).groups == {"pending": 1}
        where = JobFilter(schedule="nightly", services=("other",))
        assert (await engine.find(where)).jobs == ()

    async def test_a_decision_is_stored_once(self, engine: Engine, clock: ManualClock) -> None:
        await put(engine, a_declaration())
        clock.advance("1m")
        step = await step_of(engine)
        assert len(await engine.advance_schedule(step) or ()) == 1
        assert await engine.advance_schedule(step) is None  # a repeated call after a lost reply
        assert len(await jobs_of(engine)) == len(await ledger(engine)) == 1

    async def test_two_leaders_at_once_create_one_job(
        self, engine: Engine, another: Another, clock: ManualClock
    ) -> None:
        other = await another()
        await put(engine, a_declaration())
        for _ in range(5):
            clock.advance("1m")
            await asyncio.gather(*(control.fire_due(each) for each in (engine, other) * 3))
        assert len(await jobs_of(engine)) == len(await ledger(engine)) == 5

    async def test_a_slot_in_the_ledger_is_not_created_again(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration())
        clock.advance("1m")
        await control.fire_due(engine)
        entries = await engine.slots(SERVICE, "nightly")
        stored = await control.find_schedule(engine, SERVICE, "nightly")
        # As after the clock was set back and an operator has changed the schedule.
        back = stored._replace(next_slot=entries[0].decision.slot)
        await engine.advance_schedule(Step(back))
        await control.fire_due(engine)
        assert await engine.slots(SERVICE, "nightly") == entries
        assert len(await jobs_of(engine)) == 1
        after = await control.find_schedule(engine, SERVICE, "nightly")
        assert after.next_slot == stored.next_slot

    async def test_after_an_outage_the_latest_slot_is_created_and_the_others_are_missed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration(when="@every 5m"))
        clock.advance_to(coming(clock.now(), micros("5m")) + micros("17m"))
        await control.fire_due(engine)
        assert [(each.outcome, each.late) for each in await ledger(engine)] == [
            ("missed", True),
            ("missed", True),
            ("missed", True),
            ("created", True),
        ]

    async def test_every_missed_slot_is_created_if_asked(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration(missed="all"))
        clock.advance("20m")
        await control.fire_due(engine)
        slots = [each.slot for each in await ledger(engine)]
        assert slots == list(range(slots[0], slots[0] + 20 * MINUTE, MINUTE))
        assert len(await jobs_of(engine)) == 20

    async def test_a_clock_that_jumps_far_makes_one_entry_and_one_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        stored = await put(engine, a_declaration(when="@every 1s"))
        first = stored.next_slot or 0
        clock.advance("400d")
        await control.fire_due(engine)
        now = clock.now()
        newest = now - now % micros("1s")
        passed, created = await ledger(engine)
        assert passed == SlotDecision(first, "missed", late=True, through=newest - micros("1s"))
        assert (created.slot, created.outcome) == (newest, "created")
        after = await control.find_schedule(engine, SERVICE, "nightly")
        assert after.next_slot == newest + micros("1s")

    async def test_admission_decides_about_the_job_of_a_slot(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        policy = Policy(key=KeyPolicy("o/{order}", 1, 0, "reject"))
        await put(engine, a_declaration(policy=policy))
        holder = await accept_one(engine, a_job(policy=policy, key="o/7"))
        clock.advance("1m")
        await control.fire_due(engine)
        (entry,) = await engine.slots(SERVICE, "nightly")
        assert (entry.decision.outcome, entry.decision.why) == ("skipped", "key_busy")
        assert entry.job_id == holder.definition.id

    async def test_a_draining_queue_keeps_the_jobs_of_slots_out(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration())
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        clock.advance("1m")
        await control.fire_due(engine)
        await engine.set_queue(QueueSettings(SERVICE, QUEUE))
        await engine.set_drain(Drain(on=True, actor="ann", reason=""))
        clock.advance("1m")
        await control.fire_due(engine)
        assert [each.why for each in await ledger(engine)] == ["draining", "all_draining"]
        assert await jobs_of(engine) == []

    async def test_a_slot_is_skipped_while_an_earlier_job_is_unfinished(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration(overlap="skip"))
        for _ in range(2):
            clock.advance("1m")
            await control.fire_due(engine)
        taken = await claim_one(engine, await a_session(engine))
        await settle(engine, taken, Complete(fence_of(taken)))
        clock.advance("1m")
        await control.fire_due(engine)
        assert [(each.outcome, each.why) for each in await ledger(engine)] == [
            ("created", None),
            ("skipped", "overlap"),
            ("created", None),
        ]

    async def test_the_jobs_of_a_schedule_can_wait_for_each_other(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration(overlap="queue"))
        for _ in range(2):
            clock.advance("1m")
            await control.fire_due(engine)
        session = await a_session(engine)
        first, second = await jobs_of(engine)
        (taken,) = (await claim_answer(engine, session)).jobs
        assert taken.definition.id == first
        assert (await claim_answer(engine, session)).jobs == ()
        await settle(engine, taken, Complete(fence_of(taken)))
        (then,) = (await claim_answer(engine, session)).jobs
        assert then.definition.id == second

    async def test_jitter_delays_the_start_and_not_the_slot(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration(when="@every 1h", jitter=micros("30m")))
        clock.advance("1h")
        await control.fire_due(engine)
        (job_id,) = await jobs_of(engine)
        record = await the(engine, job_id)
        (entry,) = await ledger(engine)
        assert entry.slot < record.head.run_at <= entry.slot + micros("30m")

    async def test_old_entries_leave_the_ledger(self, engine: Engine, clock: ManualClock) -> None:
        await put(engine, a_declaration(when="@every 10d", missed="skip"))
        slots = []
        for _ in range(6):
            clock.advance("10d")
            slots += [each.slot for each in (await step_of(engine)).slots]
            await control.fire_due(engine)
        kept = [slot for slot in slots if slot >= clock.now() - rules.KEEP_SLOTS]
        assert 0 < len(kept) < len(slots)
        assert [each.slot for each in await ledger(engine)] == kept

    async def test_the_ledger_is_read_page_by_page(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await put(engine, a_declaration(missed="all"))
        clock.advance("5m")
        await control.fire_due(engine)
        whole = await engine.slots(SERVICE, "nightly")
        first = await engine.slots(SERVICE, "nightly", limit=2)
        rest = await engine.slots(SERVICE, "nightly", before=first[-1].decision.slot)
        assert (len(first), first + rest) == (2, whole)
        assert await engine.slots(SERVICE, "other") == []

    async def test_one_call_decides_all_due_schedules(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        names = [f"s{number}" for number in range(4)]
        await control.declare_schedules(
            engine, SERVICE, [a_declaration(name) for name in names], lambda _: True
        )
        clock.advance("1m")
        assert len((await engine.due_schedules(3)).schedules) == 3
        await control.fire_due(engine)
        assert [len(await ledger(engine, name)) for name in names] == [1] * 4
