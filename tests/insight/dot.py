"""The language of Graphviz, as far as pictures of graphs use it."""

from __future__ import annotations

import html
import re

#: A text as Graphviz reads it: it ends at the first quotation mark without a backslash.
TEXT = r'"(?:[^"\\\n]|\\.)*"'
ATTRIBUTE = rf"(\w+)=({TEXT}|\w+)"
STATEMENT = re.compile(
    rf"  (?P<source>{TEXT})(?: -> (?P<target>{TEXT}))? \[(?P<rest>{ATTRIBUTE}(?:, {ATTRIBUTE})*)\];"
)
#: What Graphviz resolves in a label.
ESCAPE = re.compile(r'\\([n\\"])')


def parsed(dot: str) -> dict[str, dict[str, str]]:
    """Read a graph as Graphviz does; return the attributes of its nodes and edges."""
    first, second, *lines, last = dot.split("\n")
    assert (first, last) == ("digraph jobs {", "}")
    assert second == "  rankdir=LR; node [shape=box, style=rounded];"
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        statement = STATEMENT.fullmatch(line)
        assert statement is not None, f"not in the language: {line!r}"
        ends = [_shown(end) for end in statement.group("source", "target") if end is not None]
        pairs = re.findall(ATTRIBUTE, statement["rest"])
        assert " -> ".join(ends) not in found
        found[" -> ".join(ends)] = {name: _shown(value) for name, value in pairs}
    return found


def _shown(text: str) -> str:
    """Return a text as Graphviz shows it; refuse escapes that it would replace."""
    if not text.startswith('"'):
        return text
    assert "\\" not in ESCAPE.sub("", text)
    plain = ESCAPE.sub(lambda found: {"n": "\n"}.get(found[1], found[1]), text[1:-1])
    return html.unescape(plain)
