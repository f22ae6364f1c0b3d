"""What a terminal is shown, and what it is asked; on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Run, environment
from trellis import Service


@contextmanager
def terminal(columns: int) -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def run(
    folder: Path, *arguments: str, columns: int = 80, answer: bytes = b"", **variables: str
) -> tuple[int, str]:
    """Run a command on a terminal of this width, typing the answer before it asks."""
    with terminal(columns) as (ours, theirs):
        os.write(ours, answer)
        process = subprocess.Popen(
            [sys.executable, "-m", "trellis", *arguments],
            cwd=folder,
            env={**environment(), "TERM": "xterm-256color", "NO_COLOR": "", **variables},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        seen = b""
        try:
            while more := os.read(ours, 65536):
                seen += more
        except OSError:  # the other end was closed
            pass
        return process.wait(), seen.decode().replace("\r\n", "\n")


def test_a_list_fits_the_terminal_and_cuts_no_id(shop: tuple[Path, dict[str, str]]) -> None:
    folder, ids = shop
    code, seen = run(folder, "jobs", "list", NO_COLOR="1", TERM="dumb")
    assert code == 0
    assert max(map(len, seen.splitlines())) <= 80
    assert [line.split()[0] for line in seen.splitlines()[1:]] == list(reversed(ids.values()))
    assert "…" in seen
    assert "\x1b" not in seen


@pytest.mark.parametrize("arguments", [("jobs", "list"), ("jobs", "top"), ("workers",)])
def test_without_a_terminal_no_color_removes_every_style(
    shop: tuple[Path, dict[str, str]], arguments: tuple[str, ...]
) -> None:
    def written(**variables: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "trellis", *arguments],
            cwd=shop[0],
            env={**environment(), "FORCE_COLOR": "1", **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout + ran.stderr

    assert "\x1b" in written(NO_COLOR="")
    assert "\x1b" not in written()


def test_states_are_coloured(shop: tuple[Path, dict[str, str]]) -> None:
    _, seen = run(shop[0], "jobs", "list", "state:failed")
    assert "\x1b[31mfailed" in seen


def test_a_bulk_action_asks_and_a_no_does_nothing(shop: tuple[Path, dict[str, str]]) -> None:
    folder, _ = shop
    code, seen = run(folder, "jobs", "retry", "state:failed", answer=b"n\n")
    assert code == 1
    assert "Retry 1 job? [y/N]" in seen
    assert "Nothing was done." in seen
    code, seen = run(folder, "jobs", "retry", "state:failed", answer=b"y\n")
    assert code == 0
    assert "1 job waiting to run again." in seen


@pytest.mark.parametrize("end", ["Ctrl-C", "q"])
def test_top_is_a_live_view_that_ctrl_c_or_a_key_ends(
    shop: tuple[Path, dict[str, str]], end: str
) -> None:
    folder, ids = shop
    with terminal(100) as (ours, theirs):
        process = subprocess.Popen(
            [sys.executable, "-m", "trellis", "jobs", "top", "--interval", "50ms"],
            cwd=folder,
            env={**environment(), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        seen = b""
        while seen.count(ids["active"][-8:].encode()) < 2:
            seen += os.read(ours, 65536)
        if end == "q":
            os.write(ours, b"xq")
        else:
            process.send_signal(signal.SIGINT)
        try:
            while more := os.read(ours, 65536):
                seen += more
        except OSError:
            pass
        assert process.wait() == 0
    assert b"ended/s" in seen


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "list"),
        ("jobs", "show", "failed"),
        ("jobs", "why", "retry"),
        ("jobs", "logs", "active"),
        ("jobs", "logs", "active", "--jsonl"),
        ("jobs", "list", "--json"),
        ("jobs", "wait", "dead"),
        ("jobs", "top"),
        ("dlq",),
    ],
    ids=" ".join,
)
def test_no_text_of_a_job_acts_on_the_terminal(
    look: Run, ids: dict[str, str], arguments: tuple[str, ...]
) -> None:
    ran = look(*(ids.get(word, word) for word in arguments))
    for text in (ran.out, ran.err):
        assert not set(text) & {"\x1b", "\x07", "\r", "\x9b", "\u202e"}
        assert "\nall is well" not in text


def test_the_first_interrupt_ends_a_question(shop: tuple[Path, dict[str, str]]) -> None:
    with terminal(80) as (ours, theirs):
        process = subprocess.Popen(
            [sys.executable, "-m", "trellis", "jobs", "cancel", "state:pending"],
            cwd=shop[0],
            env={**environment(), "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        seen = b""
        while b"[y/N]" not in seen:
            seen += os.read(ours, 65536)
        wait_until_it_sleeps(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def wait_until_it_sleeps(pid: int) -> None:
    """Wait until the main thread of a process has slept for a while: it waits for an answer.

    Python does not notice a signal between the last look for signals and the wait for input.
    """
    switches, same = "", 0
    while same < 10:
        status = Path(f"/proc/{pid}/status").read_text()
        found = status[status.index("voluntary_ctxt_switches") :]
        same = same + 1 if found == switches and "State:\tS" in status else 0
        switches = found
        time.sleep(0.01)


def test_a_narrow_list_of_queues_cuts_no_name_and_leaves_out_the_rates(tmp_path: Path) -> None:
    queue = "invoices-of-wholesale-customers-abroad"
    shop = Service("shop", f"sqlite:///{tmp_path / 'trellis.db'}")
    shop.declare("bill", result=str, queue=queue).create_sync()
    code, seen = run(tmp_path, "queues", NO_COLOR="1", TERM="dumb")
    assert (code, seen.split()[:5]) == (0, ["QUEUE", "WAITING", "OLDEST", "ACTIVE", "NOTE"])
    assert f"shop/{queue} " in seen
    assert "RUN/MIN" not in seen
    code, seen = run(tmp_path, "queues", COLUMNS="120")
    assert seen.count("RUN/MIN") == 2
