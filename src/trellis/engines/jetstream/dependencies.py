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
#: How many messages it takes at most to decide about a waiting job that ends then: its links and
#: event, those that wait for it, and that some of these are left.
_PER_JOB: Final = 4
#: How many more, if it has a key: the key, two pages of its line, a hint at the next job.
_PER_KEY: Final = 4
#: How many more for each batch: the batch and the one around it, and the job that follows, with
#: its key, marks and hint.
_PER_BATCH: Final = 8
#: How many messages the end of a job takes itself: those that wait for it, and that some are left.
_PER_END: Final = 2


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

    async def overlooked(self, current: Current) -> list[JobId]:
        """Return the ended jobs for which a job still waits.

        Not all of what follows their end is stored: a batch had no room for it, or was incomplete.
        """
        waits: Waits | None = (await self._store.value(self._waits(current.job.id), WAITS)).value
        if waits is None or waits.is_resolved:
            return []
        names = [each.prerequisite for each in waits.bonds if each.ended is None]
        jobs = await self._store.find_many(names)
        return [
            each.job.id for each in jobs if isinstance(each, Current) and each.head.state in ENDED
        ]

    # -- linking -------------------------------------------------------------------------------

    async def add(self, draft: Draft, new: NewJob) -> None:
        """Stage the links of a new job, in the order in which the others were created."""
        bonds = []
        found = [(each, await draft.job(each.id)) for each in new.after]
        known = [(each, other) for each, other in found if other is not None]
        for each, other in sorted(known, key=lambda one: draft.place(one[1])):
            has_ended = other.head.state in ENDED
            bonds.append(
                Bond(each.id, each.on, other.head.state, other.head.generation)
                if has_ended
                else Bond(each.id, each.on)
            )
            if has_ended and new.relations is not None and new.relations.payload_from == each.id:
                draft.watch(other)  # a removal of it at the same time would lose its result
            await self._link(draft, other, new.id, is_open=not has_ended)
        if sum(each.ended is None for each in bonds) > MOST_PREREQUISITES:
            raise CapabilityMissing(
                f"On NATS JetStream a job can wait for at most {MOST_PREREQUISITES} jobs that have "
                "not ended. Nothing was stored. Put them into a batch and let the job be its then=."
            )
        await draft.value(self._waits(new.id), WAITS)
        draft.put(self._waits(new.id), Waits(tuple(bonds)), first=True)

    async def restore(
        self, draft: Draft, job_id: JobId, links: Sequence[Bond], *, is_resolved: bool
    ) -> None:
        """Stage the links of a job of another store to the jobs that are here."""
        bonds = []
        for each in links:
            other = await draft.job(each.prerequisite)
            if other is None:
                continue  # it had decided its links before
            is_open = each.ended is None and other.head.state not in ENDED
            bond = each
            if each.ended is None and not is_open:
                bond = each._replace(ended=other.head.state, generation=other.head.generation)
            bonds.append(bond)
            await self._link(draft, other, job_id, is_open=is_open)
        await draft.value(self._waits(job_id), WAITS)
        draft.put(self._waits(job_id), Waits(tuple(bonds), is_resolved))

    async def _link(self, draft: Draft, other: Current, job_id: JobId, *, is_open: bool) -> None:
        watch = await self.watch(draft, other.job.id)
        if is_open:
            draft.watch(other)
        draft.put(
            self._watch(other.job.id),
            watch._replace(
                dependents=_with(watch.dependents, job_id),
                open=_with(watch.open, job_id) if is_open else watch.open,
            ),
            first=True,
        )

    async def watch(self, draft: Draft, job_id: JobId) -> Watch:
        """Return what waits for a job."""
        return await draft.value(self._watch(job_id), WATCH) or Watch()

    async def stand_in(self, draft: Draft, current: Current, batch_id: str) -> None:
        """Stage that a batch waits for a job that stands for one of its members."""
        watch = await self.watch(draft, current.job.id)
        draft.watch(current)
        # A creation that is repeated may have left it there.
        others = (each for each in watch.batches if each != batch_id)
        after = watch._replace(batches=(*others, batch_id))
        draft.put(self._watch(current.job.id), after, first=True)

    # -- ending --------------------------------------------------------------------------------

    async def end(self, draft: Draft, ended: Sequence[Transition]) -> list[JobId]:
        """Stage that jobs have ended for those that wait for them; return these.

        What follows from the decisions about them has room in the same batch. Those for which there
        is no room are left to `more`.
        """
        watches: list[tuple[Transition, Watch]] = []
        for transition in ended:
            current = await draft.job(transition.definition.id)
            if current is not None and current.is_watched:
                watches.append((transition, await self.watch(draft, current.job.id)))
        room, batches = draft.room - _PER_END * len(watches), set[str]()
        moved: list[JobId] = []
        for transition, watch in watches:
            job_id, head = transition.definition.id, transition.head
            number, room = await self._divide(draft, watch.open, room, batches)
            now, later = watch.open[:number], watch.open[number:]
            for dependent in now:
                await self._decide(draft, dependent, job_id, head.state, head.generation)
            # Also with nothing open: a job that begins to wait at the same time is then refused.
            draft.put(self._watch(job_id), watch._replace(open=later, batches=()))
            if later:
                await draft.value(self._left(job_id), _LEFT)
                draft.put(self._left(job_id), job_id)
            moved += now
        return moved

    async def _divide(
        self, draft: Draft, dependents: Sequence[JobId], room: int, batches: set[str]
    ) -> tuple[int, int]:
        """Return for how many of these jobs there is room, and how much room is left then.

        `batches`: those for which there is room already.
        """
        for number, job_id in enumerate(dependents):
            current = await draft.job(job_id)
            size = _PER_JOB if current is None else _size(current, batches)
            if size > room:
                return number, 0
            room -= size
        return len(dependents), room

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
        number, _ = await self._divide(draft, watch.open, draft.room - _PER_END, set())
        now, later = watch.open[:number], watch.open[number:]
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


def _size(current: Current, batches: set[str]) -> int:
    """Return how many messages the decision about a waiting job takes at most; add its batch."""
    definition = current.definition
    size = _PER_JOB + len(definition.policy.hooks)
    if definition.key_hash is not None:
        size += _PER_KEY
    batch = definition.relations and definition.relations.batch
    if batch is not None and batch not in batches:
        batches.add(batch)
        size += _PER_BATCH
    return size


def _with(ids: tuple[JobId, ...], job_id: JobId) -> tuple[JobId, ...]:
    """Return ids with another one: a creation that is repeated may have left it there."""
    return ids if job_id in ids else (*ids, job_id)
