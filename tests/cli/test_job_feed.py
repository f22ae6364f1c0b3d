"""`trellis jobs follow`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trellis import Service


@pytest.fixture
def shop(tmp_path: Path) -> Service:
    """Return a service whose database has a completed job and a waiting one."""
    app = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.job
    def bill(order: int) -> int:
        return order

    @app.job(name="later")
    def later() -> None: ...

    async def run() -> None:
        async with app, app.worker():
            await (await bill.create(1)).wait("10s")
        async with app:
            await later.create()

    asyncio.run(run())
    return app


def test_changes_are_written_as_lines(command: Run, shop: Service) -> None:
    ran = command("jobs", "follow", "--after", "start", "--limit", "4", "--url", shop.url)
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[2:] for line in ran.out.splitlines()] == [
        ["shop/bill", "created", "(pending)"],
        ["shop/bill", "started", "attempt", "1"],
        ["shop/bill", "completed", "attempt", "1"],
        ["shop/later", "created", "(pending)"],
    ]


def test_json_documents_have_a_cursor_to_go_on_from(command: Run, shop: Service) -> None:
    options = ("--type", "bill", "--json", "--limit", "1", "--url", shop.url)
    first = json.loads(command("jobs", "follow", "--after", "start", *options).out)
    second = json.loads(command("jobs", "follow", "--after", first["cursor"], *options).out)
    assert (first["event"]["kind"], second["event"]["kind"]) == ("created", "started")
    assert (first["service"], first["type"], first["tags"]) == ("shop", "bill", {})


def test_wrong_words_are_reported(command: Run, shop: Service) -> None:
    ran = command("jobs", "follow", "--kind", "complete", "--url", shop.url)
    assert (ran.code, "Did you mean completed?" in ran.err) == (2, True)
    ran = command("jobs", "follow", "--after", "x", "--url", shop.url)
    assert (ran.code, "is not a cursor" in ran.err) == (2, True)
    ran = command("jobs", "follow", "--after", "s0.999", "--url", shop.url)
    assert (ran.code, "backup was restored" in ran.err) == (4, True)


def test_ctrl_c_ends_it_without_an_error(shop: Service) -> None:
    following = subprocess.Popen(
        [sys.executable, "-m", "trellis", "jobs", "follow", "--after", "start", "--url", shop.url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
    )  # fmt: skip
    assert following.stdout is not None
    assert [following.stdout.readline().split()[3] for _ in range(4)][-1] == "created"
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=20)
    assert (following.returncode, errors) == (0, "Stopped.\n")
