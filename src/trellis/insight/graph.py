"""The jobs that are connected to one job: what it waits for, what waits for it, and its parents.

A graph is read job by job outwards from the one that was asked for, up to a limit, so that its size
does not depend on the size of the workflow. It has types and states, and no payloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trellis.core.dependencies import Link
from trellis.core.job import FollowsOn, JobId, JobRecord
from trellis.core.states import ENDED, State
from trellis.engines.port import Engine

#: How many jobs a graph has at most, unless told otherwise.
GRAPH_LIMIT: Final = 200
_SHOWN: Final = 3
_STYLES: Final = {"success": "solid", "finished": "dashed", "parent": "dotted"}


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

    @property
    def name(self) -> str:
        """Service and type, as people write them."""
        return f"{self.service}/{self.type}"


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An arrow from one job to another."""

    source: str
    target: str
    #: The target follows the success or the end of the source, or was created by it.
    kind: Literal["success", "finished", "parent"]


@dataclass(frozen=True, slots=True)
class JobGraph:
    """Connected jobs, in order of creation."""

    #: The job that was asked for.
    job: str
    jobs: tuple[GraphJob, ...]
    edges: tuple[GraphEdge, ...]
    #: There are more jobs than the limit allows.
    is_cut: bool


def link_view(link: Link) -> LinkView:
    """Return the view of a stored link."""
    return LinkView(*link)


async def graph_of(engine: Engine, record: JobRecord, limit: int = GRAPH_LIMIT) -> JobGraph:
    """Return the jobs connected to this one."""
    found: dict[str, JobRecord] = {record.definition.id: record}
    edges: dict[tuple[str, str], GraphEdge] = {}
    level: Sequence[JobRecord] = [record]
    is_cut = False
    while level:
        links = await engine.links([each.definition.id for each in level], limit * limit)
        new = [GraphEdge(each.prerequisite, each.job, each.on) for each in links]
        new += [
            GraphEdge(relations.parent, each.definition.id, "parent")
            for each in level
            if (relations := each.definition.relations) is not None and relations.parent is not None
        ]
        ids = dict.fromkeys(end for edge in new for end in (edge.source, edge.target))
        unknown = [JobId(each) for each in ids if each not in found]
        room = limit - len(found)
        is_cut |= len(unknown) > room
        loaded = (await engine.load(unknown[:room])).records if unknown[:room] else ()
        level = [each for each in loaded if each is not None]
        found |= {each.definition.id: each for each in level}
        for edge in new:
            edges.setdefault((edge.source, edge.target), edge)
    rows = {name: each.definition.row for name, each in found.items()}
    kept = [edge for edge in edges.values() if {edge.source, edge.target} <= found.keys()]
    kept.sort(key=lambda edge: (rows[edge.source], rows[edge.target]))
    jobs = [_job(found[name]) for name in sorted(found, key=rows.__getitem__)]
    return JobGraph(record.definition.id, tuple(jobs), tuple(kept), is_cut)


def _job(record: JobRecord) -> GraphJob:
    definition, relations = record.definition, record.definition.relations
    return GraphJob(
        definition.id,
        definition.service,
        definition.type,
        record.head.state,
        relations and relations.batch,
    )


def as_dot(graph: JobGraph) -> str:
    """Write a graph in the language of Graphviz."""
    lines = ["digraph jobs {", "  rankdir=LR; node [shape=box, style=rounded];"]
    for job in graph.jobs:
        bold = ", penwidth=2" if job.id == graph.job else ""
        lines.append(f'  "{job.id}" [label="{job.name}\\n{job.state}\\n…{job.id[-6:]}"{bold}];')
    lines += (
        f'  "{edge.source}" -> "{edge.target}" [style={_STYLES[edge.kind]}];'
        for edge in graph.edges
    )
    return "\n".join([*lines, "}"])


def tree_lines(graph: JobGraph) -> Iterator[tuple[str, GraphJob, bool]]:
    """Yield a graph as a tree: the lines before a job, the job, and whether it was yielded before.

    A job that follows several others stands below each of them, with its own followers only once.
    """
    jobs = {job.id: job for job in graph.jobs}
    below: dict[str, list[str]] = {}
    for edge in graph.edges:
        below.setdefault(edge.source, []).append(edge.target)
    targets = {edge.target for edge in graph.edges}
    seen: set[str] = set()
    roots = [job.id for job in graph.jobs if job.id not in targets]
    # Depth first with a stack: a chain may be longer than Python's recursion allows.
    stack = [(each, "", "") for each in reversed(roots)]
    while stack:
        name, before, indent = stack.pop()
        yield before, jobs[name], name in seen
        if name in seen:
            continue
        seen.add(name)
        children = below.get(name, [])
        for number, child in enumerate(reversed(children)):
            is_last = number == 0
            fork, bar = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            stack.append((child, indent + fork, indent + bar))


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
