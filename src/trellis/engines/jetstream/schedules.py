"""Schedules and the ledger of their slots.

A schedule is one state, and each slot of its ledger is another. A step writes the jobs, the slots,
the schedule and an entry of the audit as one batch, guarded by the schedule: of two leaders that
decided the same slots, the second finds another version. A step with more slots than a batch may
have is written in parts: each part but the last leaves the schedule as it was, due at the first
slot that is left, so that after a crash any leader goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import partial
from typing import Final, TypeAlias

from trellis.core.durations import Instant
from trellis.core.job import NewJob
from trellis.core.names import check_schedule, check_service
from trellis.core.schedules import KEEP_SLOTS, Schedule, SlotDecision, Step, remember
from trellis.engines.audit import OPERATOR, By, Change, run_of
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.state import decided, latest, purge
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import is_token
from trellis.engines.schedules import DueSchedules, SlotRecord, advanced, slot_record
from trellis.engines.values import Accepted, CreateResult, Replaced
from trellis.engines.wire import codec_of
from trellis.errors import AccessDenied

#: How many slots are written in one batch: a job may need several messages.
_TOGETHER: Final = 200
#: How many of the oldest slots of a ledger are looked at together.
_PRUNED: Final = 20
_SCHEDULE: Final = codec_of(Schedule)
SLOT: Final = codec_of(SlotRecord)


#: Decides about new jobs as `create` does, and stages those that are admitted.
Admit: TypeAlias = Callable[[Draft, Sequence[NewJob]], Awaitable[list[CreateResult]]]


class ScheduleTable:
    """All schedules and their ledgers."""

    def __init__(self, store: Store, admit: Admit) -> None:
        self._store, self._admit = store, admit

    # -- reads ---------------------------------------------------------------------------------

    async def all(self, services: Sequence[str] = ()) -> list[Schedule]:
        """Return the schedules of these services, or of all."""
        wanted = set(filter(is_token, services)) if services else {"*"}
        found = await asyncio.gather(*(
            latest(self._store, self._schedule(service, "*"), _SCHEDULE) for service in wanted
        ))  # fmt: skip
        schedules = (each.value for page in found for each in page)
        return sorted(schedules, key=lambda each: each[:2])

    async def due(self, limit: int) -> DueSchedules:
        """Return the schedules with a due slot, the one that waits longest first."""
        now = self._store.time.now()
        planned = sorted(
            ((each.next_slot, each) for each in await self.all() if each.next_slot is not None),
            key=lambda each: (each[0], each[1][:2]),
        )
        due = tuple(schedule for slot, schedule in planned if slot <= now)
        coming = next((slot for slot, _ in planned if slot > now), None)
        return DueSchedules(now, due[:limit], coming)

    async def slots(
        self, service: str, name: str, before: Instant | None, limit: int
    ) -> list[SlotRecord]:
        """Return a part of the ledger of a schedule, the latest slots first."""
        if not (is_token(service) and is_token(name)):
            return []
        known = await self._known_slots(service, name)
        wanted = sorted((slot for slot in known if before is None or slot < before), reverse=True)
        found = await asyncio.gather(*(
            self._store.value(self._slot(service, name, slot), SLOT) for slot in wanted[:limit]
        ))  # fmt: skip
        return [each.value for each in found if each.value is not None]

    async def _known_slots(self, service: str, name: str) -> list[Instant]:
        found = await self._store.subjects_of(self._slot(service, name, "*"))
        return [int(subject.rpartition(".")[2]) for subject in found]

    async def restore(self, draft: Draft, service: str, name: str, record: SlotRecord) -> None:
        """Stage a slot of another store; one that was decided here stays as it is."""
        subject = self._slot(service, name, record.decision.slot)
        if await draft.value(subject, SLOT) is None:
            draft.put(subject, record)

    # -- changes -------------------------------------------------------------------------------

    async def add(self, schedule: Schedule) -> bool:
        """Store a new schedule; False: there is one of that name already."""
        names = check_service(schedule.service), check_schedule(schedule.name)
        subject = self._schedule(*names)

        async def stage(draft: Draft) -> bool:
            if await draft.value(subject, _SCHEDULE) is not None:
                return False
            draft.put(subject, schedule._replace(version=1))
            return True

        return await decided(self._store, stage)

    async def advance(self, step: Step, change: Change | None, by: By) -> list[SlotRecord] | None:
        """Store a step of a schedule: its jobs, its entries of the ledger, the schedule."""
        records: list[SlotRecord] = []
        for number in range(max(1, -(-len(step.slots) // _TOGETHER))):
            stage = partial(
                self._stage, step=step, number=number, records=records, change=change, by=by
            )
            new = await decided(self._store, stage)
            if new is None:
                return None
            records += new
        if records:
            await self._prune(step.schedule, {each.decision.slot for each in records})
        return records

    async def _stage(
        self,
        draft: Draft,
        *,
        step: Step,
        number: int,
        records: Sequence[SlotRecord],
        change: Change | None,
        by: By,
    ) -> list[SlotRecord] | None:
        """Stage one part of a step; None if the step does not hold any more."""
        version = step.schedule.version + number
        stored = await self._current(draft, step.schedule, version)
        if stored is None or (step.until is not None and step.until <= draft.now):
            return None
        start, end = number * _TOGETHER, (number + 1) * _TOGETHER
        new = await self._stage_slots(draft, step, step.slots[start:end])
        left = step.slots[end:]
        if left:
            created = [each.job_id for each in new if each.decision.outcome == "created"]
            kept = remember(stored, [each for each in created if each is not None])
            self._put(draft, kept._replace(next_slot=left[0].slot), version)
            return new
        self._put(draft, advanced(step, [*records, *new]), version)
        if change is not None:
            draft.record(change, by)
        return new

    async def run(self, schedule: Schedule, new: NewJob, by: By) -> CreateResult | None:
        """Create a job of a schedule outside of its slots."""

        async def stage(draft: Draft) -> CreateResult | None:
            if await self._current(draft, schedule, schedule.version) is None:
                return None
            (answer,) = await self._admit(draft, [new])
            if isinstance(answer, Accepted | Replaced):
                self._put(draft, remember(schedule, [new.id]), schedule.version)
                draft.record(run_of(schedule.title, new.id), by)
            return answer

        return await decided(self._store, stage)

    async def _current(self, draft: Draft, schedule: Schedule, version: int) -> Schedule | None:
        """Return a schedule as it is stored; None if it has another version."""
        subject = self._schedule(schedule.service, schedule.name)
        stored: Schedule | None = await draft.value(subject, _SCHEDULE)
        if stored is None:
            return schedule if version == 0 else None
        return stored if stored.version == version else None

    def _put(self, draft: Draft, schedule: Schedule, version: int) -> None:
        subject = self._schedule(schedule.service, schedule.name)
        draft.put(subject, schedule._replace(version=version + 1))

    async def _stage_slots(
        self, draft: Draft, step: Step, part: Sequence[SlotDecision]
    ) -> list[SlotRecord]:
        """Stage the slots that the ledger does not have, and their jobs."""
        service, name = step.schedule.service, step.schedule.name
        subjects = {each.slot: self._slot(service, name, each.slot) for each in part}
        values = await asyncio.gather(*(draft.value(each, SLOT) for each in subjects.values()))
        known = {slot for slot, value in zip(subjects, values, strict=True) if value is not None}
        wanted = {each.slot for each in part} - known
        jobs = {slot: new for slot, new in step.jobs if slot in wanted}
        answers: dict[Instant, CreateResult] = {}
        if jobs:
            admitted = await self._admit(draft, list(jobs.values()))
            answers = dict(zip(jobs, admitted, strict=True))
        records = [
            slot_record(each, answers.get(each.slot), draft.now)
            for each in part
            if each.slot in wanted
        ]
        for record in records:
            draft.put(subjects[record.decision.slot], record)
        return records

    async def _prune(self, schedule: Schedule, new: Container[Instant]) -> None:
        """Remove old slots from a ledger, except those that were just decided."""
        oldest = self._store.time.now() - KEEP_SLOTS
        wanted = self._slot(schedule.service, schedule.name, "*")
        stream = self._store.stream_of(wanted)
        while True:
            found = await self._store.link.following(stream, wanted, 1, _PRUNED)
            slots = {int(got.subject.rpartition(".")[2]) for got in found}
            old = [slot for slot in slots if slot < oldest and slot not in new]
            try:
                for slot in old:
                    await purge(self._store, self._slot(schedule.service, schedule.name, slot))
            except AccessDenied:  # of a user of one service: the janitor deletes them
                return
            if len(old) < _PRUNED:
                return

    def _schedule(self, service: str, name: str) -> str:
        return self._store.subjects.own("schedules", service, "n", name)

    def _slot(self, service: str, name: str, slot: Instant | str) -> str:
        return self._store.subjects.own("slots", service, "n", name, str(slot))


class ScheduleVerbs:
    """The part of the engine that schedules use."""

    _schedules: ScheduleTable

    async def schedules(self, services: Sequence[str] = ()) -> list[Schedule]:
        """Return the schedules of these services, or of all."""
        return await self._schedules.all(services)

    async def add_schedules(self, added: Sequence[Schedule]) -> list[bool]:
        """Store new schedules."""
        return [await self._schedules.add(each) for each in added]

    async def due_schedules(self, limit: int) -> DueSchedules:
        """Return the schedules with a due slot."""
        return await self._schedules.due(limit)

    async def advance_schedule(
        self, step: Step, change: Change | None = None, by: By = OPERATOR
    ) -> list[SlotRecord] | None:
        """Store a step of a schedule: its jobs, its entries of the ledger, the schedule."""
        return await self._schedules.advance(step, change, by)

    async def run_schedule(self, schedule: Schedule, new: NewJob, by: By) -> CreateResult | None:
        """Create a job of a schedule outside of its slots."""
        return await self._schedules.run(schedule, new, by)

    async def slots(
        self, service: str, name: str, *, before: Instant | None = None, limit: int = 50
    ) -> list[SlotRecord]:
        """Return a part of the ledger of a schedule, the latest slots first."""
        return await self._schedules.slots(service, name, before, limit)
