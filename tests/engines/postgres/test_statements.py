"""Every statement is one that PostgreSQL understands, and is used; plans stay as meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import asyncpg
import psycopg
import pytest

from tests.engines.postgres.steps import fresh
from tests.engines.sections import EVERYTHING, SHARED, unused_fragments
from tests.harness.servers.databases import Databases
from trellis.engines.postgres.connection import PINNED, _settings
from trellis.engines.postgres.statements import fragments, in_schema, names_of_reads, statements
from trellis.engines.postgres.url import read_address
from trellis.engines.sql.filters import Filters
from trellis.engines.sql.maintenance import TABLES_OF_A_JOB
from trellis.engines.sql.projection import PROJECTED
from trellis.engines.values import Group, TagGroup

SOURCE = Path(__file__).parents[3] / "src/trellis/engines/postgres"
#: Statements with code in the language of the server, which cannot be prepared.
SCRIPTS = ("export_refuse", "export_shut")
#: What is exported with a statement of its own.
EXPORTED = (
    "jobs", "heads", "marks", "outcomes", "events", "notes", "items", "logs", "links", "members",
    "workers", "audit", "batches", "slots",
)  # fmt: skip
#: Tables that grow with the backlog or with history.
LARGE = ("queue", "job", "event", "outcome", "log")


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def test_every_statement_can_be_prepared(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for name, text in statements("trellis").items():
            if name in SCRIPTS:
                async with connection.transaction():
                    await connection.execute(text)
                continue
            assert ";" not in text, name
            assert "{" not in text.replace("'{}'", ""), name
            await connection.prepare(text)
    finally:
        await connection.close()


async def test_what_is_put_together_from_fragments_can_be_prepared(url: str) -> None:
    words, address = fragments("trellis"), read_address(url)
    filters = Filters(words, numbered=True)
    condition, values = filters.where(EVERYTHING, ["an error"])
    place = len(values)
    groups, tag = filters.groups((*get_args(Group), TagGroup("tenant")))
    counted, _ = filters.where(EVERYTHING, ["an error"], tag)
    connection = await asyncpg.connect(url)
    try:
        for text in (
            words["find"].format(where=condition, after=place + 1, limit=place + 2),
            words["find_errors"].format(where=condition),
            words["count"].format(where=counted, groups=groups, places="2, 3, 4, 5, 6, 7, 8, 9"),
            words["notify_many"] + words["notify_channel"].format(channel="x"),
        ):
            await connection.prepare(text)
        await connection.execute(_settings(address, "setting_of_connection", PINNED))
        begin = statements("trellis")["begin"]
        await connection.execute(begin + _settings(address, "setting_of_transaction", PINNED))
        for name in ("migrate_lock", "migrate_limits", "migrate_schema", "migrate_record"):
            await connection.execute(words[name].format(schema="trellis", number=1))
    finally:
        await connection.close()


def test_every_fragment_is_used() -> None:
    code = "".join(path.read_text() for path in (*SOURCE.glob("*.py"), *SHARED.glob("*.py")))
    assert unused_fragments(SOURCE, code.replace("'", '"')) == []


def test_every_statement_is_used() -> None:
    files = [*SOURCE.glob("*.py"), *SHARED.glob("*.py")]
    named = {name for path in files for name in re.findall(r'"(\w+)"', path.read_text())}
    pruned = {f"prune_{table}" for table in TABLES_OF_A_JOB}
    erased = {f"projection_erase_{table}" for table in PROJECTED}
    exported = {f"export_{name}" for name in EXPORTED}
    assert set(statements("trellis")) <= named | pruned | erased | exported


def test_another_schema_is_named_everywhere() -> None:
    for name, text in statements("jobs").items():
        assert not re.search(r"\btrellis\.", text), name
    assert in_schema("select trellis.clock()", "jobs") == "select jobs.clock()"


_FILL = """
insert into trellis.lane (service, queue, type, priority)
  select 'shop', 'q' || n, 't' || n, 0 from generate_series(1, 50) n;
insert into trellis.policy (digest, body) values ('x', '{}');
insert into trellis.job (id, lane, policy, schema_version, created_at, payload, traceparent)
  select lpad(n::text, 26, '0'), 1 + n % 50, 1, 1, n, '{}', '00' from generate_series(1, 1000000) n;
insert into trellis.queue (job, run_at, lane, availability, state, version, attempt, claims,
    generation, crashes, blocked, suspect, session, token)
  select n, n, 1 + n % 50,
    (case when n % 100 = 0 then 'claimed' when n % 10 = 1 then 'scheduled' else 'ready' end
    )::trellis.availability,
    'pending', 1, 0, 0, 0, 0, false, false,
    case when n % 100 = 0 then n % 7 end, case when n % 100 = 0 then n end
  from generate_series(1, 500000) n;
insert into trellis.outcome (job, finished_at, run_at, keep_until, generation, state, version,
    attempt, claims, crashes)
  select n, n, n, n, 0, 'completed', 3, 1, 1, 0 from generate_series(500001, 1000000) n;
insert into trellis.event (xid, job, at, version, attempt, state, kind)
  select n, n, n, 1, 0, 'pending', 'created' from generate_series(1, 1000000) n;
analyze;
"""
#: Statements of the hot path and of upkeep, and an index that each must use.
_PLANS = {
    "claim": "queue_ready",
    "claim_lane": "queue_ready",
    "claim_waiting": "queue_ready",
    "commit_done": "queue_pkey",
    "commit_end": "queue_pkey",
    "commit_move": "queue_pkey",
    "create_known": "job_id_key",
    "due_scheduled": "queue_scheduled",
    "due_jobs": "queue_look",
    "due_lost": "queue_claimed",
    "key_hand_over": "queue_key",
    "next_due": "queue_scheduled",
    "outcome_lock": "outcome_pkey",
    "note_fence": "queue_pkey",
    "prune_pick": "outcome_keep",
    "prune_event": "event_job",
    "feed_read": "event_feed",
    "read_journal": "event_job",
    "record_by_id": "job_id_key",
    "record_by_seq": "job_pkey",
    "session_held": "queue_claimed",
}


@pytest.mark.long
@pytest.mark.on_postgres(16, 18)
def test_no_plan_reads_a_large_table_through_with_a_million_jobs(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_FILL)
        for name, value in PINNED.items():
            connection.execute(f"set {name} = {value}")
        for name, index in _PLANS.items():
            plan = _generic_plan(connection, statements("trellis")[name])
            assert index in plan, f"{name}:\n{plan}"
            for table in LARGE:
                assert not re.search(rf"Seq Scan on {table}\b", plan), f"{name}:\n{plan}"
            assert "Hash Join" not in plan, f"{name}:\n{plan}"


def _generic_plan(connection: psycopg.Connection[Any], text: str) -> str:
    """Return the plan by which a prepared statement is run with any values."""
    values = ", ".join("null" for _ in set(re.findall(r"\$\d+", text)))
    cursor = psycopg.RawCursor(connection)
    cursor.execute(f"prepare asked as {text}".encode())
    cursor.execute(f"explain (costs off) execute asked{f'({values})' if values else ''}".encode())
    plan = "\n".join(row[0] for row in cursor.fetchall())
    cursor.execute("deallocate asked")
    return plan


def test_only_statements_that_store_nothing_count_as_reads() -> None:
    reads = names_of_reads()
    assert {"clock", "health", "lock_list", "read_journal", "record_by_id", "session_list"} <= reads
    writing = ("claim", "commit_end", "create", "lock_put", "notify", "queue_set", "session_renew")
    assert reads.isdisjoint(writing)
