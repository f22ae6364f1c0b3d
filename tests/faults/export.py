"""The system truth as JSON lines, read from the file with plain SQL over its documented tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.recorder import payload_hash

Line = dict[str, Any]


def export(database: Path, target: Path) -> None:
    """Write everything the checker needs to know about a database."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        (sound,) = connection.execute("pragma integrity_check").fetchone()
        if sound != "ok":
            raise SystemExit(f"the database is damaged: {sound}")
        with target.open("w", encoding="utf-8") as file:
            for part in (_rows, _events, _outcomes, _slots, _sessions, _removals):
                for line in part(connection):
                    file.write(json.dumps(line, separators=(",", ":")) + "\n")
    finally:
        connection.close()


def _fence(row: sqlite3.Row) -> str | None:
    return None if row["token"] is None else f"{row['session']:016x}{row['token']:016x}"


def _json(text: str | None) -> Any:  # noqa: ANN401 - whatever was stored
    return None if text is None else json.loads(text)


def _rows(connection: sqlite3.Connection) -> Iterator[Line]:
    plain = ("state", "version", "generation", "attempt", "claims", "crashes", "run_at",
             "claimed_at", "asked_at", "finished_at")  # fmt: skip
    for row in connection.execute("select * from trellis_record"):
        policy = json.loads(row["policy"])
        head = {name: row[name] for name in plain}
        flags = {name: bool(row[name]) for name in ("blocked", "suspect")}
        yield {
            "what": "row",
            "id": row["id"],
            "hash": payload_hash(json.loads(row["payload"])),
            "head": {**head, **flags, "fence": _fence(row), "error": _json(row["error"])},
            # Keys belong to a type: the same words are another key in another type.
            "key": None if row["key"] is None else f"{row['type']}/{row['key']}",
            "max_active": policy["key"]["active"] if policy["key"] else 1,
            "max_attempts": policy["retry"]["attempts"],
            "max_crashes": policy["max_crashes"],
            "deadline_at": row["deadline_at"],
        }


def _events(connection: sqlite3.Connection) -> Iterator[Line]:
    query = "select e.*, j.id from trellis_event e join trellis_job j on j.seq = e.job"
    for row in connection.execute(query):
        names = ("seq", "version", "kind", "state", "at", "attempt")
        facts = {name: row[name] for name in names}
        data = _json(row["data"]) or {}
        yield {"what": "event", "job": row["id"], **facts, "fence": _fence(row), "data": data}


def _outcomes(connection: sqlite3.Connection) -> Iterator[Line]:
    query = "select o.*, j.id from trellis_outcome o join trellis_job j on j.seq = o.job"
    for row in connection.execute(query):
        facts = {name: row[name] for name in ("generation", "state")}
        yield {"what": "outcome", "job": row["id"], **facts, "result": _json(row["result"])}


def _slots(connection: sqlite3.Connection) -> Iterator[Line]:
    query = (
        "select s.key_hash, s.session, s.token, j.id "
        "from trellis_key_slot s left join trellis_job j on j.seq = s.job"
    )
    for row in connection.execute(query):
        key = row["key_hash"]
        yield {"what": "slot", "key_hash": key, "job": row["id"], "fence": _fence(row)}


def _sessions(connection: sqlite3.Connection) -> Iterator[Line]:
    for row in connection.execute("select id, pid from trellis_session"):
        yield {"what": "session", "id": f"{row['id']:016x}", "pid": row["pid"]}


def _removals(connection: sqlite3.Connection) -> Iterator[Line]:
    for row in connection.execute("select id from trellis_removal"):
        yield {"what": "removed", "id": row["id"]}
