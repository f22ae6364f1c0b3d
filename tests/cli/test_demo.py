"""`trellis demo` keeps its promises and leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

from tests.cli.conftest import start


def is_alive(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_demo_keeps_every_promise_it_shows(tmp_path: Path) -> None:
    process = start(tmp_path, "demo", "--keep")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    assert out.count("held  ") == 7
    assert "BROKEN" not in out
    (database,) = re.findall(r"The database is (\S+)\.", out)
    assert Path(database).exists()
    for command in ("trellis doctor --url", "sqlite3", "trellis worker trellis.cli.demo.jobs:app"):
        assert command in out
    assert not any(is_alive(pid) for pid in re.findall(r"worker (\d+) works", out))
    shutil.rmtree(Path(database).parent)


def test_an_interrupted_demo_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    process = start(tmp_path, "demo")
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "A burst of jobs" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    text = "".join(lines)
    assert process.returncode == 130
    assert err.strip() == "Interrupted."
    pids = re.findall(r"worker (\d+) works", text)
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    (database,) = re.findall(r"A database in (\S+),", text)
    assert not Path(database).parent.exists()
