"""Comparing two projections of the same streams, row by row.

`differences` reads two SQLite files and returns every row that only one of them has, or that has
other values there. All tables are compared, also those that are added later, but for what `IGNORED`
names with its reason. Nothing here imports Trellis.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

_NOTHING: Final = "nothing"
#: Columns (or with `*` whole tables) that may differ, and why.
IGNORED: Final = {
    ("trellis_lane", "*"): "is numbered as it is needed, and JOBS and JOBS_STATE are read at once; "
    "where a lane is used, its names are compared",
    ("trellis_policy", "*"): "is numbered like lanes; where a policy is used, its text is compared",
    ("trellis_session", "number"): "counts insertions: JOBS_STATE has only the last message of "
    "each session, so a rebuild finds them in another order",
    ("trellis_queue", "availability"): "depends on when it is read: `promote` makes a scheduled "
    "job ready when its time has come",
    ("trellis_queue", "seen_at"): "belongs to an attempt that runs while it is read",
    ("trellis_projection", "rebuilt_at"): "says when each was made",
    ("trellis_key_slot", "id"): "counts insertions, and a slot is held again and again",
    ("trellis_presence", "*"): "expires in the stream after 90 s",
}  # fmt: skip
#: Numbers that stand for values: column → the query that finds the value.
_NAMED: Final = {
    "lane": "select service || '/' || queue || '/' || type || '/' || priority from trellis_lane "
    "where id = {}",
    "policy": "select body from trellis_policy where id = {}",
}
#: What is compared in place of a column. While a batch keeps a member, it is kept for longer.
_INSTEAD: Final = {
    ("trellis_outcome", "keep_until"): "case when not exists (select 1 from trellis_batch_member m "
    "where m.job = trellis_outcome.job) then keep_until end",
}
Row: TypeAlias = dict[str, Any]


class Difference(NamedTuple):
    """A row that is not the same in both."""

    table: str
    #: What names the row: its key, with the id of the job if it is about one.
    row: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.table} {self.row}: {self.first} and {self.second}"


def differences(first: Path, second: Path) -> list[Difference]:
    """Return all differences between two projections, table by table."""
    with closing(_open(first)) as one, closing(_open(second)) as other:
        tables = sorted(_tables(one) | _tables(other))
        return [each for table in tables for each in _compare(table, one, other)]


def places_in(path: Path) -> dict[str, int]:
    """Return up to which sequence a projection has each stream; nothing before it has tables."""
    with closing(_open(path)) as file:
        if "trellis_projection" not in _tables(file):
            return {}
        return dict(map(tuple, file.execute("select stream, last_seq from trellis_projection")))


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    connection.row_factory = sqlite3.Row
    return connection


def _tables(file: sqlite3.Connection) -> set[str]:
    names = file.execute("select name from sqlite_master where type = 'table'")
    return {name for (name,) in names if not name.startswith("sqlite_")}


def _compare(
    table: str, one: sqlite3.Connection, other: sqlite3.Connection
) -> Iterator[Difference]:
    if (table, "*") in IGNORED:
        return
    rows, others = dict(_rows(table, one)), dict(_rows(table, other))
    for name in [*rows, *(name for name in others if name not in rows)]:
        here, there = rows.get(name), others.get(name)
        if here is None or there is None:
            yield Difference(table, name, _shown(here), _shown(there))
            continue
        unlike = [column for column in here if here[column] != there.get(column)]
        if unlike:
            parts = ({column: row.get(column) for column in unlike} for row in (here, there))
            yield Difference(table, name, *map(_shown, parts))


def _shown(row: Row | None) -> str:
    return _NOTHING if row is None else str({name: _short(value) for name, value in row.items()})


def _short(value: object) -> object:
    return f"{value[:200]}..." if isinstance(value, str) and len(value) > 200 else value


def _rows(table: str, file: sqlite3.Connection) -> Iterator[tuple[str, Row]]:
    """Return the rows of a table by their names, without what is ignored."""
    if table not in _tables(file):
        return
    columns = list(file.execute(f"pragma table_info({table})"))
    key = [each["name"] for each in columns if each["pk"]]
    compared = [each["name"] for each in columns if (table, each["name"]) not in IGNORED]
    values = ", ".join(_value_of(table, name) for name in compared)
    order = ", ".join(key) or "rowid"
    # A row whose key is ignored is named by its place among the rows of its job, or of all.
    counts: dict[Any, int] = {}
    for row in file.execute(f"select {values} from {table} order by {order}"):  # noqa: S608 - ours
        found = dict(zip(compared, row, strict=True))
        about = found.get("job", found.get("id", ""))
        if all(name in found for name in key) and key:
            name = "/".join(str(found[each]) for each in key)
        else:
            counts[about] = counts.get(about, 0) + 1
            name = f"{about}/{counts[about]}"
        yield _with_job(file, table, found, name), found


def _value_of(table: str, name: str) -> str:
    query = _INSTEAD.get((table, name)) or _NAMED.get(name)
    return name if query is None else f"({query.format(f'{table}.{name}')})"


def _with_job(file: sqlite3.Connection, table: str, row: Row, name: str) -> str:
    """Return the name of a row, with the id of the job that it is about."""
    if table == "trellis_job":
        return f"{name} ({row['id']})"
    number = row.get("job")
    if not isinstance(number, int):
        return name
    found = file.execute("select id from trellis_job where seq = ?", (number,)).fetchone()
    return name if found is None else f"{name} ({found[0]})"
