"""Jobs that wait for others: a state per waiting job, and one per job that is waited for.

`waits.<id>` has the links of a waiting job, `watch.<id>` the jobs and batches that wait for a job.
The job that is waited for is marked as watched, under its own fence: an end that was decided
before is refused, and decided again with what follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from trellis.core.dependencies import Link, judge
from trellis.core.job import FollowsOn, JobId, NewJob
from trellis.core.lifecycle import Transition, decide
from trellis.core.states import ENDED, SUCCEEDED, State
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.message import StoredEvent
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.wire import codec_of
from trellis.errors import CapabilityMissing

#: How many unfinished jobs one job can wait for: each takes two messages of the batch.
MOST_PREREQUISITES: Final = 400
#: How many messages the move of one waiting job takes at most, beside those of a batch of jobs.
_PER_JOB: Final = 5


class Bond(NamedTuple):
    """One link of a waiting job: to which job, on what, and how that has ended."""

    prerequisite: JobId
    on: FollowsOn
    ended: State | None = None
    generation: int = 0


class Waits(NamedTuple):
    """What a job waits for, or has waited for."""

    bonds: tuple[Bond, ...]
    is_resolved: bool = False


class Watch(NamedTuple):
    """What waits for the end of a job."""

    #: All jobs that wait or waited for it.
    dependents: tuple[JobId, ...] = ()
    #: Those that its next end decides about.
    open: tuple[JobId, ...] = ()
    #: Batches in which it stands for a new job, and which wait for it.
    batches: tuple[str, ...] = ()


WAITS: Final = codec_of(Waits)
WATCH: Final = codec_of(Watch)
_LEFT: Final = codec_of(JobId)


class Dependencies:
    """The links between jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _waits(self, job_id: JobId) -> str:
        return self._store.subjects.own("waits", job_id)

    def _watch(self, job_id: JobId) -> str:
        return self._store.subjects.own("watch", job_id)

    def _left(self, job_id: JobId) -> str:
        return self._store.subjects.own("left", job_id)

    async def missing(self, draft: Draft, new: NewJob) -> JobId | None:
        """Return a job that a request is to follow and that is not there."""
        for each in new.after:
            if await draft.job(each.id) is None:
                return each.id
        return None

    async def is_unresolved(self, current: Current) -> bool:
        """Return whether a waiting job still waits for others."""
        if not current.created.request.after:
            return False
        found = (await self._store.value(self._waits(current.job.id), WAITS)).value
        return found is not None and not found.is_resolved

    # -- linking -------------------------------------------------------------------------------

    async def add(self, draft: Draft, new: NewJob) -> None:
        """Stage the links of a new job."""
        bonds = []
        for each in new.after:
            other = await draft.job(each.id)
            if other is None:
                continue
            has_ended = other.head.state in ENDED
            bonds.append(
                Bond(each.id, each.on, other.head.state, other.head.generation)
                if has_ended
                else Bond(each.id, each.on)
            )
            await self._link(draft, other, new.id, is_open=not has_ended)
        if sum(each.ended is None for each in bonds) > MOST_PREREQUISITES:
            raise CapabilityMissing(
                f"On NATS JetStream a job can wait for at most {MOST_PREREQUISITES} jobs that have "
                "not ended. Nothing was stored. Put them into a batch and let the job be its then=."
            )
        await draft.value(self._waits(new.id), WAITS)
        draft.put(self._waits(new.id), Waits(tuple(bonds)))

    async def _link(self, draft: Draft, other: Current, job_id: JobId, *, is_open: bool) -> None:
        watch = await self.watch(draft, other.job.id)
        if is_open:
            draft.watch(other)
        draft.put(
            self._watch(other.job.id),
            watch._replace(
                dependents=(*watch.dependents, job_id),
                open=(*watch.open, job_id) if is_open else watch.open,
            ),
        )

    async def watch(self, draft: Draft, job_id: JobId) -> Watch:
        """Return what waits for a job."""
        return await draft.value(self._watch(job_id), WATCH) or Watch()

    async def stand_in(self, draft: Draft, current: Current, batch_id: str) -> None:
        """Stage that a batch waits for a job that stands for one of its members."""
        watch = await self.watch(draft, current.job.id)
        draft.watch(current)
        draft.put(self._watch(current.job.id), watch._replace(batches=(*watch.batches, batch_id)))

    # -- ending --------------------------------------------------------------------------------

    async def end(self, draft: Draft, transition: Transition) -> list[JobId]:
        """Stage that a job has ended for those that wait for it; return these."""
        job_id, head = transition.definition.id, transition.head
        watch = await self.watch(draft, job_id)
        room = draft.room // _PER_JOB
        now, later = watch.open[:room], watch.open[room:]
        for dependent in now:
            await self._decide(draft, dependent, job_id, head.state, head.generation)
        if watch.open or watch.batches:
            draft.put(self._watch(job_id), watch._replace(open=later, batches=()))
        if later:
            await draft.value(self._left(job_id), _LEFT)
            draft.put(self._left(job_id), job_id)
        return list(now)

    async def _decide(
        self, draft: Draft, dependent: JobId, job_id: JobId, state: State, generation: int
    ) -> None:
        waits: Waits | None = await draft.value(self._waits(dependent), WAITS)
        if waits is not None:
            bonds = tuple(
                each._replace(ended=state, generation=generation)
                if each.prerequisite == job_id and each.ended is None
                else each
                for each in waits.bonds
            )
            draft.put(self._waits(dependent), waits._replace(bonds=bonds))

    async def judge(self, draft: Draft, job_id: JobId, result: str | None) -> Transition | None:
        """Return what is to happen to a job that waits for others; None: it waits on.

        `result`: of the job whose end is staged, if that is the one whose result is handed on.
        """
        waits: Waits | None = await draft.value(self._waits(job_id), WAITS)
        current = await draft.job(job_id)
        if waits is None or waits.is_resolved or current is None:
            return None
        links = [Link(job_id, each.prerequisite, each.on, each.ended) for each in waits.bonds]
        command = judge(links, await self._payload(current, waits, result))
        if command is None:
            return None
        decision = decide(current.record, command, max(draft.now, current.at))
        if not isinstance(decision, Transition):
            return None
        draft.put(self._waits(job_id), waits._replace(is_resolved=True))
        return decision

    async def _payload(self, current: Current, waits: Waits, result: str | None) -> str | None:
        relations = current.definition.relations
        if relations is None or relations.payload_from is None:
            return None
        found = (each for each in waits.bonds if each.prerequisite == relations.payload_from)
        bond = next(found, None)
        if bond is None or bond.ended not in SUCCEEDED:
            return None
        return result if result is not None else await self._result(bond)

    async def _result(self, bond: Bond) -> str:
        """Return the result of a prerequisite that has succeeded before."""
        other = await self._store.job(bond.prerequisite)
        if other is None:
            return "null"
        subject = self._store.subjects.event(other.job, "completed")
        found = await self._store.link.following(
            self._store.subjects.jobs, subject, other.definition.row
        )
        for got in found:
            stored = self._store.decode(got)
            if isinstance(stored, StoredEvent) and stored.head.generation == bond.generation:
                return stored.raw or "null"
        return "null"

    # -- reading -------------------------------------------------------------------------------

    async def links(self, ids: Sequence[JobId], limit: int) -> list[Link]:
        """Return the links of these jobs in both directions, in order of creation."""
        draft = Draft(self._store)
        pairs: dict[tuple[JobId, JobId], Link] = {}
        for job_id in ids:
            if await draft.job(job_id) is None:
                continue
            watch = await self.watch(draft, job_id)
            for waiting in (job_id, *watch.dependents):
                waits: Waits | None = await draft.value(self._waits(waiting), WAITS)
                for each in waits.bonds if waits is not None else ():
                    if job_id in {waiting, each.prerequisite}:
                        pairs[waiting, each.prerequisite] = Link(
                            waiting, each.prerequisite, each.on, each.ended
                        )
        rows = {
            each: current.definition.row
            for each in {name for pair in pairs for name in pair}
            if (current := await draft.job(each)) is not None
        }
        found = [pair for pair in pairs if pair[0] in rows and pair[1] in rows]
        ordered = sorted(found, key=lambda pair: (rows[pair[0]], rows[pair[1]]))
        return [pairs[pair] for pair in ordered[:limit]]

    async def is_needed(self, draft: Draft, job_id: JobId) -> bool:
        """Return whether a job that has not ended follows this one."""
        for each in (await self.watch(draft, job_id)).dependents:
            current = await draft.job(each)
            if current is not None and current.head.state not in ENDED:
                return True
        return False

    async def left(self) -> list[JobId]:
        """Return the ended jobs for which more jobs wait than one batch could move."""
        found = await self._store.values([self._store.subjects.own("left", "*")], _LEFT)
        return [value.value for _, value in found if value.value is not None]

    async def more(self, draft: Draft, current: Current) -> list[JobId]:
        """Stage the end of a job for more of those that wait for it; return these."""
        job_id, head = current.job.id, current.head
        watch = await self.watch(draft, job_id)
        room = draft.room // _PER_JOB
        now, later = watch.open[:room], watch.open[room:]
        for dependent in now:
            await self._decide(draft, dependent, job_id, head.state, head.generation)
        if now:
            draft.put(self._watch(job_id), watch._replace(open=later))
        if not later:
            await draft.value(self._left(job_id), _LEFT)
            draft.put(self._left(job_id), None)
        return list(now)

    async def drop(self, draft: Draft, job_id: JobId) -> None:
        """Stage that a job is removed: its states go with it."""
        for subject, codec in ((self._waits(job_id), WAITS), (self._watch(job_id), WATCH)):
            if await draft.value(subject, codec) is not None:
                draft.put(subject, None)
