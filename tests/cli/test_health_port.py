"""`trellis worker --health-port`: health and metrics of a worker in processes of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import Run, start
from trellis import JobDead, Service

PROGRAM = """
import os, signal
from trellis import Retry, Service

app = Service("shop")

@app.job
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.job(retry=Retry.fixed("1ms", attempts=4))
async def stubborn() -> None:
    raise ValueError("again")
"""


@contextmanager
def worker(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a worker; the value is its process and the URL of its health port."""
    (folder / "shop.py").write_text(PROGRAM)
    log = (folder / "log").open("w+")
    process = start(
        folder, "worker", "shop:app", "--health-port", "0", *arguments, stderr=log.fileno()
    )
    try:
        yield process, until(lambda: address(folder))
    finally:
        process.kill()
        process.communicate()
        log.close()


def address(folder: Path) -> str | None:
    found = re.search(r"Health and metrics at (http://[\d.]+:\d+):", (folder / "log").read_text())
    return found and found[1]


T = TypeVar("T")


def until(look: Callable[[], T | None]) -> T:
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        try:
            found = look()
        except httpx.TransportError:
            found = None
        if found is not None:
            return found
        time.sleep(0.02)
    pytest.fail("It did not happen in time.")


def scrape(at: str) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and the values of its labels."""
    answer = httpx.get(f"{at}/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(answer.text)
        for each in family.samples
    }


def ready(at: str) -> int:
    return httpx.get(f"{at}/readyz").status_code


@pytest.fixture
def shop(tmp_path: Path) -> Service:
    return Service("shop", f"sqlite:///{tmp_path / 'trellis.db'}")


def test_a_scrape_says_what_happened(tmp_path: Path, shop: Service) -> None:
    greet = shop.declare("greet", payload=str, result=str)
    stubborn = shop.declare("stubborn", result=type(None))
    with worker(tmp_path) as (process, at), shop:
        until(lambda: True if ready(at) == 200 else None)
        assert httpx.get(f"{at}/healthz").json() == {"status": "ok"}
        assert greet.create_sync("world").wait_sync("20s") == "Hello, world!"
        with pytest.raises(JobDead):
            stubborn.create_sync().wait_sync("20s")
        greet.create_sync("tomorrow", delay="1d")

        def counted() -> dict[tuple[str, ...], float] | None:
            found = scrape(at)
            dead = ("trellis_attempts_settled_total", "shop", "stubborn", "stubborn", "dead")
            return found if found.get(dead) and found.get(("trellis_jobs", *dead[1:])) else None

        found = until(counted)
        settled = "trellis_attempts_settled_total"
        assert found[settled, "shop", "stubborn", "stubborn", "retry"] == 3
        assert found[settled, "shop", "greet", "greet", "completed"] == 1
        assert found["trellis_retries_total", "shop", "stubborn", "stubborn"] == 3
        assert found["trellis_attempts_started_total", "shop", "stubborn", "stubborn"] == 4
        assert found["trellis_attempt_duration_seconds_count", "shop", "greet", "greet"] == 1
        assert found["trellis_jobs", "shop", "greet", "greet", "pending"] == 1
        assert (
            "trellis_oldest_due_seconds",
            "shop",
            "greet",
            "greet",
        ) not in found  # it is not due
        assert found["trellis_workers",] == found["trellis_engine_up",] == 1
        assert (found["trellis_worker_processes",], found["trellis_slots",]) == (1, 10)
        process.terminate()
        assert process.wait(20) == 0


def test_counters_do_not_go_back_when_a_process_dies_and_readiness_waits_for_the_next(
    tmp_path: Path, shop: Service
) -> None:
    greet = shop.declare("greet", payload=str, result=str)
    started = ("trellis_attempts_started_total", "shop", "greet", "greet")
    with worker(tmp_path) as (_, at), shop:
        until(lambda: True if ready(at) == 200 else None)
        greet.create_sync("one").wait_sync("20s")
        until(lambda: True if scrape(at).get(started) == 1 else None)
        first = int(re.findall(r"slots of process (\d+)", (tmp_path / "log").read_text())[0])
        os.kill(first, signal.SIGKILL)
        until(lambda: scrape(at).get(("trellis_worker_process_ends_total", "died")))
        assert scrape(at)[started] == 1
        until(lambda: True if ready(at) == 200 else None)
        greet.create_sync("two").wait_sync("20s")
        until(lambda: True if scrape(at).get(started) == 2 else None)


def test_other_requests_are_refused_and_a_silent_client_keeps_no_other_waiting(
    tmp_path: Path,
) -> None:
    with worker(tmp_path) as (_, at):
        host, port = at.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.send(b"GET /metrics HTTP/1.1\r\n")
            assert httpx.get(f"{at}/healthz").status_code == 200
            assert httpx.get(f"{at}/nowhere").status_code == 404
            assert httpx.post(f"{at}/metrics").status_code == 405
            head = httpx.head(f"{at}/healthz")
            assert (head.status_code, head.text, head.headers["content-length"]) == (200, "", "17")
        for garbage in (b"\r\n\r\n", b"nonsense\r\n\r\n", b"x" * 20_000):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(garbage)
                client.shutdown(socket.SHUT_WR)
                assert b"200" not in client.recv(4096)
        assert httpx.get(f"{at}/healthz").status_code == 200


def test_a_port_that_is_taken_ends_with_2_and_a_sentence(command: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = command("worker", "hello:app", "--health-port", port)
    assert (ran.code, f"cannot listen on 127.0.0.1:{port}" in ran.err) == (2, True), ran.err


def test_the_setting_must_be_a_port(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_HEALTH_PORT", "http")
    ran = command("worker", "hello:app")
    assert (ran.code, "TRELLIS_HEALTH_PORT must be a port, not 'http'" in ran.err) == (2, True)
