"""A signal while the command or its worker process is still being imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.guardian.conftest import Shop, children, shop, wait_until

__all__ = ["shop"]

#: Imported in place of a dependency: waits where it is told to, then imports the real one.
SLOW = """
import sys, time
from pathlib import Path

place = "worker" if any("worker_main" in each for each in sys.orig_argv) else "command"
Path(f"{place}-imports").touch()
while not Path(f"{place}-may-go").exists():
    time.sleep(0.02)
sys.path.remove(str(Path(__file__).parent))
del sys.modules["rich_click"]
import rich_click
"""


@pytest.fixture
def slow(shop: Shop) -> Shop:
    folder = shop.folder / "slow"
    folder.mkdir()
    (folder / "rich_click.py").write_text(SLOW)
    return shop


def path_of(slow: Shop) -> str:
    return f"{slow.folder / 'slow'}:{Path(__file__).parents[2] / 'src'}"


def test_ctrl_c_while_the_command_is_imported_ends_it_with_one_line(slow: Shop) -> None:
    worker = slow.worker("program:app", PYTHONPATH=path_of(slow))
    wait_until((slow.folder / "command-imports").exists)
    worker.signal(signal.SIGINT)
    assert worker.wait_for_exit() == 130
    assert worker.log == "Interrupted.\n"


def test_little_is_imported_before_ctrl_c_is_expected() -> None:
    script = (
        "import sys; before = set(sys.modules); import trellis.__main__; "
        "print(*sorted(set(sys.modules) - before))"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    run = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    slow = {"asyncio", "enum", "functools", "importlib", "re", "signal", "typing"}
    assert not slow & set(run.stdout.split())


def test_a_signal_while_the_worker_process_is_imported_is_left_to_the_guardian(slow: Shop) -> None:
    (slow.folder / "command-may-go").touch()
    worker = slow.worker("program:app", PYTHONPATH=path_of(slow))
    wait_until((slow.folder / "worker-imports").exists)
    (pid,) = children(worker.process.pid)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    (slow.folder / "worker-may-go").touch()
    worker.wait_for_log("Working on")
    assert "Traceback" not in worker.log
