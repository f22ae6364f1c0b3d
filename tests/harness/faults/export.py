"""The system truth as JSON lines, read with plain SQL over the documented tables of any store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from tests.harness.faults.recorder import payload_hash

Line: TypeAlias = dict[str, Any]
#: Runs a query in which names like {event} stand for tables; its rows answer to column names.
Ask: TypeAlias = Callable[[str], Iterable[Any]]


def write_truth(ask: Ask, target: Path) -> None:
    """Write everything the checker needs to know about a database."""
    with target.open("w", encoding="utf-8") as file:
        for part in (_rows, _events, _outcomes, _slots, _sessions, _removals):
            for line in part(ask):
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _fence(row: Line) -> str | None:
    return None if row["token"] is None else f"{row['session']:016x}{row['token']:016x}"


def _json(text: str | None) -> Any:  # noqa: ANN401 - whatever was stored
    return None if text is None else json.loads(text)


def _rows(ask: Ask) -> Iterator[Line]:
    plain = ("state", "version", "generation", "attempt", "claims", "crashes", "run_at",
             "claimed_at", "asked_at", "finished_at")  # fmt: skip
    for row in ask("select * from {record}"):
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


def _events(ask: Ask) -> Iterator[Line]:
    query = "select e.*, j.id from {event} e join {job} j on j.seq = e.job"
    for row in ask(query):
        names = ("seq", "version", "kind", "state", "at", "attempt")
        facts = {name: row[name] for name in names}
        data = _json(row["data"]) or {}
        yield {"what": "event", "job": row["id"], **facts, "fence": _fence(row), "data": data}


def _outcomes(ask: Ask) -> Iterator[Line]:
    query = "select o.*, j.id from {outcome} o join {job} j on j.seq = o.job"
    for row in ask(query):
        facts = {name: row[name] for name in ("generation", "state")}
        yield {"what": "outcome", "job": row["id"], **facts, "result": _json(row["result"])}


def _slots(ask: Ask) -> Iterator[Line]:
    query = (
        "select s.key_hash, s.session, s.token, j.id "
        "from {key_slot} s left join {job} j on j.seq = s.job"
    )
    for row in ask(query):
        key = row["key_hash"]
        yield {"what": "slot", "key_hash": key, "job": row["id"], "fence": _fence(row)}


def _sessions(ask: Ask) -> Iterator[Line]:
    for row in ask("select id, pid, lease, renewed_at from {session}"):
        facts = {name: row[name] for name in ("pid", "lease", "renewed_at")}
        yield {"what": "session", "id": f"{row['id']:016x}", **facts}


def _removals(ask: Ask) -> Iterator[Line]:
    for row in ask("select id from {removal}"):
        yield {"what": "removed", "id": row["id"]}
