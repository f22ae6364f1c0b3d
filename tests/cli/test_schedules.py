"""`trellis schedules`, and `trellis enqueue --slot` for an external cron."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.cli.conftest import Run
from trellis import Service
from trellis.cli.enqueue import slot_key
from trellis.config import WorkerSettings
from trellis.core.schedules import Step
from trellis.engines import make_engine
from trellis.service import work

_TIMES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
PROGRAM = """
from trellis import Service

app = Service("reports", "sqlite:///{path}")


@app.schedule("0 3 * * *", tz="Europe/Vienna")
@app.job
async def nightly(days: int = 7) -> None: ...
"""


@pytest.fixture
async def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Service("reports", url)

    @app.schedule("0 3 * * *", tz="Europe/Vienna")
    @app.job
    async def nightly(days: int = 7) -> None: ...

    async with app, work([app], WorkerSettings()):
        pass
    return url


def test_schedules_are_listed_and_shown_in_both_time_zones(url: str, command: Run) -> None:
    ran = command("schedules", "--url", url)
    assert ran.code == 0
    header, *lines = ran.out.splitlines()
    assert header.split() == ["SCHEDULE", "NEXT", "IN", "ITS", "ZONE", "NEXT", "HERE"]
    assert [line[:28].strip() for line in lines[:2]] == [
        "reports/nightly",
        "0 3 * * *, Europe/Vienna",
    ]
    assert len(lines) == 5
    for line in lines:
        there, here = _TIMES.findall(line)
        vienna = datetime.fromisoformat(there).replace(tzinfo=ZoneInfo("Europe/Vienna"))
        assert there.endswith(" 03:00:00")
        assert vienna.astimezone().strftime("%Y-%m-%d %H:%M:%S") == here
    assert max(map(len, lines)) <= 80
    assert len(_TIMES.findall(command("schedules", "list", "--next", "2", "--url", url).out)) == 4
    shown = command("schedules", "show", "nightly", "--url", url)
    assert shown.out.count(" 03:00:00 Europe/Vienna, ") == 5
    assert "payload      7" in shown.out
    document = json.loads(command("schedules", "list", "--json", "--url", url).out)[0]
    assert (document["name"], document["state"], len(document["next_runs"])) == (
        "nightly",
        "active",
        5,
    )
    assert command("schedules", "-q", "--url", url).out == "reports/nightly\n"
    assert command("schedules", "show", "other", "--url", url).code == 3


async def _put_into_zone(url: str, tz: str) -> None:
    """Store the schedule with a zone, as a host with another zone database can."""
    engine = make_engine(url)
    await engine.open()
    (stored,) = await engine.schedules()
    lacking = stored._replace(declared=stored.declared._replace(tz=tz))
    await engine.advance_schedule(Step(lacking))
    await engine.close()


async def test_a_schedule_whose_zone_this_host_lacks_is_listed_with_a_note(
    url: str, command: Run
) -> None:
    await _put_into_zone(url, "Mars/Olympus")
    for arguments in (("schedules",), ("schedules", "show", "nightly")):
        ran = await asyncio.to_thread(command, *arguments, "--url", url)
        assert ran.code == 0
        assert "Mars/Olympus" in ran.out
        assert "its time zone is not known here" in ran.out
    doctor = await asyncio.to_thread(command, "doctor", "--json", "--url", url)
    warnings = json.loads(doctor.out)["warnings"]
    assert any("schedules set reports/nightly --tz" in each for each in warnings)
    for change in (("pause", "nightly"), ("resume", "nightly"), ("set", "nightly", "--tz", "UTC")):
        changed = await asyncio.to_thread(command, "schedules", *change, "--url", url)
        assert changed.code == 0, changed.err


def test_a_schedule_is_changed_paused_resumed_and_reset(url: str, command: Run) -> None:
    ran = command("schedules", "set", "nightly", "--every", "15m", "--missed", "all",
                  "--reason", "busy", "--json", "--url", url)  # fmt: skip
    document = json.loads(ran.out)
    assert (document["when"], document["missed"]) == ("@every 15m", "all")
    assert document["declared"] == {"when": "0 3 * * *", "missed": "last"}
    assert "changed" in command("schedules", "--url", url).out
    assert "is paused" in command("schedules", "pause", "nightly", "--url", url).err
    assert "paused" in command("schedules", "--url", url).out
    assert "is active" in command("schedules", "resume", "nightly", "--url", url).err
    assert "0 3 * * *" in command("schedules", "reset", "nightly", "--url", url).err


def test_windows_are_added_and_removed(url: str, command: Run) -> None:
    start, end = "2031-01-01T00:00+00:00", "2031-01-02T00:00+00:00"
    added = command("schedules", "window", "add", "nightly", start, end, "--json", "--url", url)
    assert json.loads(added.out)["windows"] == [
        {"start": "2031-01-01T00:00:00Z", "end": "2031-01-02T00:00:00Z"}
    ]
    removed = command("schedules", "window", "remove", "nightly", start, "--json", "--url", url)
    assert json.loads(removed.out)["windows"] == []
    assert command("schedules", "window", "remove", "nightly", start, "--url", url).code == 2


def test_a_window_that_begins_now_is_removed_by_the_time_that_is_shown(
    url: str, command: Run
) -> None:
    command("schedules", "window", "add", "nightly", "now", "2h", "--url", url)
    shown = command("schedules", "show", "nightly", "--url", url).out
    (start,) = re.findall(r"^window +(.+) to ", shown, re.MULTILINE)
    removed = command("schedules", "window", "remove", "nightly", start, "--json", "--url", url)
    assert json.loads(removed.out)["windows"] == []


def test_a_schedule_runs_now_and_its_job_names_it(url: str, command: Run) -> None:
    job_id = command("schedules", "run", "nightly", "--reason", "try", "--url", url).out.strip()
    shown = command("jobs", "show", job_id, "--url", url)
    assert "reports/nightly, run by an operator" in shown.out
    assert command("schedules", "slots", "nightly", "--json", "--url", url).out == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [("--cron", "0 99 * * *"), ("--every", "0s"), ("--tz", "Mars"), ("--payload", "{"), ()],
)
def test_a_wrong_change_is_a_usage_error(
    url: str, command: Run, arguments: tuple[str, ...]
) -> None:
    ran = command("schedules", "set", "nightly", *arguments, "--url", url)
    assert ran.code in {2, 4}
    assert ran.err.count("\n") <= 3


def test_a_payload_is_checked_by_the_app(
    url: str, command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scheduled_app.py").write_text(PROGRAM.format(path=tmp_path / "jobs.db"))
    monkeypatch.chdir(tmp_path)
    app = ("--app", "scheduled_app:app")
    refused = command("schedules", "set", "nightly", "--payload", '"seven"', *app)
    assert refused.code != 0
    assert "reports/nightly" in refused.err
    assert command("schedules", "set", "nightly", "--payload", "8", *app).code == 0
    unchecked = command("schedules", "set", "nightly", "--payload", '"seven"', "--url", url)
    assert (unchecked.code, "not checked" in unchecked.err) == (0, True)


NOW = datetime(2026, 6, 1, 12, 30, 45, tzinfo=UTC)
MINUTE = int(datetime(2026, 6, 1, 12, 30, tzinfo=UTC).timestamp()) // 60


@pytest.mark.parametrize(
    ("slot", "hostname", "key"),
    [
        ("auto", "laptop", "slot/2026-06-01T12:30Z"),
        ("auto", f"nightly-report-{MINUTE - 5}-x7x2k", "slot/nightly-report/2026-06-01T12:25Z"),
        ("auto", f"nightly-report-{MINUTE - 5}-zzzzz", "slot/nightly-report/2026-06-01T12:25Z"),
        ("auto", "web-7654321098-x7x2k", "slot/2026-06-01T12:30Z"),
        ("auto", "web-12345678-x7x2k", "slot/2026-06-01T12:30Z"),
        ("monday", "laptop", "slot/monday"),
    ],
)
def test_the_key_of_a_slot(slot: str, hostname: str, key: str) -> None:
    assert slot_key(slot, hostname, NOW) == key


def test_lines_of_one_minute_with_different_payloads_create_a_job_each(
    url: str, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTNAME", "laptop")
    keys = [slot_key("auto", "laptop", NOW, text) for text in ("[1, 2]", "[1,2]", "[2]", None)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    command("schedules", "run", "nightly", "--url", url)
    enqueue = ("enqueue", "reports/nightly", "-q", "--url", url, "--slot", "auto")
    first, other = (command(*enqueue, payload) for payload in ("8", "9"))
    assert (first.code, other.code) == (0, 0)
    assert first.out != other.out


def test_two_starts_for_one_slot_create_one_job(url: str, command: Run) -> None:
    command("schedules", "run", "nightly", "--url", url)
    enqueue = ("enqueue", "reports/nightly", "8", "-q", "--url", url)
    first = command(*enqueue, "--slot", "2026-06-01")
    again = command(*enqueue, "--slot", "2026-06-01")
    other = command(*enqueue, "--slot", "2026-06-02")
    assert first.out == again.out != other.out
    assert command(*enqueue, "--slot", "auto", "--idempotency-key", "x").code == 2
