"""Steps of schedules that are too large for one batch, and what a crash leaves of them."""

from __future__ import annotations

import pytest

from tests.engines.jetstream.manual import ManualEngine
from trellis import schedules as control
from trellis.core import schedules as rules
from trellis.core.schedules import Step
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.jetstream.link import Link, Message
from trellis.errors import OutcomeUnknown
from trellis.testing import ManualClock
from trellis.testing.builders import SERVICE, a_declaration
from trellis.testing.conformance.schedules import jobs_of, ledger, put, step_of

CHANGE = Change("schedule.set", "shop/nightly")


class DyingLink(Link):
    """Stops writing after a number of writes."""

    left = 1000

    async def write(self, *messages: Message) -> object:  # type: ignore[override]
        if not self.left:
            raise OutcomeUnknown("The process ends here.")
        self.left -= 1
        return await super().write(*messages)


async def a_long_step(engine: ManualEngine, clock: ManualClock, slots: int) -> Step:
    """Return a step with so many slots, each with a job."""
    await put(engine, a_declaration(missed="all"))
    clock.advance(f"{slots}m")
    return await step_of(engine)


async def test_a_long_step_creates_every_job_and_one_entry_of_the_audit(
    engine: ManualEngine, clock: ManualClock
) -> None:
    step = await a_long_step(engine, clock, 450)
    records = await engine.advance_schedule(step, CHANGE, By("ann"))
    assert records is not None
    created = [each.job_id for each in records]
    assert (len(created), set(await jobs_of(engine))) == (450, set(created))
    assert len(await ledger(engine)) == 450
    assert len(await engine.audit(AuditFilter())) == 1
    (after,) = await engine.schedules()
    assert (after.next_slot, after.live) == (step.schedule.next_slot, tuple(created[-20:]))
    assert await engine.advance_schedule(step, CHANGE) is None


async def test_after_a_crash_within_a_long_step_the_next_leader_goes_on(
    engine: ManualEngine, clock: ManualClock, nats_url: str
) -> None:
    step = await a_long_step(engine, clock, 450)
    prefix = engine._subjects.prefix
    dying = ManualEngine(nats_url, prefix=prefix, clock=clock)
    link = dying._link = dying._store.link = DyingLink([nats_url])
    await dying.open()
    link.left = 2
    with pytest.raises(OutcomeUnknown):
        await dying.advance_schedule(step, CHANGE)
    await dying.close()
    assert len(await ledger(engine)) == 400
    assert (await engine.schedules())[0].next_slot == step.slots[400].slot
    assert await engine.audit(AuditFilter()) == []
    assert await engine.advance_schedule(step) is None, "it must be decided again"
    await control.fire_due(engine)
    assert len(await ledger(engine)) == len(await jobs_of(engine)) == 450
    assert (await engine.schedules())[0].next_slot == step.schedule.next_slot


async def test_an_edit_that_follows_a_long_step_is_stored_with_its_last_part_only(
    engine: ManualEngine, clock: ManualClock
) -> None:
    await a_long_step(engine, clock, 450)
    before = await control.find_schedule(engine, SERVICE, "nightly")
    changed = rules.change_plan(before, {"when": "@every 1h"})
    edit = rules.edit(before, changed, clock.now(), ())
    assert len(await engine.advance_schedule(edit, CHANGE) or ()) == 450
    after = await control.find_schedule(engine, SERVICE, "nightly")
    assert after.plan.when == "@every 1h"
    assert len(await engine.audit(AuditFilter())) == 1
