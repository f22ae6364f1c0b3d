"""The jobs that are connected to one job: links, parents, children, and the batches around them.

A graph is read outwards from the job or batch that was asked for, up to a limit, and of many
children or members it has only some, so that its size does not depend on the size of the workflow.
It has types and states, and no payloads. `pictures.py` draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trellis.core.batches import BatchState
from trellis.core.dependencies import Link
from trellis.core.job import FollowsOn, JobId, JobRecord, Relations
from trellis.core.states import ENDED, State
from trellis.engines.batches import BatchStatus
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter
from trellis.errors import no_such_batch

#: How many jobs a graph has at most, unless told otherwise.
GRAPH_LIMIT: Final = 200
#: How many children of one job, and members of one batch, the graph of a job has.
_BESIDE: Final = 10
_SHOWN: Final = 3
_NOTHING: Final = Relations()


@dataclass(frozen=True, slots=True)
class LinkView:
    """One job waits, or has waited, for another."""

    job: str
    prerequisite: str
    #: What the prerequisite must do: end with success, or just finish.
    on: FollowsOn
    #: The state in which it ended; None: it has not ended.
    ended: State | None


@dataclass(frozen=True, slots=True)
class GraphJob:
    """One job of a graph."""

    id: str
    service: str
    type: str
    state: State
    #: The batch of which it is a member.
    batch: str | None
    #: It has created more jobs than the graph has.
    has_more: bool = False

    @property
    def name(self) -> str:
        """Service and type, as people write them."""
        return f"{self.service}/{self.type}"


@dataclass(frozen=True, slots=True)
class GraphBatch:
    """One batch of a graph."""

    id: str
    service: str
    name: str
    state: BatchState
    #: How many members it has, and how many of them the graph does not have.
    members: int
    hidden: int
    #: The type of its fan-in job, and that job once the batch has finished.
    then: str | None
    fan_in: str | None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An arrow from one job or batch to another."""

    source: str
    target: str
    #: The target follows the success or the end of the source, was created by it (`parent`), is a
    #: job or a batch in it (`member`), or is its fan-in job.
    kind: Literal["success", "finished", "parent", "member", "fan_in"]


@dataclass(frozen=True, slots=True)
class JobGraph:
    """Connected jobs and batches, in order of creation."""

    #: The job that was asked for; None: a batch was.
    job: str | None
    jobs: tuple[GraphJob, ...]
    edges: tuple[GraphEdge, ...]
    #: There are more jobs than the limit allows.
    is_cut: bool
    batches: tuple[GraphBatch, ...] = ()


def link_view(link: Link) -> LinkView:
    """Return the view of a stored link."""
    return LinkView(*link)


async def graph_of(engine: Engine, record: JobRecord, limit: int = GRAPH_LIMIT) -> JobGraph:
    """Return the jobs and batches connected to this job."""
    reading = _Reading(engine, limit)
    await reading.follow(record)
    return reading.graph(record.definition.id)


async def graph_of_batch(engine: Engine, batch_id: str, limit: int = GRAPH_LIMIT) -> JobGraph:
    """Return a batch, the batches in it, and their first members; raise `BatchNotFound`."""
    reading = _Reading(engine, limit)
    found = await reading.open_batches([batch_id], members=limit, outwards=False)
    if not reading.batches:
        raise no_such_batch(batch_id)
    reading.add(found)
    return reading.graph(None)


class _Reading:
    """What was read so far of a graph."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine = engine
        self._limit = limit
        self._jobs: dict[str, JobRecord] = {}
        self.batches: dict[str, BatchStatus] = {}
        #: The members that were read, by batch; some belong to the batch although they existed.
        self._members: dict[str, set[str]] = {}
        self._links: dict[tuple[str, str], GraphEdge] = {}
        #: Jobs that were reached as parents: their other children are not read.
        self._above: set[str] = set()
        #: Jobs with more children than were read.
        self._crowded: set[str] = set()
        self._is_cut = False

    # -- reading -------------------------------------------------------------------------------

    async def follow(self, record: JobRecord) -> None:
        """Read everything that is connected to a job."""
        level = self.add([record])
        while level:
            found = [*await self._linked(level), *await self._children(level)]
            names = [name for each in level for name in _batches_of(each)]
            found += await self.open_batches(names, members=_BESIDE, outwards=True)
            level = self.add(found)

    async def _linked(self, level: Sequence[JobRecord]) -> list[JobRecord]:
        """Return the jobs that these follow or are followed by, and their parents."""
        links = await self._engine.links([each.definition.id for each in level], self._limit**2)
        for link in links:
            edge = GraphEdge(link.prerequisite, link.job, link.on)
            self._links.setdefault((edge.source, edge.target), edge)
        parents = {parent for each in level if (parent := _relations(each).parent) is not None}
        self._above |= parents - self._jobs.keys()
        ends = (end for link in links for end in (link.prerequisite, link.job))
        return await self._load([*ends, *parents])

    async def _children(self, level: Sequence[JobRecord]) -> list[JobRecord]:
        """Return jobs that these have created: the newest ones of each."""
        found: list[JobRecord] = []
        for definition, head in level:
            if definition.id in self._above or not (head.claims or head.state in ENDED):
                continue
            page = await self._engine.find(JobFilter(parent=definition.id), limit=_BESIDE + 1)
            found += page.jobs[:_BESIDE]
            if len(page.jobs) > _BESIDE:
                self._crowded.add(definition.id)
        return found

    async def open_batches(
        self, names: Iterable[str], *, members: int, outwards: bool
    ) -> list[JobRecord]:
        """Read batches and those in them; return some of their members, and their fan-in jobs.

        `outwards`: also those around them.
        """
        found: list[JobRecord] = []
        waiting = list(names)
        while waiting:
            name = waiting.pop(0)
            if name in self.batches:
                continue
            if len(self.batches) >= self._limit:
                self._is_cut = True
                break
            (status,) = await self._engine.batch_statuses([name])
            if status is None:
                continue
            self.batches[name] = status
            some = [each.record for each in await self._engine.members(name, 0, members)]
            self._members[name] = {each.definition.id for each in some}
            fan_in, outer = status.batch.fan_in, status.batch.new.parent
            last = await self._load([] if fan_in is None else [fan_in])
            found = [*last, *found, *some]
            waiting += [each.new.id for each in status.children]
            waiting += [outer] if outer is not None and outwards else []
        return found

    async def _load(self, names: Iterable[str]) -> list[JobRecord]:
        unknown = [JobId(each) for each in dict.fromkeys(names) if each not in self._jobs]
        room = self._limit - len(self._jobs) + 1  # one more shows that the graph is cut
        loaded = (await self._engine.load(unknown[:room])).records if unknown else ()
        return [each for each in loaded if each is not None]

    def add(self, records: Iterable[JobRecord]) -> list[JobRecord]:
        """Add jobs while there is room; return those that are new."""
        new = {each.definition.id: each for each in records}
        fresh = [each for name, each in new.items() if name not in self._jobs]
        room = self._limit - len(self._jobs)
        self._is_cut |= len(fresh) > room
        self._jobs |= {each.definition.id: each for each in fresh[:room]}
        return fresh[:room]

    # -- the graph -----------------------------------------------------------------------------

    def graph(self, asked: str | None) -> JobGraph:
        """Return what was read."""
        ages = {name: (each.definition.created_at, 1, each.definition.row)
                for name, each in self._jobs.items()}  # fmt: skip
        ages |= {
            name: (each.batch.created_at, 0, each.batch.row) for name, each in self.batches.items()
        }
        edges = {(edge.source, edge.target): edge for edge in self._belonging()} | self._links
        kept = [edge for edge in edges.values() if {edge.source, edge.target} <= ages.keys()]
        kept.sort(key=lambda edge: (ages[edge.source], ages[edge.target]))
        below = {edge.source for edge in kept if edge.kind == "parent"}
        return JobGraph(
            asked,
            tuple(
                self._job(name, is_crowded=name in self._crowded & below)
                for name in sorted(self._jobs, key=ages.__getitem__)
            ),
            tuple(kept),
            self._is_cut,
            tuple(self._batch(name) for name in sorted(self.batches, key=ages.__getitem__)),
        )

    def _belonging(self) -> Iterator[GraphEdge]:
        """Yield one arrow to each job from what it belongs to most closely, and to each batch."""
        for name, record in self._jobs.items():
            relations = _relations(record)
            if relations.fan_in_of in self.batches:
                yield GraphEdge(relations.fan_in_of, name, "fan_in")
            elif relations.batch in self.batches and not self._was_spawned(relations):
                yield GraphEdge(relations.batch, name, "member")
            elif relations.parent is not None:
                yield GraphEdge(relations.parent, name, "parent")
        for name, members in self._members.items():
            for member in members & self._jobs.keys():
                if name not in _batches_of(self._jobs[member]):
                    yield GraphEdge(name, member, "member")
        for name, status in self.batches.items():
            outer = status.batch.new.parent
            if outer in self.batches:
                yield GraphEdge(outer, name, "member")
            else:
                yield from (GraphEdge(each, name, "parent") for each in self._openers(status))

    def _was_spawned(self, relations: Relations) -> bool:
        """Return whether a member was created by another member, below which it is drawn."""
        parent = self._jobs.get(relations.parent or "")
        return parent is not None and _relations(parent).batch == relations.batch

    def _openers(self, status: BatchStatus) -> Iterator[str]:
        """Yield the job whose handler has opened a batch: the parent of what was created in it."""
        new = status.batch.new
        related = [
            _relations(self._jobs[name]) for name in self._members[new.id] & self._jobs.keys()
        ]
        created = [each for each in related if each.batch == new.id and not self._was_spawned(each)]
        created.append((new.then and new.then.relations) or _NOTHING)
        yield from {each.parent for each in created if each.parent is not None}

    def _job(self, name: str, *, is_crowded: bool) -> GraphJob:
        definition, head = self._jobs[name]
        batch = _relations(self._jobs[name]).batch
        return GraphJob(
            definition.id, definition.service, definition.type, head.state, batch, is_crowded
        )

    def _batch(self, name: str) -> GraphBatch:
        status = self.batches[name]
        batch, then = status.batch, status.batch.new.then
        members = self._members[name] & self._jobs.keys()
        members |= {job for job, each in self._jobs.items() if _relations(each).batch == name}
        return GraphBatch(
            id=name,
            service=batch.new.service,
            name=batch.new.name,
            state=batch.state,
            members=status.total,
            hidden=max(0, status.total - len(members)),
            then=None if then is None else f"{then.service}/{then.type}",
            fan_in=batch.fan_in,
        )


def _relations(record: JobRecord) -> Relations:
    return record.definition.relations or _NOTHING


def _batches_of(record: JobRecord) -> list[str]:
    """Return the batches that a job follows or was created in."""
    relations = _relations(record)
    return [each for each in (relations.fan_in_of, relations.batch) if each is not None]


async def open_prerequisites(engine: Engine, record: JobRecord) -> list[tuple[JobId, State | None]]:
    """Return the jobs that a job still waits for, with their present states."""
    if record.head.state is not State.PENDING or record.head.claims:
        return []
    own = record.definition.id
    links = await engine.links([own])
    ids = [each.prerequisite for each in links if each.job == own and each.ended is None]
    loaded = (await engine.load(ids[:_SHOWN])).records if ids else ()
    states = [None if each is None else each.head.state for each in loaded]
    return [*zip(ids, states, strict=False), *((each, None) for each in ids[_SHOWN:])]


def waiting_text(waits: Sequence[tuple[JobId, State | None]]) -> str:
    """Return a sentence about the jobs that a job waits for."""
    named = [f"{job_id} ({state})" for job_id, state in waits[:_SHOWN]]
    more = f" and {len(waits) - _SHOWN:,} more" if len(waits) > _SHOWN else ""
    if all(state in ENDED for _, state in waits if state is not None) and len(waits) <= _SHOWN:
        return f"The jobs it follows have ended ({', '.join(named)}); maintenance resolves it next."
    what = "job" if len(waits) == 1 else f"{len(waits):,} jobs"
    return f"It waits for the end of {what} {', '.join(named)}{more}."
