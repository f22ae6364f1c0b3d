"""The text of `docs/lifecycle.md`, made from the rule table of `trellis.core.lifecycle`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from trellis.core.commands import FENCED
from trellis.core.lifecycle import RULES, Rule
from trellis.core.states import ENDED, FINAL, WAITING, State

_HEADER: Final = """\
# Lifecycle

Generated from `src/trellis/core/lifecycle.py` by `make docs`; do not edit.

One function, `decide`, reads this table from top to bottom: the first row whose command, state and
condition fit decides what happens. A command that no row allows is refused. Commands marked † are
given by the running attempt and need its fence; with an old fence they change nothing and leave a
`staleCompletionIgnored` note in the journal.

`on_lost` is an option of the job type and says what happens to a job whose worker was lost: `retry`
(the default, with a key and without) runs it again, `fail` and `stale` end it, `block` keeps it
active, and its key taken, until an operator decides. `stale` is final: for work that a newer job
does anyway.

"""


def render_markdown() -> str:
    """Return the text of the page."""
    return _HEADER + "\n".join((*_states(), "", *_rules(), "", *_diagram(), ""))


def _states() -> Iterable[str]:
    yield "## States"
    yield ""
    yield "| state | group | left by |"
    yield "|---|---|---|"
    for state in State:
        leaves = sorted({_name(rule) for rule in RULES if _leaves(rule, state)})
        yield f"| `{state}` | {_group(state)} | {', '.join(leaves) or 'nothing: it is final'} |"


def _group(state: State) -> str:
    if state in WAITING:
        return "waiting"
    if state in FINAL:
        return "ended, final"
    return "ended, an operator may act" if state in ENDED else "leased"


def _leaves(rule: Rule[Any], state: State) -> bool:
    return state in rule.sources and rule.target is not state


def _rules() -> Iterable[str]:
    yield "## Rules"
    yield ""
    yield "| command | from | condition | to | event |"
    yield "|---|---|---|---|---|"
    yield "| Create | – | admitted | `pending` | `created` |"
    for rule in RULES:
        sources = ", ".join(f"`{state}`" for state in State if state in rule.sources)
        condition = rule.when.text if rule.when else ""
        yield f"| {_name(rule)} | {sources} | {condition} | `{rule.target}` | `{rule.event}` |"


def _name(rule: Rule[Any]) -> str:
    mark = " †" if issubclass(rule.command, FENCED) else ""
    return rule.command.__name__ + mark


def _diagram() -> Iterable[str]:
    yield "## Diagram"
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    [*] --> pending: Create"
    arrows: dict[tuple[State, State], list[str]] = {}
    for rule in RULES:
        for state in State:
            if state in rule.sources:
                names = arrows.setdefault((state, rule.target), [])
                if rule.command.__name__ not in names:
                    names.append(rule.command.__name__)
    for (source, target), names in arrows.items():
        yield f"    {source} --> {target}: {', '.join(names)}"
    yield "```"
