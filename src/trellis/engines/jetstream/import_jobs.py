"""Importing the jobs of another store, some at a time.

Jobs are stored with all their messages, their marks, their place in the line of their key, and the
progress of the move, as one atomic batch: whole or not at all. A move that was interrupted goes on
after the last job of the last batch. Notes of a job that do not fit follow in batches of their own,
and the progress counts them. Waiting jobs get no slot of their key before all have arrived.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from trellis import failpoints
from trellis.core.admission import holds_dedupe
from trellis.core.audit import By, Change
from trellis.core.batches import Batch, NewBatch
from trellis.core.job import JobId, SessionId
from trellis.core.schedules import SlotDecision
from trellis.core.states import WAITING
from trellis.engines.jetstream import keys, topology
from trellis.engines.jetstream.batches import BatchTable
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.followups import Followups
from trellis.engines.jetstream.hints import schedule
from trellis.engines.jetstream.import_checks import (
    ImportChecks,
    check_same,
    holder_of,
    read_jobs,
    taken_by,
)
from trellis.engines.jetstream.imported_job import (
    ImportedJob,
    located,
)
from trellis.engines.jetstream.line import Line
from trellis.engines.jetstream.link import Message
from trellis.engines.jetstream.schedules import ScheduleTable
from trellis.engines.jetstream.seal import DeploymentSeal
from trellis.engines.jetstream.sessions import SessionTable
from trellis.engines.jetstream.state import decided
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import digest
from trellis.engines.schedules import SlotRecord
from trellis.engines.sql.rows import Row, decode_request
from trellis.engines.transfer import Compared, JobBatch, Kind, refusal
from trellis.engines.values import WorkerInfo
from trellis.engines.wire import codec_of
from trellis.errors import MoveRefused

#: How many messages, and how many bytes, one batch has at most; a few more come on top.
_MESSAGES: Final = 600
_BYTES: Final = 4_000_000
#: How many rows of other kinds are stored in one batch.
_ROWS: Final = 300


class Progress(NamedTuple):
    """How far a move has come."""

    move: str
    #: The number of the last job that is stored whole.
    last: int
    #: How many notes are stored of the job after it.
    notes: int = 0


_PROGRESS: Final = codec_of(Progress)


class JetStreamImporter:
    """Imports jobs into one deployment."""

    is_thorough = True

    def __init__(
        self,
        store: Store,
        *,
        sessions: SessionTable,
        schedules: ScheduleTable,
        dependencies: Dependencies,
        batches: BatchTable,
        followups: Followups,
    ) -> None:
        self._store, self._sessions, self._schedules = store, sessions, schedules
        self._dependencies, self._batches, self._followups = dependencies, batches, followups
        self._checks = ImportChecks(store)
        #: The sessions whose worker processes are stored.
        self._workers: set[int] = set()

    async def instance(self) -> str:
        """Return the identity of this deployment: that of its stream of jobs."""
        stream = self._store.subjects.jobs
        info = await self._store.link.api(f"STREAM.INFO.{stream}")
        return f"{stream} {topology.identity_of(info)}"

    async def sealed_for(self) -> str | None:
        """Return where the jobs of this deployment were moved to; None: it takes jobs."""
        seal = await DeploymentSeal(self._store).read()
        return None if seal is None else seal.address

    async def cursor(self, move: str) -> int:
        """Return the number of the last job that was imported; 0 before the first."""
        found: Progress | None = (await self._store.value(self._place(move), _PROGRESS)).value
        return 0 if found is None else found.last

    def _place(self, move: str) -> str:
        return self._store.subjects.own("moves", digest(move))

    async def compare(self, batch: JobBatch) -> Compared:
        """Return which jobs are here already, and which cannot be imported."""
        return await self._checks.compare(batch)

    async def known(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Return which of these jobs are here, or were here and were removed."""
        return await self._checks.known(ids)

    # -- jobs ----------------------------------------------------------------------------------

    async def import_batch(self, move: str, batch: JobBatch) -> int:
        """Store jobs together with the progress of the move; return how many were new."""
        place = (await self._store.value(self._place(move), _PROGRESS)).value or Progress(move, 0)
        if place.last != batch.after:
            raise _other_move()
        await self._store_workers(batch.workers)
        jobs, copied = list(read_jobs(self._store.subjects, batch)), 0
        if place.notes:  # the first one is here, but for some of its notes
            place = await self._store_notes(place, jobs[0])
            copied += 1
            jobs = jobs[1:]
        for part in _parts(jobs):
            # Those that were moved before, in another state, are here.
            stored = await self._store.find_many([job.current.job.id for job in part])
            new = [job for job, known in zip(part, stored, strict=True) if known is None]
            check_same(part, stored)
            if len(new) == 1 and new[0].size > _MESSAGES:
                place = await self._store_large(place, new[0])
            else:
                place = await self._store_part(place, new, place._replace(last=part[-1].row))
            copied += len(new)
            failpoints.reach("jetstream.import")
        if place.last != batch.last:
            await self._advance(place, place._replace(last=batch.last))
        return copied

    async def _store_workers(self, workers: Sequence[Row]) -> None:
        """Store who ran the jobs, so that their journals can name them."""
        for session, name, host, pid in workers:
            if session not in self._workers:
                await self._sessions.restore(SessionId(session), WorkerInfo(name, host, pid))
                self._workers.add(session)

    async def _store_part(
        self, before: Progress, jobs: Sequence[ImportedJob], after: Progress
    ) -> Progress:
        await self._schedule(jobs)

        async def stage(draft: Draft) -> None:
            for job in jobs:
                await self._stage(draft, job)
            waiting = [job.current.job.id for job in jobs if job.bonds and not job.is_resolved]
            await self._followups.settle_new(draft, waiting)

        return await self._advance(before, after, stage)

    async def _store_large(self, place: Progress, job: ImportedJob) -> Progress:
        """Store a job with more notes than one batch takes."""
        room = _MESSAGES - (job.size - len(job.notes))
        first = job._replace(notes=job.notes[: max(1, room)])
        after = place._replace(notes=len(first.notes))
        return await self._store_notes(await self._store_part(place, [first], after), job)

    async def _store_notes(self, place: Progress, job: ImportedJob) -> Progress:
        """Store the rest of the notes of a job that is here."""
        while place.notes < len(job.notes):
            part = job.notes[place.notes : place.notes + _MESSAGES]

            async def stage(draft: Draft, part: Sequence[Message] = part) -> None:
                found = await draft.job(job.current.job.id)
                if found is not None:  # it may have ended here, and was removed
                    draft.append([located(each, found.definition.row) for each in part])

            place = await self._advance(place, place._replace(notes=place.notes + len(part)), stage)
            failpoints.reach("jetstream.import")
        return await self._advance(place, Progress(place.move, job.row))

    async def _advance(
        self,
        before: Progress,
        after: Progress,
        stage: Callable[[Draft], Awaitable[None]] | None = None,
    ) -> Progress:
        """Store what is staged together with the progress."""
        subject = self._place(before.move)

        async def write(draft: Draft) -> None:
            found = await draft.value(subject, _PROGRESS) or Progress(before.move, 0)
            if found == after:
                return  # an earlier try was stored
            if found != before:
                raise _other_move()
            if stage is not None:
                await stage(draft)
            draft.put(subject, after)

        await decided(self._store, write)
        return after

    async def _schedule(self, jobs: Sequence[ImportedJob]) -> None:
        """Have the server hint at those that are not due yet; a hint too many changes nothing."""
        now, subjects = self._store.time.now(), self._store.subjects
        later = [
            schedule(subjects, job.current.job, head.run_at, head.run_at, "")
            for job in jobs
            if (head := job.current.head).state in WAITING and head.run_at > now
        ]
        await asyncio.gather(*map(self._store.link.write, later))

    async def _stage(self, draft: Draft, job: ImportedJob) -> None:
        current = job.current
        draft.adopt(current, (*job.events, *job.notes))
        await self._stage_marks(draft, job)
        if job.bonds:
            await self._dependencies.restore(
                draft, current.job.id, job.bonds, is_resolved=job.is_resolved
            )
        for batch, is_linked, succeeded in job.members:
            await self._batches.restore_member(
                draft, batch, current, is_linked=is_linked, succeeded=succeeded
            )
        if current.definition.key_hash is not None and current.head.state in WAITING:
            await self._stage_line(draft, job)

    async def _stage_marks(self, draft: Draft, job: ImportedJob) -> None:
        definition, head = job.current.record
        names = definition.service, definition.type
        dedupe = definition.dedupe
        marks = {"i": job.idempotency_key}
        if dedupe is not None and holds_dedupe(definition, head, draft.now):
            marks["d"] = dedupe.key
        for kind, text in marks.items():
            if text is not None:
                subject = self._store.subjects.mark(*names, kind, text)
                holder = await holder_of(draft, "/".join((*names, text)), kind)
                if holder is None or (
                    kind == "d" and not holds_dedupe(holder.definition, holder.head, draft.now)
                ):
                    draft.put(subject, definition.id)
                elif holder.job.id != definition.id:
                    what = "dedupe" if kind == "d" else "idempotency"
                    raise MoveRefused(refusal([taken_by(definition.id, holder, what)]))

    async def _stage_line(self, draft: Draft, job: ImportedJob) -> None:
        """Put a waiting job into the line of its key; it gets no slot before `assign_slots`."""
        definition, head = job.current.record
        line = Line(draft, definition.service, definition.type, definition.key_hash or "")
        state, order = await line.read(definition.key or ""), job.current.created.request.order
        waiter = keys.waiter_of(definition, head, order, is_unresolved=True)
        state = keys.enter(state._replace(latest=max(state.latest, order)), waiter)
        if job.holds and len(state.slots) < waiter.active:
            state = state._replace(slots=(*state.slots, keys.Slot(definition.id, order)))
        await line.put(state)

    # -- what is no job ------------------------------------------------------------------------

    async def import_rows(self, kind: Kind, move: str, after: int, rows: Sequence[Row]) -> None:
        """Store rows of a kind together with the progress of the move."""
        place = Progress(move, after)
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]

            async def stage(draft: Draft, part: Sequence[Row] = part) -> None:
                for row in part:
                    await self._stage_row(draft, kind, row[1:])

            place = await self._advance(place, Progress(move, part[-1][0]), stage)

    async def _stage_row(self, draft: Draft, kind: Kind, row: Row) -> None:
        if kind == "audit":
            at, actor, action, target, before, after, reason = row
            change = Change(action, target, *map(_json, (before, after)))
            draft.record(change, By(actor, reason), at)
        elif kind == "batches":
            await self._batches.restore(draft, _batch(row))
        else:
            service, name, slot, outcome, late, why, through, job, decided_at = row
            decision = SlotDecision(slot, outcome, bool(late), why, through)
            record = SlotRecord(decision, None if job is None else JobId(job), decided_at)
            await self._schedules.restore(draft, service, name, record)

    async def record(self, move: str, change: Change, by: By) -> None:
        """Store an entry of the audit about this move, once."""
        subject = self._place(move)

        async def write(draft: Draft) -> None:
            if await draft.value(subject, _PROGRESS) is None:
                draft.record(change, by)
                draft.put(subject, Progress(move, 1))

        await decided(self._store, write)

    async def assign_slots(self) -> None:
        """Give the free slots of all keys to their waiting jobs."""
        wanted = self._store.subjects.own("keys", "*", "*", "h", "*")
        for subject, value in await self._store.values([wanted], keys.CODEC):
            state: keys.KeyState = value.value or keys.KeyState("")
            if state.pages or any(each.is_unresolved for each in state.waiting):
                await decided(self._store, partial(self._assign, subject=subject))

    async def _assign(self, draft: Draft, subject: str) -> None:
        line = Line.at(draft, subject)
        state = await line.read("")
        state = await line.load(state, state.pages)
        waiting = []
        for each in state.waiting:
            current = await draft.job(each.id)
            if current is not None and current.head.state in WAITING:
                is_unresolved = await self._dependencies.is_unresolved(current)
                waiting.append(each._replace(is_unresolved=is_unresolved))
        state = state._replace(waiting=tuple(sorted(waiting, key=lambda each: each.rank)))
        state, handed, *_ = await line.hand_over(state, draft.now)
        await line.put(state)
        for job_id in {*handed, *(slot.id for slot in state.slots)}:
            current = await draft.job(job_id)
            if current is None or current.head.state not in WAITING:
                continue
            # Others were scheduled before they were stored; a hint would say that they are due.
            if current.head.run_at <= draft.now:
                draft.hint(current)


def _parts(jobs: Sequence[ImportedJob]) -> Iterator[list[ImportedJob]]:
    """Return the jobs in groups that one batch can store."""
    part: list[ImportedJob] = []
    messages = characters = 0
    for job in jobs:
        size = sum(message.size for message in (*job.events, *job.notes))
        if part and (messages + job.size > _MESSAGES or characters + size > _BYTES):
            yield part
            part, messages, characters = [], 0, 0
        part.append(job)
        messages += job.size
        characters += size
    if part:
        yield part


def _batch(row: Row) -> Batch:
    """Return a batch; one that has not finished is sealed when all its members are here."""
    (
        batch_id, service, name, fire_on, on_failure, parent, then, created_at, sealed_at,
        cancelled_at, stopping_at, finished_at, succeeded, fan_in,
    ) = row  # fmt: skip
    new = NewBatch(
        batch_id, service, name, fire_on, on_failure, parent,
        None if then is None else decode_request(then),
    )  # fmt: skip
    return Batch(
        new, 0, created_at, sealed_at if finished_at is not None else None, cancelled_at,
        stopping_at, finished_at, None if succeeded is None else bool(succeeded), fan_in,
    )  # fmt: skip


def _json(text: str | None) -> Any:  # noqa: ANN401 - a JSON value
    return None if text is None else json.loads(text)


def _other_move() -> MoveRefused:
    return MoveRefused(
        "Another `trellis move` of the same jobs is running, or has just ended. Let it finish, "
        "then run this again to check that all jobs are there."
    )


__all__ = ["JetStreamImporter"]
