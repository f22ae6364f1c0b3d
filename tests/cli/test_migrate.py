"""`trellis migrate` on SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import Run


def test_migrate_creates_a_database_and_then_has_nothing_to_do(
    command: Run, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    first = command("migrate", "--url", url)
    assert first.code == 0
    assert f"{url} was migrated from schema 0 to" in first.out
    second = command("migrate", "--url", url)
    assert (second.code, "is up to date" in second.out) == (0, True)


def test_migrate_can_be_previewed_without_a_change(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    url = f"sqlite:///{path}"
    behind = command("migrate", "--check", "--url", url)
    assert (behind.code, "is out of date: migrations 1" in behind.out) == (1, True)
    script = command("migrate", "--sql", "--url", url)
    assert (script.code, "-- migration 1\n" in script.out) == (0, True)
    assert not list(tmp_path.iterdir())
    # What is printed is what would be run.
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script.out)
    assert "is up to date" in command("migrate", "--url", url).out
    current = command("migrate", "--check", "--url", url)
    assert (current.code, "is up to date" in current.out) == (0, True)
    assert command("migrate", "--sql", "--url", url).out == ""
    assert command("doctor", "--url", url).code == 0
