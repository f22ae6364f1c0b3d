"""The steps of the model about schedules: declare, change, fire, fire again, run now.

After each step the schedules and their whole ledger are compared.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from trellis import schedules
from trellis.core import schedules as rules
from trellis.core.job import JobId
from trellis.core.schedules import (
    Changes,
    Declared,
    Missed,
    Overlap,
    Plan,
    Template,
    check_declared,
)
from trellis.engines.audit import By
from trellis.testing.model.menu import SERVICE, TYPES, queue_of
from trellis.testing.model.side import Plain, Side

_NAMES: Final = ("a", "b", "c")
_WHENS: Final = ("@every 5s", "@every 11s", "* * * * *")
_CHANGES: Final[tuple[Changes, ...]] = (
    {"paused": True},
    {"paused": False},
    {"when": "@every 3s"},
    {"tz": "Asia/Kathmandu"},
    {"missed": "all"},
    {"overlap": "skip"},
    {"payload": '{"k":2}'},
)
#: After so many seconds a schedule may have missed many slots.
_LONG: Final = 300
_TYPES: Final = ("plain", "single", "reject", "coalesce", "replace", "pair", "strict")


async def _look(side: Side) -> Plain:
    stored = await side.engine.schedules()
    ledgers = [await side.engine.slots(SERVICE, each.name, limit=1000) for each in stored]
    due = await side.engine.due_schedules(2)
    found = tuple(side.numbered(each) for each in due.schedules)
    return [side.numbered(each) for each in stored], ledgers, due._replace(schedules=found)


async def pass_time(side: Side, seconds: int) -> None:
    """Advance the clock; after a long time, let no schedule make up for all its missed slots.

    There would be thousands of them, and a history is looked at after each step. They are decided
    at once, because an operator may change `missed` while they are due.
    """
    if seconds > _LONG:
        now = await side.engine.now()
        for each in await side.engine.schedules():
            if each.plan.missed == "all":
                changed = rules.change_plan(each, {"missed": "last"})
                await side.engine.advance_schedule(rules.edit(each, changed, now, ()))
    await side.advance(seconds)
    if seconds > _LONG:
        await schedules.fire_due(side.engine)


class DeclareSchedules(NamedTuple):
    """Start a program that declares some schedules and speaks for all."""

    declared: tuple[Declared, ...]

    async def on(self, side: Side) -> Plain:
        """Declare."""
        await schedules.declare_schedules(side.engine, SERVICE, self.declared, lambda _: True)
        return await _look(side)


class ChangeSchedule(NamedTuple):
    """Change one of the schedules as an operator does, perhaps with an old version."""

    recent: int
    changes: Changes
    stale: bool

    async def on(self, side: Side) -> Plain:
        """Change."""
        stored = await side.engine.schedules()
        if not stored:
            return None
        chosen = stored[self.recent % len(stored)]
        after, now = rules.change_plan(chosen, self.changes), await side.engine.now()
        step = rules.edit(chosen, after, now, ())
        old = step.schedule._replace(version=step.schedule.version - self.stale)
        return await side.engine.advance_schedule(step._replace(schedule=old)), await _look(side)


class Fire(NamedTuple):
    """Fire all due schedules; then send the first decision once more, as after a lost reply."""

    repeat: bool

    async def on(self, side: Side) -> Plain:
        """Fire."""
        due = await side.engine.due_schedules(10)
        await schedules.fire_due(side.engine)
        again = None
        if self.repeat and due.schedules:
            again = await side.engine.advance_schedule(
                rules.decide_slots(due.schedules[0], due.now, ())
            )
        return again, await _look(side)


class RunSchedule(NamedTuple):
    """Create a job outside of the slots."""

    recent: int
    number: int

    async def on(self, side: Side) -> Plain:
        """Run."""
        stored = await side.engine.schedules()
        if not stored:
            return None
        chosen = stored[self.recent % len(stored)]
        new = rules.job_of(chosen, JobId(f"01RUN{self.number:021d}"), None, self.number)
        answer = await side.engine.run_schedule(chosen, new, By("model"))
        return side.plain(answer), await _look(side)


def _declared(dice: Random, name: str) -> Declared:
    job_type = dice.choice(_TYPES)
    missed: Missed = dice.choice(("skip", "last", "all"))
    overlap: Overlap = dice.choice(("allow", "skip"))
    plan = Plan(dice.choice(_WHENS), missed=missed, overlap=overlap, payload='{"k":1}')
    template = Template(job_type, queue_of(job_type), TYPES[job_type])
    return check_declared(Declared(SERVICE, name, plan, template))


def declare_step(dice: Random) -> DeclareSchedules:
    """Return a step that declares some schedules."""
    names = dice.sample(_NAMES, dice.randint(1, len(_NAMES)))
    return DeclareSchedules(tuple(_declared(dice, name) for name in names))


def change_step(dice: Random) -> ChangeSchedule:
    """Return a step that changes a schedule."""
    return ChangeSchedule(dice.randrange(3), dice.choice(_CHANGES), dice.random() < 1 / 5)


def fire_step(dice: Random) -> Fire:
    """Return a step that fires."""
    return Fire(dice.random() < 1 / 3)


def run_step(dice: Random) -> RunSchedule:
    """Return a step that runs a schedule."""
    return RunSchedule(dice.randrange(3), dice.randrange(30))
