"""The floor: what bare SQLite statements cost with the same guarantees and no Trellis at all.

Job row, queue row and journal rows in one transaction; a claim with a fencing token; a completion
guarded by that token; WAL, `synchronous=FULL`; batches of 100; the completion of one batch and the
claim of the next in one transaction. This file imports nothing of Trellis.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

PAYLOAD = (
    '{"order_id":12345,"email":"someone@example.com","lines":[1,2,3,4,5],"note":"'
    + "x" * 112
    + '"}'
)

SCHEMA = """
create table job (id integer primary key, lane integer not null, kind text not null,
                  payload text not null, headers text, created_at integer not null);
create table ready (job_id integer primary key, lane integer not null, pos integer not null,
                    attempt integer not null default 0, session integer, token integer,
                    claimed_at integer);
create index ready_lane on ready (lane, pos) where session is null;
create table outcome (job_id integer primary key, attempt integer not null, state integer not null,
                      finished_at integer not null, result text, error text);
create table event (seq integer primary key, job_id integer not null, attempt integer not null,
                    kind integer not null, at integer not null, data text);
"""


def connect(path: Path) -> sqlite3.Connection:
    """Open the file the way the engine does."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    return connection


def create(
    connection: sqlite3.Connection, jobs: int, batch: int, seconds: float = math.inf
) -> float:
    """Insert jobs in batches, until all are there or time is up; return jobs per second."""
    began = time.perf_counter()
    for first in range(1, jobs + 1, batch):
        if time.perf_counter() - began > seconds:
            return (first - 1) / (time.perf_counter() - began)
        rows = range(first, min(first + batch, jobs + 1))
        now = time.time_ns() // 1000
        connection.execute("begin immediate")
        connection.executemany(
            "insert into job values (?, 1, 'noop', ?, null, ?)",
            [(row, PAYLOAD, now) for row in rows],
        )
        connection.executemany(
            "insert into ready (job_id, lane, pos) values (?, 1, ?)", [(row, row) for row in rows]
        )
        connection.executemany(
            "insert into event (job_id, attempt, kind, at) values (?, 0, 1, ?)",
            [(row, now) for row in rows],
        )
        connection.execute("commit")
    return jobs / (time.perf_counter() - began)


def drain(connection: sqlite3.Connection, jobs: int, batch: int) -> float:
    """Claim and complete everything; return jobs per second."""
    began = time.perf_counter()
    finished = 0
    held: list[tuple[int, int, int, str]] = []
    while True:
        now = time.time_ns() // 1000
        connection.execute("begin immediate")
        if held:
            _complete(connection, held, now)
            finished += len(held)
        held = _claim(connection, batch, now)
        connection.execute("commit")
        if not held:
            break
    if finished != jobs:
        raise RuntimeError(f"drained {finished} of {jobs}")
    return jobs / (time.perf_counter() - began)


def _claim(connection: sqlite3.Connection, batch: int, now: int) -> list[tuple[int, int, int, str]]:
    token = int.from_bytes(os.urandom(7), "big")
    rows = connection.execute(
        "update ready set attempt = attempt + 1, session = 7, token = ?, claimed_at = ? "
        "where job_id in (select job_id from ready where lane = 1 and session is null "
        "order by pos limit ?) returning job_id, attempt",
        (token, now, batch),
    ).fetchall()
    connection.executemany(
        "insert into event (job_id, attempt, kind, at) values (?, ?, 2, ?)",
        [(row, attempt, now) for row, attempt in rows],
    )
    held = []
    for row, attempt in rows:
        (payload,) = connection.execute("select payload from job where id = ?", (row,)).fetchone()
        held.append((row, attempt, token, payload))
    return held


def _complete(
    connection: sqlite3.Connection, held: list[tuple[int, int, int, str]], now: int
) -> None:
    gone = connection.executemany(
        "delete from ready where job_id = ? and attempt = ? and session = 7 and token = ?",
        [(row, attempt, token) for row, attempt, token, _ in held],
    ).rowcount
    if gone != len(held):
        raise RuntimeError("a completion was refused")
    connection.executemany(
        "insert into outcome values (?, ?, 2, ?, 'null', null)",
        [(row, attempt, now) for row, attempt, _, _ in held],
    )
    connection.executemany(
        "insert into event (job_id, attempt, kind, at) values (?, ?, 3, ?)",
        [(row, attempt, now) for row, attempt, _, _ in held],
    )


def run(folder: Path, jobs: int, batch: int = 100) -> tuple[float, float]:
    """Create and drain jobs in a fresh file; return both rates."""
    with _fresh(folder, batch) as connection:
        return create(connection, jobs, batch), drain(connection, jobs, batch)


def run_create(folder: Path, jobs: int, batch: int, seconds: float = math.inf) -> float:
    """Create jobs in a fresh file; return the rate."""
    with _fresh(folder, batch) as connection:
        return create(connection, jobs, batch, seconds)


@contextmanager
def _fresh(folder: Path, batch: int) -> Iterator[sqlite3.Connection]:
    with closing(connect(folder / f"floor-{batch}.db")) as connection:
        connection.executescript(SCHEMA)
        yield connection
