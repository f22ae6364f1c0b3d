"""Pictures of graphs: Graphviz reads every name back as it is, and trees show what is left out."""

from __future__ import annotations

import re

import pytest

from tests.insight.dot import parsed
from trellis.core.states import State
from trellis.insight.graph import GraphBatch, GraphEdge, GraphJob, JobGraph
from trellis.insight.pictures import Planned, Rest, as_dot, tree_lines

NAMES = [
    'say "hello"',
    "two\nlines",
    "a\\nb ends in \\",
    "<b>&amp;</b> & more",
    "Zoë 日本 🌱",
    "tab\tand bell\a",
    '"]; "evil" [label="x',
]


def a_batch(name: str, **parts: object) -> GraphBatch:
    given = {"members": 1, "hidden": 0, "then": None, "fan_in": None, "state": "sealed", **parts}
    return GraphBatch(id="B", service="shop", name=name, **given)  # type: ignore[arg-type]


def a_job(name: str, state: State = State.PENDING, **parts: object) -> GraphJob:
    return GraphJob(name, "shop", "work", state, "B", **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_graphviz_reads_every_name_back(name: str) -> None:
    graph = JobGraph(
        "J1", (a_job("J1"),), (GraphEdge("B", "J1", "member"),), False, (a_batch(name),)
    )
    statements = parsed(as_dot(graph))
    assert statements.keys() == {"B", "J1", "B -> J1"}
    seen = re.sub(r"[\x00-\x09\x0b-\x1f]", "\N{REPLACEMENT CHARACTER}", name)
    assert statements["B"]["label"] == f"batch {seen}\nsealed, members: 1\n…B"
    assert statements["J1"] == {"label": "shop/work\npending\n…J1", "penwidth": "2"}
    assert statements["B -> J1"] == {"style": "dotted"}


@pytest.mark.parametrize("line", ['"a" -> "b [style=solid];', '"a" [label="x"y"];', "a [b=c]"])
def test_the_check_itself_refuses_what_graphviz_would_refuse(line: str) -> None:
    dot = as_dot(JobGraph(None, (), (), False)).removesuffix("}")
    assert parsed(f"{dot}}}") == {}
    with pytest.raises(AssertionError, match="not in the language"):
        parsed(f"{dot}  {line}\n}}")


def test_what_is_left_out_and_what_is_to_come_has_its_place() -> None:
    batch = a_batch("book", members=5, hidden=4, then="shop/bind")
    jobs = (a_job("J1", has_more=True), a_job("J2"))
    edges = (GraphEdge("B", "J1", "member"), GraphEdge("J1", "J2", "parent"))
    graph = JobGraph(None, jobs, edges, False, (batch,))
    lines = [(line.before, line.shape) for line in tree_lines(graph)]
    assert lines == [
        ("", batch),
        ("├─ ", jobs[0]),
        ("│  ├─ ", jobs[1]),
        ("│  └─ ", Rest(None, "trellis jobs list parent:J1")),
        ("├─ ", Rest(4, "trellis jobs list batch:B")),
        ("└─ then ", Planned("shop/bind")),
    ]
    statements = parsed(as_dot(graph))
    assert statements["B Rest"]["label"] == "and 4 more"
    assert statements["B Planned"]["label"] == "shop/bind\nnot created yet"
    assert {"B -> B Rest", "B -> B Planned", "J1 -> J1 Rest"} <= statements.keys()
