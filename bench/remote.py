"""`python -m bench.remote`: what a server between programs and PostgreSQL costs.

Drains by one `trellis worker` on the database and through a `trellis serve`, in turns on a server,
and single jobs created by 32 callers through it: by the Python client, which stores what is created
at the same time together, and by plain requests, one job each. `--quick` tries it in a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.peers import server as servers
from bench.peers import store
from bench.peers.protocol import CALLERS
from bench.peers.trellis.app import migrate
from bench.postgres import app, engine, working
from bench.postgres.__main__ import _fresh
from bench.programs import running
from bench.rows import Report
from trellis.operations.operator import connect

_TEMPLATE: Final = "bench_template"
_TOKEN: Final = "TRELLIS_TOKEN"
_LEAST_SHARE: Final = 0.5
_LEAST_SUBMITS: Final = 1500
_PAYLOAD: Final = {"order_id": 1, "email": "a@b", "lines": [], "note": ""}
_SCOPES: Final = ("worker:one", "worker:bench", "submit:one", "submit:bench", "admin.read")


@contextmanager
def _serving(url: str) -> Iterator[str]:
    """Serve a database; the token is in the environment while the block runs."""
    with connect(url) as operator:
        os.environ[_TOKEN] = operator.tokens.create_sync(_SCOPES).text
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        log = folder / "program.log"
        command = ["-m", "trellis", "serve", "--port", "0", "--url", url]
        with running(command, folder, signal.SIGTERM) as server:
            server.wait_until(lambda: "Listening" in log.read_text(), "it listens")
            found = re.search(r"http://[\d.:]+", log.read_text())
            assert found is not None
            try:
                yield found[0]
            finally:
                del os.environ[_TOKEN]


async def _fill(url: str, jobs: int) -> None:
    async with engine.opened(url) as opened:
        await engine.fill(opened, url, app.of_one, jobs)


async def _submit_plainly(url: str, seconds: float) -> float:
    """Let callers send one job per request for a time; return the rate.

    Each has a connection and no library: one of those would need more time than the server.
    """
    parts = urlsplit(url)
    body = json.dumps({"type": "one/noop", "payload": _PAYLOAD}).encode()
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Authorization: Bearer {os.environ[_TOKEN]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    end, created = time.monotonic() + seconds, 0

    async def call() -> None:
        nonlocal created
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while time.monotonic() < end:
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", answer)
            if " 202 " not in answer or length is None:
                raise RuntimeError(answer)
            await reader.readexactly(int(length[1]))
            created += 1
        writer.close()

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return created / seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.remote", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    quick = parser.parse_args().quick
    rounds, jobs, seconds = (1, 4000, 2.0) if quick else (3, 40_000, 5.0)
    report = Report()
    with servers.running() as server:
        asyncio.run(migrate(store.make_database(server, _TEMPLATE)))
        for _ in range(rounds):
            with _fresh(server) as url:
                asyncio.run(_fill(url, jobs))
                report.add("drain on the database", working.drain(url, "one", jobs))
            with _fresh(server) as url, _serving(url) as through:
                asyncio.run(_fill(url, jobs))
                report.add(
                    "drain through a server", working.drain(url, "one", jobs, through=through)
                )
            with _fresh(server) as url, _serving(url) as through:
                asyncio.run(_fill(url, 1))
                report.add(
                    "submits by the client", working.run_singly(through, seconds, notify=True)
                )
                report.add(
                    "submits, plain requests", asyncio.run(_submit_plainly(through, seconds))
                )
    for name in report.rows:
        than = "drain on the database" if name == "drain through a server" else None
        report.show(name, "jobs/s", than)
    share = report.median("drain through a server") / report.median("drain on the database")
    report.judge(f"remote drain ≥ {_LEAST_SHARE} of direct", share, holds=share >= _LEAST_SHARE)
    for name in ("submits by the client", "submits, plain requests"):
        submits = report.median(name)
        bar = f"{name}: {CALLERS} callers ≥ {_LEAST_SUBMITS:,}/s"
        report.judge(bar, submits, holds=submits >= _LEAST_SUBMITS)


if __name__ == "__main__":
    main()
