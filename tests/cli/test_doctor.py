"""`trellis doctor` on SQLite: what it checks, and the settings in force."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.shop import make_database
from trellis import schedules
from trellis.config import KEYS
from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.core.schedules import Step
from trellis.engines import make_engine
from trellis.engines.worker_report import BlockedLoop, LostThread, WorkerReport
from trellis.testing.builders import a_declaration, a_job, a_worker


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
    assert "450 checked, all match" in ran.out
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
    assert found["durability"].endswith("a crash of the machine and a power cut")


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


def test_doctor_names_no_setting_for_a_variable_that_is_spelt_otherwise(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_SHOP_PASSWORD", "x")
    ran = command("doctor", "--url", make_database(tmp_path))
    assert "TRELLIS_SHOP_PASSWORD is set, but there is no such setting.\n" in ran.out


def test_lost_threads_and_a_blocked_loop_are_shown_with_what_helps(
    command: Run, tmp_path: Path
) -> None:
    url = make_database(tmp_path)
    report = WorkerReport(
        lost_threads=(LostThread(JobId("A"), "shop/hang", 1), LostThread(JobId("B"), "shop/x", 1)),
        blocked_loop=BlockedLoop(1, "shop.py:4 in wait", JobId("C")),
    )

    async def work() -> None:
        engine = make_engine(url)
        await engine.open()
        session = await engine.open_session(a_worker("berlin"), 60 * SECOND)
        await engine.renew(session.id, [], (), report)
        await engine.close()

    asyncio.run(work())
    document = json.loads(command("doctor", "--quick", "--json", "--url", url).out)
    warnings = document["warnings"][-2:]  # the engine's come first
    assert "Worker berlin has 2 lost threads (shop/hang, shop/x; seen at " in warnings[0]
    assert 'or the type isolation="process". See: ' in warnings[0]
    assert warnings[0].endswith(f"See: trellis --url {url} workers")
    assert "worker berlin is blocked by job C at shop.py:4 in wait (seen at " in warnings[1]
    assert warnings[1].endswith(f"trellis --url {url} jobs cancel --force C")
    header, row = command("workers", "--url", url).out.splitlines()
    assert header.split()[-1] == "NOTE"
    assert row.endswith(
        "loop blocked by job C at shop.py:4 in wait; lost threads: 2 (shop/hang, shop/x)"
    )
    (document,) = json.loads(command("workers", "--json", "--url", url).out)
    assert [each["job_id"] for each in document["lost_threads"]] == ["A", "B"]
    assert document["blocked_loop"]["where"] == "shop.py:4 in wait"


def test_waiting_jobs_that_no_live_worker_runs_are_reported(command: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def fill() -> None:
        engine = make_engine(url)
        await engine.open()
        types = [f"t{number}" for number in range(8)]
        await engine.create([a_job(type=each) for each in [*types, "t0", "served"]])
        details = json.dumps({"types": ["shop/served"], "slots": 1})
        live = await engine.open_session(a_worker()._replace(details=details), 60 * SECOND)
        details = json.dumps({"types": ["shop/t0"], "slots": 1})
        ended = await engine.open_session(a_worker()._replace(details=details), 60 * SECOND)
        await engine.close_session(ended.id)
        assert live != ended
        await engine.close()

    asyncio.run(fill())
    ran = command("doctor", "--quick", "--url", url)
    assert "Warning     No live worker runs shop/t0, and 2 jobs of it wait. Start" in ran.out
    assert "No live worker runs shop/t4, and 1 job of it waits." in ran.out
    assert "Warning     Jobs of 3 more types wait that no live worker runs." in ran.out
    assert not any(name in ran.out for name in ("shop/t5", "shop/served"))


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


def test_doctor_names_schedules_that_are_behind_or_that_no_worker_runs(
    command: Run, tmp_path: Path
) -> None:
    url = make_database(tmp_path)

    async def declare() -> None:
        engine = make_engine(url)
        await engine.open()
        declared = [a_declaration("a"), a_declaration("b"), a_declaration("c", paused=True)]
        await schedules.declare_schedules(engine, "shop", declared, lambda _: True)
        behind, ahead, _ = await engine.schedules()
        later = [
            behind._replace(next_slot=await engine.now() - 3600 * SECOND),
            ahead._replace(next_slot=await engine.now() + 3600 * SECOND),
        ]
        for each in later:
            await engine.advance_schedule(Step(each))
        await engine.close()

    asyncio.run(declare())
    warnings = json.loads(command("doctor", "--json", "--url", url).out)["warnings"]
    assert [text.split(":")[0][:24] for text in warnings if text.startswith("Schedule")] == [
        "Schedule shop/a is behin",
        "Schedule shop/a creates ",
        "Schedule shop/b is not d",
        "Schedule shop/b creates ",
    ]
    assert any(f"trellis --url {url} schedules reset shop/b" in text for text in warnings)
