"""A graph of jobs and batches as a picture: a tree of lines for a terminal, or for Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from trellis.insight.graph import GraphBatch, GraphEdge, GraphJob, JobGraph

_STYLES: Final = {
    "success": "solid",
    "finished": "dashed",
    "parent": "dotted",
    "member": "dotted",
    "fan_in": "bold",
}
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class Rest(NamedTuple):
    """What stands for jobs that are not in the picture."""

    #: How many they are; None: it was not counted.
    number: int | None
    #: The command that lists all of them.
    command: str


class Planned(NamedTuple):
    """A fan-in job that does not exist yet."""

    name: str


Shape: TypeAlias = GraphJob | GraphBatch | Rest | Planned


class TreeLine(NamedTuple):
    """One line of a tree."""

    #: What is drawn before it.
    before: str
    shape: Shape
    #: It stands further up too, with everything that is below it.
    is_repeated: bool


def _all(graph: JobGraph) -> tuple[GraphBatch | GraphJob, ...]:
    return (*graph.batches, *graph.jobs)


class _Tree:
    """The shapes of a graph, and what is below each of them."""

    def __init__(self, graph: JobGraph) -> None:
        self.shapes: dict[str, Shape] = {each.id: each for each in _all(graph)}
        self._edges: dict[str, list[GraphEdge]] = {}
        for edge in graph.edges:
            self._edges.setdefault(edge.source, []).append(edge)
        targets = {edge.target for edge in graph.edges}
        self.roots = [name for name in self.shapes if name not in targets]

    def below(self, name: str) -> list[tuple[str, str]]:
        """Return what is below a job or batch, each with a word before it; a fan-in job is last."""
        shape, edges = self.shapes[name], self._edges.get(name, [])
        found = [("", edge.target) for edge in edges if edge.kind != "fan_in"]
        found += self._put("", f"{name} rest", rest_of(shape))
        found += [("then ", edge.target) for edge in edges if edge.kind == "fan_in"]
        return found + self._put("then ", f"{name} then", planned_by(shape))

    def _put(self, word: str, name: str, shape: Rest | Planned | None) -> list[tuple[str, str]]:
        if shape is None:
            return []
        self.shapes[name] = shape
        return [(word, name)]


def rest_of(shape: Shape) -> Rest | None:
    """Return what stands for the members or children of this one that the graph does not have."""
    match shape:
        case GraphBatch(id=name, hidden=hidden) if hidden:
            return Rest(hidden, f"trellis jobs list batch:{name}")
        case GraphJob(id=name, has_more=True):
            return Rest(None, f"trellis jobs list parent:{name}")
        case _:
            return None


def planned_by(shape: Shape) -> Planned | None:
    """Return the fan-in job that a batch may still create."""
    match shape:
        case GraphBatch(then=str(then), fan_in=None, state="open" | "sealed"):
            return Planned(then)
        case _:
            return None


def tree_lines(graph: JobGraph) -> Iterator[TreeLine]:
    """Yield a graph as a tree.

    A job that follows several others stands below each of them, with its own followers only once.
    """
    tree = _Tree(graph)
    seen: set[str] = set()
    # Depth first with a stack: a chain may be longer than Python's recursion allows.
    stack = [(each, "", "") for each in reversed(tree.roots)]
    while stack:
        name, before, indent = stack.pop()
        yield TreeLine(before, tree.shapes[name], name in seen)
        if name in seen:
            continue
        seen.add(name)
        for number, (word, child) in enumerate(reversed(tree.below(name))):
            fork, bar = ("└─ ", "   ") if number == 0 else ("├─ ", "│  ")
            stack.append((child, indent + fork + word, indent + bar))


def as_dot(graph: JobGraph) -> str:
    """Write a graph in the language of Graphviz."""
    lines = ["digraph jobs {", "  rankdir=LR; node [shape=box, style=rounded];"]
    for shape in _all(graph):
        lines.append(f"  {_quoted(shape.id)} [{_attributes(shape, graph.job)}];")
        for each in (rest_of(shape), planned_by(shape)):
            if each is not None:
                name = _quoted(f"{shape.id} {type(each).__name__}")
                lines.append(f"  {name} [{_attributes(each, None)}];")
                lines.append(f"  {_quoted(shape.id)} -> {name} [style=dotted];")
    lines += (
        f"  {_quoted(edge.source)} -> {_quoted(edge.target)} [style={_STYLES[edge.kind]}];"
        for edge in graph.edges
    )
    return "\n".join([*lines, "}"])


def _attributes(shape: Shape, asked: str | None) -> str:
    match shape:
        case GraphJob():
            bold = ", penwidth=2" if shape.id == asked else ""
            return f"label={_label(shape.name, shape.state, f'…{shape.id[-6:]}')}{bold}"
        case GraphBatch():
            title = f"batch {shape.name}" if shape.name else "batch"
            size = f"{shape.state}, members: {shape.members:,}"
            return f"label={_label(title, size, f'…{shape.id[-6:]}')}, shape=folder"
        case Rest(number):
            text = "more" if number is None else f"and {number:,} more"
            return f"label={_label(text)}, shape=plaintext"
        case Planned(name):
            return f"label={_label(name, 'not created yet')}, style=dashed"


def _label(*lines: str) -> str:
    return _quoted("\n".join(lines))


def _quoted(text: str) -> str:
    """Return a text as Graphviz reads it back.

    Graphviz resolves backslashes and entities of HTML in labels. Control characters other than the
    line break have no form there.
    """
    clean = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    escaped = clean.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
    return '"' + escaped.replace("\n", "\\n") + '"'
