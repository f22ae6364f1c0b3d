"""What each guarantee costs, by leaving it out: on changed statements, never in the product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bench.postgres import app
from bench.postgres.engine import Change, Jobs
from trellis.engines.postgres import PostgresEngine


class Case(NamedTuple):
    """A way to drain."""

    name: str
    types: Jobs = app.of_one
    without: Change | None = None


def _without_journal(engine: PostgresEngine) -> None:
    for link in (engine._hot, engine._settle):
        link._sql = {name: _emptied(text, "journalled") for name, text in link._sql.items()}


def _without_flush(engine: PostgresEngine) -> None:
    """Claims are lost with the server's memory: only claims, since others use `settle`."""
    engine._hot._settings = {**engine._hot._settings, "synchronous_commit": "off"}


def _emptied(text: str, name: str) -> str:
    """Return a statement in which one of its parts writes nothing."""
    begin = text.find(f"{name} as (")
    if begin < 0:
        return text
    depth, end = 0, text.index("(", begin)
    while True:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if not depth:
            return f"{text[:end]} where false{text[end:]}"
        end += 1


ALL: Final[Sequence[Case]] = (
    Case("everything on"),
    Case("without the journal", without=_without_journal),
    Case("claims not flushed to disk", without=_without_flush),
    Case("a key for every job", app.of_keys),
    Case("fifty types instead of one", app.of_fifty),
)
