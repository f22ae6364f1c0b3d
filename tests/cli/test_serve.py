"""`trellis serve`: it answers, ends on a signal, and refuses what would be unsafe."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Run
from trellis import Service

EVERYWHERE = "0.0.0.0"  # noqa: S104 - it is refused


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a database."""
    service = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")
    with service:
        return service.url


def test_it_says_where_it_listens_answers_with_a_token_and_ends_on_a_signal(
    command: Run, url: str
) -> None:
    token = command("tokens", "create", "admin.read", "--url", url).out.strip()
    with subprocess.Popen(
        [sys.executable, "-m", "trellis", "serve", "--port", "0", "--url", url],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"},
    ) as server:  # fmt: skip
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert found, line
            api = f"{found[0]}/api/v1"
            headers = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{api}/jobs", headers=headers).json()["entries"] == []
            assert httpx.get(f"{api}/jobs").status_code == 401
            server.send_signal(signal.SIGTERM)
            assert server.wait(20) in (0, -signal.SIGTERM)
        finally:
            server.kill()


def test_it_writes_an_address_that_logs_a_browser_in_once_and_ends_with_open_streams(
    url: str,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "trellis", "serve", "--port", "0", "--url", url],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"},
    ) as server:  # fmt: skip
        try:
            assert server.stderr is not None
            found = None
            while found is None:
                line = server.stderr.readline()
                assert line
                found = re.search(r"(http://127\.0\.0\.1:\d+)(/login\?code=\S+)", line)
            with httpx.Client(base_url=found[1]) as browser:
                assert browser.get(found[2], follow_redirects=True).json()["actor"]
                assert httpx.get(found[1] + found[2]).status_code == 401
                with browser.stream("GET", "/api/v1/stream") as stream:
                    lines = stream.iter_lines()
                    assert next(lines) == "event: ready"
                    server.send_signal(signal.SIGTERM)
                    assert any(each.startswith("retry: ") for each in lines)
            assert server.wait(20) in (0, -signal.SIGTERM)
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", EVERYWHERE, "--no-auth"], "--no-auth would let everyone who reaches it"),
        (["--host", EVERYWHERE], "Give --tls-cert and --tls-key, or --behind-proxy"),
        (["--host", EVERYWHERE, "--behind-proxy"], "There is no valid token"),
        (["--tls-cert", "a.pem"], "--tls-cert and --tls-key belong together"),
    ],
)
def test_what_would_be_unsafe_is_refused(
    command: Run, url: str, arguments: list[str], words: str
) -> None:
    ran = command("serve", *arguments, "--url", url)
    assert (ran.code, words in ran.err) == (2, True), ran.err
