"""Verbs of the memory engine about schedules and the ledger of their slots."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from trellis.core.durations import Instant
from trellis.core.job import NewJob
from trellis.core.schedules import KEEP_SLOTS, Schedule, Step, remember
from trellis.engines.audit import OPERATOR, By, Change, run_of
from trellis.engines.clock import Clock
from trellis.engines.memory.store import Store
from trellis.engines.schedules import (
    DueSchedules,
    SlotRecord,
    advanced,
    slot_record,
)
from trellis.engines.values import Accepted, CreateResult, Replaced


class ScheduleVerbs:
    """The part of the memory engine that schedules use."""

    _clock: Clock
    _lock: threading.RLock
    _store: Store

    def _create_now(self, jobs: Sequence[NewJob]) -> list[CreateResult]:
        raise NotImplementedError

    async def schedules(self, services: Sequence[str] = ()) -> list[Schedule]:
        """Return the schedules of these services, or of all."""
        with self._lock:
            found = sorted(self._store.schedules.items())
            return [each for (service, _), each in found if not services or service in services]

    async def add_schedules(self, added: Sequence[Schedule]) -> list[bool]:
        """Store new schedules."""
        with self._lock:
            return [self._add_schedule(each) for each in added]

    def _add_schedule(self, schedule: Schedule) -> bool:
        if (schedule.service, schedule.name) in self._store.schedules:
            return False
        self._store_schedule(schedule._replace(version=0))
        return True

    async def due_schedules(self, limit: int) -> DueSchedules:
        """Return the schedules with a due slot."""
        with self._lock:
            now = self._clock.now()
            planned = sorted(
                (each.next_slot, each.service, each.name)
                for each in self._store.schedules.values()
                if each.next_slot is not None
            )
            due = [(service, name) for slot, service, name in planned if slot <= now]
            coming = next((slot for slot, _, _ in planned if slot > now), None)
            found = tuple(self._store.schedules[each] for each in due[:limit])
            return DueSchedules(now, found, coming)

    async def advance_schedule(
        self, step: Step, change: Change | None = None, by: By = OPERATOR
    ) -> list[SlotRecord] | None:
        """Store a step of a schedule: its jobs, its entries of the ledger, the schedule."""
        with self._lock:
            schedule, now = step.schedule, self._clock.now()
            if not self._is_current(schedule) or (step.until is not None and step.until <= now):
                return None
            ledger = self._store.slots.setdefault((schedule.service, schedule.name), {})
            jobs = {slot: new for slot, new in step.jobs if slot not in ledger}
            answers = dict(zip(jobs, self._create_now(list(jobs.values())), strict=True))
            records = [
                slot_record(each, answers.get(each.slot), now)
                for each in step.slots
                if each.slot not in ledger
            ]
            if records:
                for old in [slot for slot in ledger if slot < now - KEEP_SLOTS]:
                    del ledger[old]
            ledger.update({each.decision.slot: each for each in records})
            self._store_schedule(advanced(step, records))
            if change is not None:
                self._store.record(change, by)
            return records

    async def run_schedule(self, schedule: Schedule, new: NewJob, by: By) -> CreateResult | None:
        """Create a job of a schedule outside of its slots."""
        with self._lock:
            if not self._is_current(schedule):
                return None
            (answer,) = self._create_now([new])
            if isinstance(answer, Accepted | Replaced):
                self._store_schedule(remember(schedule, [new.id]))
                self._store.record(run_of(schedule.title, new.id), by)
            return answer

    async def slots(
        self, service: str, name: str, *, before: Instant | None = None, limit: int = 50
    ) -> list[SlotRecord]:
        """Return a part of the ledger of a schedule, the latest slots first."""
        with self._lock:
            ledger = self._store.slots.get((service, name), {})
            found = sorted(slot for slot in ledger if before is None or slot < before)
            return [ledger[slot] for slot in found[::-1][:limit]]

    def _is_current(self, schedule: Schedule) -> bool:
        stored = self._store.schedules.get((schedule.service, schedule.name))
        return schedule.version == (0 if stored is None else stored.version)

    def _store_schedule(self, schedule: Schedule) -> None:
        stored = schedule._replace(version=schedule.version + 1)
        self._store.schedules[schedule.service, schedule.name] = stored
