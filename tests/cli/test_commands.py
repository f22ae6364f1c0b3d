"""The commands that read and prepare: help, migrate, doctor."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run, environment
from trellis import Service
from trellis.config import KEYS


def database(folder: Path, jobs: int = 3) -> str:
    url = f"sqlite:///{folder / 'jobs.db'}"
    job = Service("shop", url).declare("greet", payload=int, result=int)

    async def create() -> None:
        await job.create_many(range(jobs))

    asyncio.run(create())
    return url


def test_help_lists_the_commands(command: Run) -> None:
    ran = command("--help")
    assert ran.code == 0
    for name in ("demo", "doctor", "migrate", "worker"):
        assert name in ran.out


def test_help_loads_neither_pydantic_nor_any_engine() -> None:
    program = (
        "import sys; from trellis.cli.app import run; code = run(['--help']); "
        "bad = [m for m in ('pydantic', 'sqlite3', 'asyncio') if m in sys.modules]; "
        "sys.exit(f'loaded {bad}' if bad else code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("doctor", "--nonsense"), ("worker",), ("worker", "--concurrency", "0", "a:b")],
)
def test_a_wrong_command_line_ends_with_2_and_says_why(
    command: Run, arguments: tuple[str, ...]
) -> None:
    ran = command(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://localhost", "Trellis does not know redis:// URLs."),
        ("jobs.db", "is not an engine URL"),
    ],
)
def test_a_wrong_url_ends_with_2_and_a_sentence(command: Run, url: str, words: str) -> None:
    ran = command("doctor", "--url", url)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err


def test_debug_shows_the_traceback(command: Run) -> None:
    ran = command("doctor", "--url", "redis://localhost", "--debug")
    assert ran.code == 2
    assert "Traceback" in ran.err


def test_migrate_creates_a_database_and_then_has_nothing_to_do(
    command: Run, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    first = command("migrate", "--url", url)
    assert first.code == 0
    assert f"{url} was migrated from schema 0 to" in first.out
    second = command("migrate", "--url", url)
    assert (second.code, "is up to date" in second.out) == (0, True)


def test_what_migrate_would_do_is_told_and_nothing_is_done(command: Run, tmp_path: Path) -> None:
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


def test_the_url_comes_from_the_environment_too(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_URL", database(tmp_path))
    ran = command("doctor")
    assert ran.code == 0
    assert "3 pending" in ran.out


def test_doctor_creates_no_database(command: Run, tmp_path: Path) -> None:
    ran = command("doctor", "--url", f"sqlite:///{tmp_path / 'none.db'}")
    assert ran.code == 5
    assert "There is no database" in ran.err
    assert not list(tmp_path.iterdir())


def test_doctor_refuses_a_file_that_is_no_database(command: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 500)
    ran = command("doctor", "--url", f"sqlite:///{tmp_path / 'notes.txt'}")
    assert ran.code == 5
    assert "Traceback" not in ran.err


def test_doctor_finds_a_sound_database_sound(command: Run, tmp_path: Path) -> None:
    ran = command("doctor", "--url", database(tmp_path, 450))
    assert ran.code == 0
    assert "450 folded, all match" in ran.out
    assert re.search(r"lease +30s +default", ran.out)


def test_doctor_writes_json(command: Run, tmp_path: Path) -> None:
    ran = command("doctor", "--json", "--url", database(tmp_path))
    found = json.loads(ran.out)
    assert ran.code == 0
    assert (found["healthy"], found["engine"], found["journals_checked"]) == (True, "sqlite", 3)
    assert found["states"] == {"pending": 3}
    settings = found["settings"]
    assert (settings["grace"], settings["concurrency"], settings["max_memory"]) == ("25s", 10, None)
    assert (settings["types"], settings["app"], settings["log_level"]) == (None, None, "info")
    assert set(found["origins"]) == set(KEYS)
    assert found["facts"]["synchronous"] == "full"
    assert found["durability"].startswith("K2")


def test_doctor_tells_of_a_variable_that_nobody_reads(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRELLIS_CONCURENCY", "TRELLIS_DEBUG", "TRELLIS_TEST_IT", "TRELLIS_LOG_FORMAT"):
        monkeypatch.setenv(name, "json")
    url = database(tmp_path)
    said = "TRELLIS_CONCURENCY is set, but there is no such setting. Did you mean "
    ran = command("doctor", "--url", url)
    assert f"Warning     {said}TRELLIS_CONCURRENCY?\n" in ran.out
    assert re.search(r"log_format +json +TRELLIS_LOG_FORMAT\n", ran.out)
    warnings = json.loads(command("doctor", "--json", "--url", url).out)["warnings"]
    (warning,) = (each for each in warnings if each.startswith("TRELLIS_"))
    assert warning.startswith(said)


def test_doctor_finds_a_head_that_its_journal_contradicts(command: Run, tmp_path: Path) -> None:
    url = database(tmp_path)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("update trellis_queue set attempt = 4 where job = 2")
        connection.commit()
    ran = command("doctor", "--url", url)
    assert ran.code == 1
    assert "1 DO NOT MATCH" in ran.out
    assert "attempt is 4 but the journal says 0" in ran.out
    assert json.loads(command("doctor", "--json", "--url", url).out)["healthy"] is False
