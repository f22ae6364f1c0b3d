"""`trellis demo` keeps its promises, sees every broken one, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import SOURCE, Run, environment, start
from tests.cli.demo_mutants import MUTANTS, VARIABLE, Mutant
from trellis.cli.demo.runner import JOURNALS
from trellis.cli.demo.scenes import SCENES


def left_running(scratch: Path) -> list[str]:
    """Return the processes whose working folder is or was in there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or only waits to be waited for
            if str((process / "cwd").readlink()).startswith(str(scratch)):
                found.append((process / "cmdline").read_text())
    return found


def rows(out: str, word: str) -> list[str]:
    """Return the promises of the summary with this word."""
    return re.findall(rf"^{word} +(.*)$", out, re.MULTILINE)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A temporary directory with a short name, as sockets in it need."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:
        yield Path(folder)


def promise(mutant: Mutant) -> str:
    """Return the promise that a mutant breaks."""
    if mutant.in_journals:
        return JOURNALS
    return next(scene.promise for scene in SCENES if scene.name == mutant.scene)


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_promise_is_seen(tmp_path: Path, scratch: Path, name: str) -> None:
    mutant = MUTANTS[name]
    (tmp_path / "sitecustomize.py").write_text(
        "from tests.cli.demo_mutants import apply_mutant\napply_mutant()\n"
    )
    places = os.pathsep.join(map(str, (tmp_path, SOURCE, SOURCE.parent)))
    variables = {"TMPDIR": str(scratch), "PYTHONPATH": places, VARIABLE: name}
    ran = subprocess.run(
        [sys.executable, "-m", "trellis", "demo", "--scene", mutant.scene],
        cwd=tmp_path,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (1, ""), ran.stdout + ran.stderr
    assert rows(ran.stdout, "BROKEN") == [promise(mutant)], ran.stdout
    assert len(rows(ran.stdout, "held")) == 1
    assert "1 of 2 promises held." in ran.stdout


def test_every_promise_has_been_broken_once() -> None:
    promises = {*(scene.promise for scene in SCENES), JOURNALS}
    assert {promise(mutant) for mutant in MUTANTS.values()} == promises


@pytest.mark.parametrize(
    ("number", "scene", "moment"),
    [
        (signal.SIGINT, "zombie", "is frozen (SIGSTOP)"),
        (signal.SIGTERM, "crash", "separate process"),
        (signal.SIGHUP, "retry", "Workers start"),
    ],
)
def test_an_interrupted_demo_leaves_no_process_and_no_file(
    tmp_path: Path, scratch: Path, number: signal.Signals, scene: str, moment: str
) -> None:
    process = start(tmp_path, "demo", "--scene", scene, TMPDIR=str(scratch))
    assert process.stdout is not None
    assert any(moment in line for line in process.stdout)
    process.send_signal(number)
    process.send_signal(number)  # impatience costs nothing
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "Interrupted.")
    assert "promises held" not in out
    assert left_running(scratch) == []
    assert not list(scratch.iterdir())


def test_an_unknown_scene_is_refused(command: Run) -> None:
    ran = command("demo", "--scene", "elopement")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("The demo has no scene 'elopement'. It has burst, retry, ")


def on_a_terminal(folder: Path, scratch: Path, *arguments: str) -> tuple[int, str]:
    """Run the demo on a new terminal; return its exit code and all that it wrote."""
    ours, its = pty.openpty()
    variables = {"TMPDIR": str(scratch), "TERM": "xterm-256color", "COLUMNS": "80"}
    variables["TRELLIS_TYPES"] = "elsewhere"  # meant for other workers
    process = subprocess.Popen(
        [sys.executable, "-m", "trellis", "demo", *arguments],
        cwd=folder,
        env={**environment(), **variables},
        stdin=its,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
    except OSError:
        pass  # how Linux reports that the other end was closed
    finally:
        os.close(ours)
    return process.wait(timeout=30), written.decode()


@pytest.mark.long
def test_the_demo_keeps_every_promise_and_shows_it(tmp_path: Path, scratch: Path) -> None:
    code, written = on_a_terminal(tmp_path, scratch, "--keep")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r", "\n")
    assert code == 0, plain
    count = len(SCENES) + 1
    assert f"{count} of {count} promises held." in plain
    assert len(re.findall(r"^ +held ", plain, re.MULTILINE)) == count
    assert "\x1b[1m1. A burst of jobs\x1b[0m" in written
    assert re.search(r"thumbnails .*400/400", plain)
    assert re.search(r"is frozen .*\n(.*\n)*.*[⠀-⣿] 1 s(.*\n)*.*has begun the report", plain)
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert left_running(scratch) == []
    (folder,) = scratch.iterdir()
    looked = start(folder, "doctor", "--json")
    assert json.loads(looked.communicate()[0])["url"] == f"sqlite:///{folder}/demo.db"
