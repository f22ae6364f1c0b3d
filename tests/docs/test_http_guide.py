"""The commands of the guide to the HTTP API run as they are written."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import ROOT
from trellis import Service

GUIDE = (ROOT / "docs" / "guides" / "http.md").read_text()
COMMANDS = re.findall(r"```sh\n(curl.*?)```", GUIDE, re.DOTALL)
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Run `trellis serve`; return its address and a token."""
    service = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")

    @service.job
    def invoice(number: int) -> int:
        return number

    with service:
        invoice.create_sync(1)
    trellis = [sys.executable, "-m", "trellis"]
    scopes = ("admin.read", "admin.mutate", "admin.stream")
    made = subprocess.run(
        [*trellis, "tokens", "create", *scopes, "--url", service.url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    with subprocess.Popen(
        [*trellis, "serve", "--port", "0", "--no-login", "--url", service.url],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"},
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
            assert found is not None
            yield found[0], made.stdout.strip()
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        finally:
            process.kill()


def run(command: str, server: tuple[str, str], seconds: int = 30) -> str:
    """Run a command of the guide against this server."""
    address, token = server
    text = command.replace("http://127.0.0.1:8321", address).replace("curl ", "curl -sS ", 1)
    ran = subprocess.run(
        ["sh", "-c", text.replace("curl -sS", f"curl -sS --max-time {seconds}", 1)],
        capture_output=True, text=True, check=False, env={**os.environ, "TRELLIS_TOKEN": token},
    )  # fmt: skip
    return ran.stdout


def test_the_commands_of_the_guide_run(server: tuple[str, str]) -> None:
    create, preview, follow = COMMANDS
    answer = run(create, server)
    assert answer.startswith("HTTP/1.1 202"), answer
    assert run(create, server).splitlines()[-1].startswith('{"id":')
    assert json.loads(run(preview, server))["count"] == 0
    assert run(follow, server, seconds=2).startswith("event: ready")
