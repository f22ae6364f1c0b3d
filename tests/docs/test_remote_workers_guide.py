"""The programs and commands of the guide to remote workers run, with a real server."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import environment, start
from tests.harness import ROOT

GUIDE = (ROOT / "docs" / "guides" / "remote-workers.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]


def a_command(beginning: str, **values: str) -> list[str]:
    """Return the words of the guide's command that begins so, with these values filled in."""
    (line,) = [line for line in COMMANDS if line.startswith(beginning)]
    for name, value in values.items():
        line = line.replace(f"${name}", value)
    return shlex.split(line)


def run(folder: Path, words: list[str], **variables: str) -> str:
    ran = subprocess.run(
        [sys.executable, *words], cwd=folder, env={**environment(), **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_the_programs_and_commands_of_the_guide_run(tmp_path: Path) -> None:
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL):
        (tmp_path / name).write_text(text)
    database = f"sqlite:///{tmp_path / 'jobs.db'}"
    run(tmp_path, ["-m", "trellis", "migrate", "--url", database])
    worker_token, submit_token = (
        run(tmp_path, ["-m", *a_command(f"trellis tokens create {scope}", DATABASE=database)])
        for scope in ("worker:shop", "submit:shop")
    )
    server = start(tmp_path, *a_command("trellis serve", DATABASE=database)[1:], "--port", "0")
    try:
        assert server.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
        assert found is not None
        url, shown = found[0], "http://127.0.0.1:8321"
        command = [word.replace(shown, url) for word in a_command("trellis worker")[1:]]
        worker = start(tmp_path, *command, TRELLIS_TOKEN=worker_token)
        try:
            variables = {"TRELLIS_URL": url, "TRELLIS_TOKEN": submit_token}
            assert run(tmp_path, ["producer.py"], **variables) == "invoice 7 was sent"
            scopes = ["admin.read", "admin.mutate"]
            token = run(tmp_path, ["-m", "trellis", "tokens", "create", *scopes, "--url", database])
            words = [word.replace(shown, url) for word in a_command("trellis jobs list")]
            assert "completed" in run(tmp_path, ["-m", *words], TRELLIS_TOKEN=token)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()
            worker.communicate()
    finally:
        server.kill()
        server.communicate()
