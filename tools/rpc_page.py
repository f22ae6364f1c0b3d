"""The text of `docs/reference/jobs-rpc.md`, made from `trellis.admin.jobs_verbs`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, is_typeddict

from tools.options_page import comments_of, first_paragraph
from trellis.admin import jobs_verbs
from trellis.admin.jobs_verbs import CONTRACT, LARGEST, REFUSALS, VERBS, Verb
from trellis.engines.jetstream.subjects import DEFAULT_PREFIX, Subjects

_HEADER: Final = f"""\
# The RPC `Jobs.*`

Generated from `src/trellis/admin/jobs_verbs.py` by `make docs`; do not edit.

`trellis jobs serve`, and `trellis serve` unless started with `--no-projection`, answer these calls
on [NATS JetStream](../operations/jetstream.md); the contract is `{CONTRACT}`. A request is one JSON
object, sent with NATS request and reply to the subject of its verb. A deployment with another
prefix has it in place of `{DEFAULT_PREFIX}`. Moments are RFC 3339 in UTC. A list has at most
{LARGEST} entries per page.
"""
_ERRORS: Final = """\
## Errors

A call that fails has changed nothing, except that `503` and `500` may come after a change. The
answer has the header `Nats-Service-Error-Code` and the body
`{"error": {"type": ..., "message": ...}}`.

| code | type | meaning |
|---|---|---|
"""
#: Words of Python and what programs in other languages call it.
_WORDS: Final = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "Any": "any JSON",
    "None": "null",
}


def render_rpc() -> str:
    """Return the text of the page."""
    errors = (f"| {code} | `{kind}` | {meaning} |" for code, kind, meaning in REFUSALS)
    return "\n".join((_HEADER, *_verbs(), "", _ERRORS + "\n".join(errors), "", *_kinds()))


def _verbs() -> Iterator[str]:
    yield from ("## Verbs", "", "| verb | subject | request | answer | meaning |")
    yield "|---|---|---|---|---|"
    for name, verb in VERBS.items():
        request = _link(verb.request) if verb.request.__annotations__ else "`{}`"
        subject = Subjects().rpc(name)
        yield f"| `Jobs.{name}` | `{subject}` | {request} | {_answer(verb)} | {verb.meaning} |"


def _answer(verb: Verb) -> str:
    of = "" if verb.entry is None else f" of {_link(verb.entry)}"
    return _link(verb.answer) + of


def _kinds() -> Iterator[str]:
    yield "## Requests and answers"
    for kind in vars(jobs_verbs).values():
        if is_typeddict(kind) and kind.__annotations__:
            yield from ("", f"### {kind.__name__}", "", first_paragraph(kind), "")
            yield from ("| member | type | meaning |", "|---|---|---|")
            for name, (annotation, meaning) in comments_of(kind).items():
                yield f"| `{name}` | {_type(annotation.strip('`'))} | {meaning} |"


def _type(annotation: str) -> str:
    """Write a type in words; names of other tables are links."""
    inner = re.fullmatch(r"NotRequired\[(.+)\]", annotation)
    if inner is not None:
        return f"{_type(inner[1])}; may be missing"
    parts = re.sub(r"list\[(\w+)\]", r"list of \1", annotation.replace(" | ", " or "))
    return re.sub(r"\w+", lambda word: _word(word[0]), parts)


def _word(word: str) -> str:
    kind: Any = getattr(jobs_verbs, word, None)
    return _link(kind) if is_typeddict(kind) else _WORDS.get(word, word)


def _link(kind: type) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})"
