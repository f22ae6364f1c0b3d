"""Reads of single jobs and keys from the stream itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from trellis.core.events import Event
from trellis.core.job import JobId, SessionId
from trellis.core.states import ENDED, State
from trellis.engines.jetstream.commit import Seen
from trellis.engines.jetstream.keys import CODEC, KeyState
from trellis.engines.jetstream.message import StoredEvent, StoredRemoval, decode_note
from trellis.engines.jetstream.old_jobs import OldJobs
from trellis.engines.jetstream.projection import Projection
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import is_token
from trellis.engines.operating import JobFacts, WorkerName
from trellis.engines.values import Activity, KeyStatus, Loaded, Outcome

#: Of how many jobs at most facts are read from the stream.
_FEW: Final = 8


class ReadVerbs:
    """The part of the engine that reads jobs and keys."""

    _store: Store
    _seen: Seen
    _projection: Projection
    _old_jobs: OldJobs

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs."""
        records = await self._old_jobs.load(ids)
        others = [each for each in ids if each not in records]
        removed = set[JobId]()
        for job_id, found in zip(others, await self._store.find_many(others), strict=True):
            if isinstance(found, Current):
                self._seen.add(found)
                records[job_id] = found.record
            elif isinstance(found, StoredRemoval):
                removed.add(job_id)
        return Loaded(self._store.time.now(), tuple(map(records.get, ids)), frozenset(removed))

    async def _events(self, current: Current) -> list[StoredEvent]:
        """Return all lifecycle events of a job, oldest first."""
        found = await self._store.link.following(
            self._store.subjects.jobs,
            self._store.subjects.fence(current.job),
            current.definition.row,
            1_000_000,
        )
        stored = map(self._store.decode, found)
        return [each for each in stored if isinstance(each, StoredEvent) and each.event is not None]

    async def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job, oldest first, journalled notes included."""
        current = await self._store.job(job_id)
        if current is None:
            return []
        subjects = self._store.subjects
        late = f"{subjects.fence(current.job).removesuffix('*')}staleCompletionIgnored.*"
        notes = await self._store.link.following(
            subjects.jobs, late, current.definition.row, 1_000_000
        )
        entries = [(each.sequence, each.event) for each in await self._events(current)]
        entries += [
            (got.sequence, decode_note(current.job, got.sequence, got.body).event) for got in notes
        ]
        ordered = sorted(entries, key=lambda each: each[0])
        return [event for _, event in ordered if event is not None]

    async def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation of a job ended, oldest first."""
        current = await self._store.job(job_id)
        outcomes: list[Outcome] = []
        for each in await self._events(current) if current is not None else ():
            head = each.head
            if head.state not in ENDED or head.finished_at is None:
                continue
            if head.state is State.DISMISSED:
                outcomes[-1] = outcomes[-1]._replace(state=head.state, finished_at=head.finished_at)
                continue
            outcomes.append(
                Outcome(
                    head.generation, head.state, head.attempt, each.started_at, head.finished_at,
                    each.raw, head.error,
                )
            )  # fmt: skip
        return outcomes

    async def facts(self, ids: Sequence[JobId]) -> dict[JobId, JobFacts]:
        """Return what people want to know of jobs beside their records.

        Those of a few jobs are read from the stream: the state of a job needs no admin runtime.
        """
        if len(ids) > _FEW:
            known: dict[JobId, JobFacts] = await self._projection.ask("facts", ids)
            return known
        found = await asyncio.gather(*map(self._facts_of, ids))
        return {job_id: each for job_id, each in zip(ids, found, strict=True) if each is not None}

    async def _facts_of(self, job_id: JobId) -> JobFacts | None:
        current = await self._store.job(job_id)
        if current is None:
            return None
        events = [each.event for each in await self._events(current) if each.event is not None]
        fences = [event.fence for event in events if event.fence is not None]
        session = fences[-1].session if fences else None
        names = {} if session is None else await self.identify([session])
        started_at = result = None
        if current.head.state in ENDED:
            outcome = (await self.outcomes(job_id))[-1]
            started_at, result = outcome.started_at, outcome.result
        if started_at is None:
            activity = await self.activity(job_id)
            started_at = None if activity is None else activity.began_at
        worker = None if session is None else names.get(session)
        return JobFacts(started_at, events[-1].at, session, worker, result)

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt reported about itself."""
        raise NotImplementedError

    async def identify(self, sessions: Sequence[SessionId]) -> dict[SessionId, WorkerName]:
        """Return the worker processes of sessions."""
        raise NotImplementedError

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that has a holder or a waiting job, in order of key."""
        if not (is_token(service) and is_token(job_type)):
            return []
        wanted = self._store.subjects.key(service, job_type, "*")
        found = await self._store.values([wanted], CODEC)
        statuses = await asyncio.gather(
            *(
                self._status(service, job_type, subject.rpartition(".")[2], value.value)
                for subject, value in found
                if value.value is not None and not value.value.is_empty
            )
        )
        # A slot that lingers for a removed job is no reason to list a key.
        used = (each for each in statuses if each.holders or each.waiting)
        return sorted(used, key=lambda each: each.key)

    async def _status(
        self, service: str, job_type: str, key_hash: str, state: KeyState
    ) -> KeyStatus:
        slots = sorted(state.slots, key=lambda each: each.order)
        jobs = await self._store.find_many([each.id for each in slots])
        there = [each for each in jobs if isinstance(each, Current)]
        return KeyStatus(
            service,
            job_type,
            state.key,
            key_hash,
            tuple(each.definition.id for each in there),
            state.facts.waiting,
            any(each.head.blocked for each in there),
            removed=len(jobs) - len(there),
        )
