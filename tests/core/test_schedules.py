"""What due slots lead to, and what declarations and operators change."""

from itertools import pairwise

import pytest

from trellis.core import schedules as rules
from trellis.core.durations import SECOND, micros
from trellis.core.job import JobId
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.schedules import PAGE, Schedule, SlotDecision, Step, Window
from trellis.core.timing import next_slot
from trellis.errors import ConfigurationError, KeyUnresolved, PayloadInvalid
from trellis.testing.builders import a_declaration

NOW = 1_790_000_000 * SECOND - 1_790_000_000 * SECOND % micros("1d")
MINUTE = micros("1m")
LIVE = (JobId("A"),)


def a_schedule(**parts: object) -> Schedule:
    return rules.declare(a_declaration(**parts), NOW)._replace(version=1)  # type: ignore[arg-type]


def outcomes(
    schedule: Schedule, now: int, live: tuple[JobId, ...] = ()
) -> list[tuple[str, bool, str | None]]:
    return [each[1:4] for each in rules.decide_slots(schedule, now, live).slots]


def test_nothing_is_due_before_the_first_slot_after_the_declaration() -> None:
    schedule = a_schedule()
    assert schedule.next_slot == NOW + MINUTE
    assert rules.decide_slots(schedule, NOW + MINUTE - 1, ()).slots == ()


def test_a_slot_is_late_after_a_minute() -> None:
    schedule = a_schedule(when="@every 1h")
    slot = NOW + 60 * MINUTE
    assert outcomes(schedule, slot + MINUTE) == [("created", False, None)]
    assert outcomes(schedule, slot + MINUTE + 1) == [("created", True, None)]
    assert outcomes(a_schedule(when="@every 1h", missed="skip"), slot + MINUTE + 1) == [
        ("missed", True, None)
    ]


def test_the_latest_slot_is_created_and_on_time_the_late_ones_are_missed() -> None:
    decided = rules.decide_slots(a_schedule(), NOW + 5 * MINUTE + SECOND, ())
    assert [(each.outcome, each.late) for each in decided.slots] == [
        ("missed", True), ("missed", True), ("missed", True), ("missed", True), ("created", False),
    ]  # fmt: skip
    assert decided.schedule.next_slot == NOW + 6 * MINUTE
    assert [slot for slot, _ in decided.jobs] == [NOW + 5 * MINUTE]


def test_slots_within_the_tolerance_are_all_created() -> None:
    schedule = a_schedule(when="@every 10s", missed="skip")
    assert outcomes(schedule, NOW + 30 * SECOND) == [("created", False, None)] * 3


def test_paused_slots_and_slots_in_a_window_are_skipped_with_the_reason() -> None:
    assert outcomes(a_schedule(paused=True), NOW + MINUTE) == [("skipped", False, "paused")]
    window = Window(NOW + 2 * MINUTE, NOW + 3 * MINUTE)
    schedule = a_schedule(missed="all")._replace(windows=(window,))
    assert outcomes(schedule, NOW + 3 * MINUTE) == [
        ("created", True, None), ("skipped", False, "window"), ("created", False, None),
    ]  # fmt: skip


def test_overlapping_slots_are_skipped_also_within_one_decision() -> None:
    schedule = a_schedule(overlap="skip", missed="all")
    assert [each[2] for each in outcomes(schedule, NOW + 2 * MINUTE, LIVE)] == ["overlap"] * 2
    assert [each[2] for each in outcomes(schedule, NOW + 2 * MINUTE)] == [None, "overlap"]


def test_one_decision_covers_a_bounded_number_of_slots() -> None:
    schedule = a_schedule(when="@every 1s", missed="all")
    now = NOW + 2500 * SECOND
    seen: list[int] = []
    while schedule.next_slot is not None and schedule.next_slot <= now:
        decided = rules.decide_slots(schedule, now, ())
        assert len(decided.slots) <= PAGE
        seen += [each.slot for each in decided.slots]
        schedule = decided.schedule
    assert len(seen) == 2500
    assert all(b - a == SECOND for a, b in pairwise(seen))


def test_a_jump_over_more_slots_is_one_entry_up_to_the_latest_slot() -> None:
    for missed, last in (("last", "created"), ("skip", "missed")):
        schedule = a_schedule(when="*/5 * * * *", missed=missed)
        now = NOW + 1000 * micros("1d") + 2 * MINUTE
        first, newest = rules.decide_slots(schedule, now, ()).slots
        assert first == SlotDecision(
            NOW + 5 * MINUTE, "missed", late=True, through=newest.slot - 5 * MINUTE
        )
        assert (newest.slot, newest.outcome) == (now - 2 * MINUTE, last)


def test_a_paused_schedule_records_a_jump_as_paused() -> None:
    schedule = a_schedule(when="@every 1s", paused=True)
    decided = rules.decide_slots(schedule, NOW + micros("9d"), ())
    assert [(each.outcome, each.why) for each in decided.slots] == [("skipped", "paused")] * 2


def test_the_job_of_a_slot_is_the_same_for_every_process() -> None:
    schedule = a_schedule(jitter=micros("30s"))
    first, second = (rules.decide_slots(schedule, NOW + MINUTE + each, ()) for each in (0, 5))
    assert first.jobs == second.jobs
    (slot, new), *_ = first.jobs
    assert slot <= (new.run_at or 0) <= slot + micros("30s")
    other = rules.decide_slots(schedule._replace(name="other"), NOW + MINUTE, ())
    assert other.jobs[0][1].id != new.id
    assert len(new.id) == 26
    assert new.context.request_id == new.id


def test_jitter_differs_from_slot_to_slot() -> None:
    schedule = a_schedule(jitter=micros("30s"), missed="all")
    jobs = rules.decide_slots(schedule, NOW + 10 * MINUTE, ()).jobs
    assert len({(new.run_at or 0) - slot for slot, new in jobs}) > 5


def test_a_key_that_the_payload_lost_skips_the_slot() -> None:
    keyed = Policy(key=KeyPolicy("o/{other}"))
    schedule = a_schedule()
    changed = schedule._replace(template=schedule.template._replace(policy=keyed))
    assert outcomes(changed, NOW + MINUTE) == [("skipped", False, "key_unresolved")]


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"missed": "never"}, ConfigurationError),
        ({"overlap": "maybe"}, ConfigurationError),
        ({"jitter": -1}, ConfigurationError),
        ({"jitter": micros("2d")}, ConfigurationError),
        ({"payload": "{"}, PayloadInvalid),
        ({"when": "soon"}, ConfigurationError),
        ({"tz": "Mars"}, ConfigurationError),
        ({"overlap": "queue", "policy": Policy(key=KeyPolicy("o/{order}"))}, ConfigurationError),
        ({"policy": Policy(key=KeyPolicy("o/{other}"))}, KeyUnresolved),
        ({"fair": "{tenant}"}, KeyUnresolved),
        ({"fair": "{tenant}", "payload": '{"tenant":""}'}, ConfigurationError),
    ],
)
def test_a_plan_that_cannot_work_is_refused(
    parts: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        a_schedule(**parts)


def changed(schedule: Schedule, now: int, **changes: str | int | bool) -> Step:
    return rules.edit(schedule, rules.change_plan(schedule, changes), now, ())


def test_a_changed_time_is_in_force_from_now_on() -> None:
    now = NOW + MINUTE - 1
    step = changed(a_schedule(), now, when="@every 5m")
    assert (step.schedule.plan.when, step.schedule.next_slot) == ("@every 5m", NOW + 5 * MINUTE)
    assert (step.slots, step.until, step.is_whole) == ((), NOW + MINUTE, True)


@pytest.mark.parametrize(
    "changes", [{"when": "@every 7m"}, {"when": "30 4 * * *"}, {"tz": "Asia/Kathmandu"}]
)
def test_slots_that_are_due_when_the_times_change_are_decided_by_the_plan_before(
    changes: dict[str, str],
) -> None:
    schedule = a_schedule(when="0 * * * *")
    now = NOW + 190 * MINUTE
    step = changed(schedule, now, missed="skip", **changes)
    assert [(each.slot, each.outcome) for each in step.slots] == [
        (NOW + 60 * MINUTE, "missed"),
        (NOW + 120 * MINUTE, "missed"),
        (NOW + 180 * MINUTE, "created"),
    ]
    assert [slot for slot, _ in step.jobs] == [NOW + 180 * MINUTE]
    assert step.until == NOW + 240 * MINUTE
    plan = step.schedule.plan
    assert step.schedule.next_slot == next_slot(plan.when, plan.tz, now)
    assert dict(step.schedule.changes) == {"missed": "skip", **changes}


def test_a_due_slot_whose_times_stay_is_left_to_the_new_plan() -> None:
    schedule = a_schedule()
    step = changed(schedule, NOW + 3 * MINUTE, missed="all", paused=True)
    assert step == Step(rules.change_plan(schedule, {"missed": "all", "paused": True}))
    assert step.schedule.next_slot == schedule.next_slot


def test_the_due_slots_of_a_retired_schedule_are_missed() -> None:
    schedule, now = a_schedule(when="@every 1h"), NOW + 190 * MINUTE
    retired = rules.retire(schedule, now)
    assert retired is not None
    step = rules.edit(schedule, retired, now, ())
    entry = SlotDecision(NOW + 60 * MINUTE, "missed", True, "retired", NOW + 180 * MINUTE)
    assert (step.slots, step.jobs, step.until) == ((entry,), (), NOW + 240 * MINUTE)
    assert step.schedule == retired._replace(next_slot=None)
    early = rules.edit(schedule, retired, NOW, ())
    assert (early.slots, early.until) == ((), NOW + 60 * MINUTE)
    one = rules.edit(schedule, retired, NOW + 60 * MINUTE, ())
    assert one.slots == (SlotDecision(NOW + 60 * MINUTE, "missed", why="retired"),)


def test_due_slots_of_a_type_that_is_no_longer_scheduled_are_missed() -> None:
    schedule = a_schedule()
    other = a_declaration(when="@every 1h")
    other = other._replace(template=other.template._replace(type="other"))
    after = rules.declare_again(schedule, other)
    assert after is not None
    step = rules.edit(schedule, after, NOW + MINUTE, ())
    assert step.slots == (SlotDecision(NOW + MINUTE, "missed", why="edited"),)
    assert step.schedule.next_slot == NOW + 60 * MINUTE


def test_an_edit_follows_more_due_slots_than_one_step_decides() -> None:
    schedule, now = a_schedule(when="@every 1s", missed="all"), NOW + 2500 * SECOND
    after = rules.change_plan(schedule, {"when": "@every 1h"})
    steps = [rules.edit(schedule, after, now, ())]
    while not steps[-1].is_whole:
        steps.append(rules.edit(steps[-1].schedule, after, now, ()))
    assert [len(each.slots) for each in steps] == [1000, 1000, 500]
    assert {each.schedule.plan.when for each in steps[:-1]} == {"@every 1s"}
    assert steps[-1].schedule.plan.when == "@every 1h"


def test_a_schedule_whose_time_zone_this_host_lacks_can_be_paused_and_resumed() -> None:
    schedule = a_schedule()
    lacking = schedule._replace(declared=schedule.declared._replace(when="0 * * * *", tz="Mars"))
    paused = changed(lacking, NOW, paused=True).schedule
    assert paused.plan == lacking.plan._replace(paused=True)
    assert paused.next_slot == lacking.next_slot
    assert changed(paused, NOW, paused=False).schedule == lacking


def test_a_time_zone_that_this_host_lacks_can_be_changed() -> None:
    schedule = a_schedule()
    lacking = schedule._replace(declared=schedule.declared._replace(when="0 * * * *", tz="Mars"))
    step = changed(lacking, NOW + 2 * MINUTE, tz="UTC")
    assert step.slots == (SlotDecision(NOW + MINUTE, "missed", why="edited"),)
    assert step.schedule.next_slot == NOW + 60 * MINUTE
    again = rules.declare_again(lacking, a_declaration(missed="all", when="0 * * * *"))
    assert again is not None
    elsewhere = again._replace(changes={"tz": "Mars"})
    kept = rules.edit(lacking, elsewhere, NOW, ())
    assert kept == Step(elsewhere)


def test_a_value_that_is_declared_again_is_no_change_any_more() -> None:
    step = rules.change_plan(a_schedule(), {"missed": "all", "tz": "Europe/Vienna"})
    assert dict(step.changes) == {"missed": "all", "tz": "Europe/Vienna"}
    assert dict(rules.change_plan(step, {"missed": "last"}).changes) == {"tz": "Europe/Vienna"}


def test_a_change_after_the_clock_was_set_back_starts_at_the_new_time() -> None:
    ahead = a_schedule()._replace(next_slot=NOW + micros("90d"))
    assert changed(ahead, NOW, missed="all").schedule.next_slot == NOW + MINUTE


def test_a_retired_schedule_stays_retired_when_it_is_changed() -> None:
    retired = rules.retire(a_schedule()._replace(next_slot=None), NOW)
    assert retired is not None
    assert rules.retire(retired, NOW + 1) is None
    after = changed(retired, NOW, when="@every 5m").schedule
    assert (after.next_slot, after.retired_at) == (None, NOW)


def test_a_tenant_that_the_payload_lost_skips_the_slot() -> None:
    schedule = a_schedule()
    for fair, why in (("{tenant}", "key_unresolved"), ("{order}", "configuration")):
        template = schedule.template._replace(fair=fair)
        lost = schedule._replace(template=template, changes={"payload": '{"order":""}'})
        assert outcomes(lost, NOW + MINUTE) == [("skipped", False, why)]
