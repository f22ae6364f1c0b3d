"""Real workers: a drain by `trellis worker`, single creates while a worker listens, and idling."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench import marks
from bench.peers import processes, store
from bench.peers.protocol import CALLERS, create, make_orders
from bench.peers.server import Server
from bench.peers.systems import TRELLIS
from bench.peers.trellis import app as peer
from bench.peers.workers import Workers, running
from trellis.engines.postgres import PostgresEngine
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.notifications import Notifications
from trellis.engines.values import Topic

_SETTLE_IN: Final = 3.0


class _Silence(Notifications):
    """Sends nothing."""

    def publish(self, topics: Iterable[Topic], sender: ServerConnection) -> None:
        """Send nothing."""

    def channel_for(self, topic: Topic) -> str | None:
        """Let no statement notify."""


def _command(service: str, url: str, count: int = 1) -> list[str]:
    many = ["--processes", str(count)] if count > 1 else []
    return [sys.executable, "-m", "trellis", "worker", service, "--url", url, *many]


def drain(
    url: str, service: str, jobs: int, count: int = 1, *, through: str | None = None
) -> float:
    """Let this many worker processes drain the backlog, `through` a server; return the rate."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        commands = [_command(f"bench.postgres.app:{service}", through or url, count)]
        with (
            running(commands, folder, {marks.VARIABLE: name, **_token()}) as workers,
            store.connected(url) as connection,
        ):
            workers.wait_until(lambda: marks.count(folder, "start") > 0, "a first start")
            began = time.monotonic()
            before = marks.count(folder, "start")
            workers.wait_until(lambda: marks.count(folder, "start") >= jobs, "the last start")
            workers.wait_until(lambda: not store.left(connection, TRELLIS).jobs, "the last end")
            return (jobs - before) / (time.monotonic() - began)


def _token() -> dict[str, str]:
    """Return the token by which workers reach a server, if there is one."""
    return {name: text for name, text in os.environ.items() if name == "TRELLIS_TOKEN"}


async def create_singly(url: str, seconds: float, *, notify: bool) -> float:
    """Let callers create single jobs for a time, with NOTIFY if `notify`; return the rate."""
    orders = [peer.payload(order) for order in make_orders(20_000)]
    async with peer.client(url) as client:
        engine = await peer.service.connection.engine()
        if not notify and isinstance(engine, PostgresEngine):
            engine._notifications = _Silence(engine._address.schema, engine._hints, listens=False)
        answer = await create(client, orders, CALLERS, seconds)
    return answer["count"] / answer["seconds"]


def idle(server: Server, url: str, count: int, seconds: float) -> tuple[float, float]:
    """Run workers that have nothing to do; return the cores that the server and they use."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        commands = [_command("bench.postgres.app:one", url)] * count
        with running(commands, folder, {marks.VARIABLE: name}) as workers:
            _wait_for_sessions(url, workers, count)
            time.sleep(_SETTLE_IN)
            began = time.monotonic()
            used = [processes.cpu_seconds(roots) for roots in ([server.pid], workers.pids)]
            time.sleep(seconds)
            took = time.monotonic() - began
            now = [processes.cpu_seconds(roots) for roots in ([server.pid], workers.pids)]
    served, worked = ((late - soon) / took for late, soon in zip(now, used, strict=True))
    return served, worked


def _wait_for_sessions(url: str, workers: Workers, count: int) -> None:
    query = "select count(*) from trellis.session where ended_at is null"
    with store.connected(url) as connection:

        def are_there() -> bool:
            row = connection.execute(query).fetchone()
            return row is not None and row[0] >= count

        workers.wait_until(are_there, "all sessions")


def run_singly(url: str, seconds: float, *, notify: bool) -> float:
    """`create_singly`, from where there is no loop."""
    return asyncio.run(create_singly(url, seconds, notify=notify))
