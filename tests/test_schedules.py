"""Schedules through the port: what is read and stored to fire them."""

from __future__ import annotations

from collections import Counter

from trellis import schedules
from trellis.core.schedules import decide_slots
from trellis.engines.instrumented import Call, instrumented
from trellis.engines.memory import MemoryEngine
from trellis.engines.schedules import DueSchedules
from trellis.testing.builders import SERVICE, a_declaration
from trellis.testing.clock import ManualClock


async def test_firing_reads_the_due_schedules_once_however_many_there_are() -> None:
    clock, calls = ManualClock(), Counter[str]()

    def count(call: Call) -> None:
        calls[call.verb] += 1

    engine = instrumented(MemoryEngine(clock), count)
    overlaps = ("allow", "queue", "skip")
    declared = [
        a_declaration(f"s{number}", overlap=overlaps[number % 3])  # type: ignore[arg-type]
        for number in range(30)
    ]
    await schedules.declare_schedules(engine, SERVICE, declared, lambda _: True)
    for loads in (0, 10):  # the second slot has earlier jobs, which only `skip` looks at
        clock.advance("1m")
        calls.clear()
        await schedules.fire_due(engine)
        assert calls == Counter(due_schedules=1, advance_schedule=30, load=loads)


class SecondLeader(MemoryEngine):
    """Another leader decides between the reading and the storing."""

    async def due_schedules(self, limit: int) -> DueSchedules:
        due = await super().due_schedules(limit)
        for each in due.schedules:
            await self.advance_schedule(decide_slots(each, due.now, ()))
        return due


async def test_after_a_conflict_the_schedules_are_read_again_at_once() -> None:
    clock = ManualClock()
    engine = SecondLeader(clock)
    await schedules.declare_schedules(engine, SERVICE, [a_declaration()], lambda _: True)
    clock.advance("1m")
    assert await schedules.fire_due(engine) == clock.now()
    assert len(await engine.slots(SERVICE, "nightly")) == 1
