"""Statements stand in sections of files, under one name in every dialect; none stands in code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.engines.sections import SHARED
from trellis.engines.sql.statements import load_sections, load_statements, read_sections

_SQL = re.compile(
    r"\s*(select|insert|update|delete|with|begin|commit|rollback|savepoint|release|pragma|set|create"
    r"|alter|drop)\b(?=.*\s\S)",
    re.IGNORECASE | re.DOTALL,
)


def test_a_section_ends_where_the_next_one_begins() -> None:
    text = "-- The file.\n\n-- name: one\n-- Why.\nselect 1\n\n-- name: two\nselect\n  2\n"
    assert read_sections({"a": text}).files == {"a": {"one": "select 1", "two": "select\n  2"}}


def test_a_fragment_is_put_in_where_it_is_included() -> None:
    text = (
        "-- name: one\nselect 1\n-- include: end\nlimit 1\n-- fragment: end\n-- Why.\norder by 1\n"
    )
    assert read_sections({"a": text}).files["a"]["one"] == "select 1\norder by 1\nlimit 1"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": "-- name: x\n1\n-- name: x\n2\n"}, "a.sql has a second section 'x'"),
        ({"a": "-- name: x\n1\n", "b": "-- fragment: x\n2\n"}, "b.sql has a second section 'x'"),
        ({"a": "select 1\n-- name: x\n1\n"}, "a.sql has text before its first section"),
        ({"a": "-- name: x\n-- include: y\n"}, "There is no fragment 'y'"),
    ],
)
def test_a_mistake_in_a_file_is_refused(files: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_sections(files)


@pytest.mark.parametrize("package", ["sql", "sqlite", "postgres"])
def test_no_statement_stands_in_code(package: str) -> None:
    found = [
        f"{path.name}:{node.lineno}: {node.value[:60]!r}"
        for path in sorted((SHARED.parent / package).glob("*.py"))
        for node in _texts(path)
        if isinstance(node.value, str) and _SQL.match(node.value)
    ]
    assert found == []


def _texts(path: Path) -> list[ast.Constant]:
    """Return the texts in a file's code: docstrings and parts of longer messages are none."""
    tree = ast.parse(path.read_text())
    prose = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr | ast.Raise)
        for part in ast.walk(node)
    }
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose
    ]


def test_the_dialects_differ_in_these_names_only() -> None:
    sqlite, postgres = (
        {file: set(names) for file, names in load_sections(f"trellis.engines.{each}").files.items()}
        for each in ("sqlite", "postgres")
    )
    lists = {
        file: (sorted(sqlite[file] - postgres[file]), sorted(postgres[file] - sqlite[file]))
        for file in sqlite.keys() & postgres.keys()
    }
    assert {file: names for file, names in lists.items() if names != ([], [])} == DIFFERENCES
    assert sqlite.keys() - postgres.keys() == set()
    assert postgres.keys() - sqlite.keys() == {"health"}


def test_a_name_that_both_dialects_have_is_in_the_same_file() -> None:
    first, second = (
        {name: file for file, names in load_sections(package).files.items() for name in names}
        for package in ("trellis.engines.sqlite", "trellis.engines.postgres")
    )
    assert load_statements("trellis.engines.sqlite").keys() == first.keys()
    assert {name for name in first.keys() & second.keys() if first[name] != second[name]} == set()


def test_what_reports_changes_on_postgresql_returns_them() -> None:
    code = "".join(path.read_text() for path in SHARED.glob("*.py"))
    postgres = load_statements("trellis.engines.postgres")
    names = set(re.findall(r'\.changed\(\s*"(\w+)"', code))
    assert "lock_free" in names
    assert [name for name in sorted(names) if "returning" not in postgres[name]] == []


#: By file: the names that only SQLite has, and those that only PostgreSQL has.
DIFFERENCES: dict[str, tuple[list[str], list[str]]] = {
    "batches": (["prune_batches_peek"], ["batch_lock"]),
    "export": (
        ["export_is_sealed", "export_seal_table"],
        ["export_lock", "export_refuse", "export_shut"],
    ),
    "fairness": (["fair_prune_peek"], ["fair_lock"]),
    "caller": (
        ["caller_gate", "caller_shadows", "caller_version"],
        ["caller_isolation", "instance"],
    ),
    "dependencies": (
        [],
        [
            "dependency_foreign",
            "dependency_lock",
            "dependency_unadmitted",
            "dependent_lock",
        ],
    ),
    "claim": (
        [
            "claim_event", "claim_peek", "claim_pick", "claim_pick_few", "claim_rows",
            "claim_settings", "claim_slot", "claim_take", "claim_watch",
        ],
        ["claim", "claim_lane", "claim_limited", "claim_none", "claim_waiting"],
    ),
    "commit": (
        [
            "commit_outcome", "commit_outcome_full", "commit_policies", "success_end",
            "success_event", "success_outcome",
        ],
        ["commit_done"],
    ),
    "projection": (
        ["projection_view_jobs", "projection_view_metadata", "projection_view_presence"],
        ["projection_lock"],
    ),
    "import": (["import_identify", "import_instance"], []),
    "limits": (["lingering_is_overdue"], ["limit_gate", "limit_lock"]),
    "common": (
        ["event", "event_fenced"],
        ["clock"],
    ),
    "connection": (
        [
            "call_release", "call_savepoint", "call_undo", "checkpoint", "data_version",
            "database_list", "part_release", "part_savepoint", "part_undo", "set_busy_timeout",
            "set_cache_size", "set_journal_mode", "set_journal_size_limit", "set_synchronous",
            "set_temp_store", "set_wal_autocheckpoint",
        ],
        ["backend_pid", "notify"],
    ),
    "create": (
        [
            "create_counter", "create_counter_set", "create_event_alike", "create_idempotency",
            "create_job", "create_job_full", "create_queue", "create_queue_alike",
            "create_queue_full", "create_undo",
        ],
        ["create", "create_bare", "gate", "gate_try"],
    ),
    "locks": (
        ["lock_is_overdue"],
        ["lock_gate"],
    ),
    "maintenance": (
        ["due_peek", "prune_peek", "prune_removals_peek", "prune_sessions_peek"],
        ["remove_lock"],
    ),
    "queues": (
        ["queue_drains"],
        [],
    ),
    "registry": (
        [],
        ["type_put"],
    ),
    "schema": (
        ["schema_record", "schema_tables"],
        ["migrate_holders", "migrate_try", "schema_others", "schema_table"],
    ),
    "tokens": (["token_prune_logins_peek"], []),
    "key_rates": (
        ["key_bucket_is_full"],
        [],
    ),
    "slots": (
        [],
        ["caller_admit", "caller_waiting", "key_hand_over", "key_lock", "slot_free_jobs"],
    ),
}  # fmt: skip


def test_no_sqlite_statement_numbers_its_parameters() -> None:
    """Python 3.14 refuses a sequence of values for `?1`, and 3.12 warns."""
    fragments = load_sections("trellis.engines.sqlite").fragments
    texts = {**load_statements("trellis.engines.sqlite"), **fragments}
    assert [name for name, text in texts.items() if re.search(r"\?[0-9{]", text)] == []
