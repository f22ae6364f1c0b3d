"""The measures, the same for every system.

The rate of a drain is the number of jobs over the time from the first handler's start until the
server has an acknowledgement of every work message; Trellis and the bare loop acknowledge what is
stored as completed. Afterwards the stream must have one `completed` per job.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import nats
import nats.errors
from nats.js.errors import NotFoundError

from bench import marks
from bench.jetstream.systems import System
from bench.peers import processes
from bench.peers.workers import PeerFailed, Workers, ask, running
from trellis.engines.jetstream.engine import JetStreamEngine

_LAST_ONES: Final = 10.0
#: How many seconds the work queue may take to have what is in the stream.
_FILLED: Final = 60.0
#: Seconds until streams must have been deleted.
_CLEARED: Final = 60.0
#: What taskiq-nats fetches at a time during drains.
_FETCH, _BATCH = "BENCH_FETCH", 100


class Server:
    """A NATS server as the benchmark looks at it; calls block."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._runner = asyncio.Runner()
        self._client: Any = None

    def __enter__(self) -> Self:
        self._client = self._runner.run(nats.connect(self.url))
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def run(self, work: Any) -> Any:
        """Run a coroutine in the loop of the connection."""
        return self._runner.run(work)

    @property
    def _stream(self) -> Any:
        return self._client.jetstream(timeout=120)

    def has_left(self, system: System) -> bool:
        """Return whether a work message of a system is not acknowledged yet."""
        with suppress(NotFoundError):
            info = self._runner.run(self._stream.consumer_info(system.stream, system.consumer))
            return bool(info.num_pending or info.num_ack_pending)
        return True

    def waiting(self, system: System) -> int:
        """Return how many work messages the server has."""
        info = self._runner.run(self._stream.stream_info(system.stream))
        return int(info.state.messages)

    def last(self, stream: str) -> int:
        """Return the sequence of the last message of a stream."""
        return int(self._runner.run(self._stream.stream_info(stream)).state.last_seq)

    def count(self, system: System, event: str) -> int:
        """Return how many jobs have this event."""
        prefix = system.prefix
        info = self._runner.run(
            self._stream.add_consumer(
                f"{prefix}_JOBS", filter_subject=f"{prefix}.jobs.bench.noop.*.{event}"
            )
        )
        self._runner.run(self._stream.delete_consumer(f"{prefix}_JOBS", info.name))
        return int(info.num_pending)

    @contextmanager
    def fresh(self, system: System) -> Iterator[Path]:
        """Make the streams of a system, yield a folder for marks; both are gone afterwards."""
        if system.prefix is not None:
            self._runner.run(migrate(self.url, system.prefix))
        memory = Path("/dev/shm")  # noqa: S108 - the folder made there is private
        place = memory if memory.is_dir() else None
        try:
            with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as folder:
                yield Path(folder)
        finally:
            self._runner.run(self._clear())

    async def _clear(self) -> None:
        """Delete all streams: a server with a million jobs answers late.

        On another connection: this one answers no pings while the loop stands still.
        """
        end = time.monotonic() + _CLEARED
        while True:
            client = await nats.connect(self.url)
            try:
                streams = client.jetstream(timeout=120)
                for info in await streams.streams_info():
                    await streams.delete_stream(str(info.config.name))
            except nats.errors.Error:
                if time.monotonic() > end:
                    raise
            else:
                return
            finally:
                await client.close()


async def migrate(url: str, prefix: str) -> None:
    """Make the streams of a deployment."""
    engine = JetStreamEngine(url, prefix=prefix)
    await engine.migrate()
    await engine.close()


def _ask(server: Server, system: System, folder: Path, name: str, jobs: int) -> dict[str, float]:
    command = system.command(name, "--url", system.url(server.url), "--jobs", str(jobs))
    return ask(command, {marks.VARIABLE: str(folder)})


def _running(server: Server, system: System, folder: Path, fetch: int = 1) -> Any:
    variables = {marks.VARIABLE: str(folder), _FETCH: str(fetch)}
    return running([system.worker(server.url)], folder, variables)


def create(server: Server, system: System, jobs: int) -> dict[str, float]:
    """Create jobs one by one; return percentiles of a call, in milliseconds."""
    with server.fresh(system) as folder:
        return _ask(server, system, folder, "create", jobs)


def latency(server: Server, system: System, jobs: int) -> dict[str, float]:
    """Create single jobs for an idle worker; return the percentiles until their start, in ms."""
    with server.fresh(system) as folder, _running(server, system, folder) as workers:
        _ask(server, system, folder, "latency", 10)
        _wait(workers, folder, 10)
        _ask(server, system, folder, "latency", jobs)
        _wait(workers, folder, 10 + jobs)
        took = [each / 1e6 for each in read_marks(folder, "latency")[10:]]
    cuts = statistics.quantiles(took, n=100)
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def _wait(workers: Workers, folder: Path, count: int) -> None:
    workers.wait_until(
        lambda: marks.count(folder, "latency") >= count, "the last job's start", _LAST_ONES
    )


class Drained(NamedTuple):
    """A drain: jobs per second, and the processor time per job of the worker's processes, in µs."""

    rate: float
    worker: float


def drain(server: Server, system: System, folder: Path, jobs: int) -> Drained:
    """Let a worker drain a backlog."""
    fill(server, system, folder, jobs)
    drained = _drain(server, system, folder, jobs)
    if system.prefix is not None and (found := server.count(system, "completed")) != jobs:
        raise PeerFailed(f"{found} of {jobs} jobs are completed")
    return drained


def fill(server: Server, system: System, folder: Path, jobs: int) -> None:
    """Make a backlog, and wait until the work queue has all of it."""
    _ask(server, system, folder, "fill", jobs)
    end = time.monotonic() + _FILLED
    while (found := server.waiting(system)) != jobs:
        if time.monotonic() > end:
            raise PeerFailed(f"the backlog is {found} jobs instead of {jobs}")
        server.run(asyncio.sleep(0.05))


def _drain(server: Server, system: System, folder: Path, jobs: int) -> Drained:
    with _running(server, system, folder, _BATCH) as workers:
        workers.wait_until(lambda: marks.count(folder, "start") > 0, "the first start")
        before = processes.cpu_seconds(workers.pids)
        workers.wait_until(lambda: marks.count(folder, "start") >= jobs, "the last start")
        workers.wait_until(lambda: not server.has_left(system), "the last acknowledgement")
        end, used = time.monotonic_ns(), processes.cpu_seconds(workers.pids) - before
    begin = min(read_marks(folder, "start"))
    return Drained(jobs / (end - begin) * 1e9, used / jobs * 1e6)


def read_marks(folder: Path, kind: str) -> list[int]:
    """Return the numbers that worker processes have left."""
    found = []
    for file in sorted(folder.glob(f"{kind}-*")):
        content = file.read_bytes()
        found += [
            int.from_bytes(content[place : place + 8], "little")
            for place in range(0, len(content), 8)
        ]
    return found
