"""`trellis doctor` on SQLite: what it checks, and the settings in force."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.shop import make_database
from trellis.config import KEYS


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
    ran = command("doctor", "--url", make_database(tmp_path, 450))
    assert ran.code == 0
    assert "450 folded, all match" in ran.out
    assert re.search(r"lease +30s +default", ran.out)


def test_doctor_writes_json(command: Run, tmp_path: Path) -> None:
    ran = command("doctor", "--json", "--url", make_database(tmp_path))
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


def test_doctor_warns_of_a_variable_that_is_not_a_setting(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRELLIS_CONCURENCY", "TRELLIS_DEBUG", "TRELLIS_TEST_IT", "TRELLIS_LOG_FORMAT"):
        monkeypatch.setenv(name, "json")
    url = make_database(tmp_path)
    text = "TRELLIS_CONCURENCY is set, but there is no such setting. Did you mean "
    ran = command("doctor", "--url", url)
    assert f"Warning     {text}TRELLIS_CONCURRENCY?\n" in ran.out
    assert re.search(r"log_format +json +TRELLIS_LOG_FORMAT\n", ran.out)
    warnings = json.loads(command("doctor", "--json", "--url", url).out)["warnings"]
    (warning,) = (each for each in warnings if each.startswith("TRELLIS_"))
    assert warning.startswith(text)


def test_doctor_finds_a_head_that_its_journal_contradicts(command: Run, tmp_path: Path) -> None:
    url = make_database(tmp_path)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("update trellis_queue set attempt = 4 where job = 2")
        connection.commit()
    ran = command("doctor", "--url", url)
    assert ran.code == 1
    assert "1 DO NOT MATCH" in ran.out
    assert "attempt is 4 but the journal says 0" in ran.out
    assert json.loads(command("doctor", "--json", "--url", url).out)["healthy"] is False
