"""`trellis worker --url http://…` with a real server process, which is killed, and lost replies."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.conftest import environment, start
from tests.harness.lossy_proxy import LossyProxy
from trellis import Job, Service
from trellis.core.states import State
from trellis.engines.http.address import TOKEN
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import JobFilter
from trellis.errors import EngineUnavailable, OutcomeUnknown
from trellis.operations.operator import Operator

PROGRAM = """
import os
from trellis import Job, Service

app = Service("shop")

@app.job
def count(n: int) -> int:
    with open("runs", "a") as runs:
        runs.write(f"{n}\\n")
    return n + 1
"""
JOBS = 200
FEW = 40
_PATIENCE = 90


class Store:
    """A database, tokens for it, and a server process that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM)
        self.path = folder / "jobs.db"
        self.tokens = asyncio.run(self._prepare())
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._server: subprocess.Popen[str] | None = None

    async def _prepare(self) -> dict[str, str]:
        engine = SqliteEngine(self.path)
        await engine.open()
        tokens = Operator(engine).tokens
        made = {
            name: (await tokens.create([*scopes])).text
            for name, scopes in {
                "worker": ("worker:shop",),
                "producer": ("submit:shop",),
                "operator": ("admin.read", "admin.mutate"),
            }.items()
        }
        await engine.close()
        return made

    def start(self) -> None:
        """Start the server; return when it listens."""
        url = f"sqlite:///{self.path}"
        self._server = start(self.folder, "serve", "--port", str(self.port), "--url", url)
        assert self._server.stderr is not None
        assert "Listening" in self._server.stderr.readline()

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.communicate()

    @contextmanager
    def worker(self, port: int) -> Iterator[subprocess.Popen[str]]:
        """Run a worker that reaches the jobs through this port and knows nothing else."""
        log = (self.folder / "worker.log").open("w")
        worker = start(
            self.folder, "worker", "program:app", "--url", f"http://127.0.0.1:{port}",
            "--lease", "3s", stderr=log, **{TOKEN: self.tokens["worker"]},
        )  # fmt: skip
        try:
            yield worker
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0, (self.folder / "worker.log").read_text()
        finally:
            worker.kill()
            worker.communicate()
            log.close()

    def runs(self) -> Counter[int]:
        path = self.folder / "runs"
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()

    def states(self) -> Counter[State]:
        """Read the states of all jobs from the file itself."""

        async def read() -> Counter[State]:
            engine = SqliteEngine(self.path)
            await engine.open()
            counts = (await engine.count(JobFilter(), "state")).groups
            await engine.close()
            return Counter({State(name): number for name, number in counts.items()})

        return asyncio.run(read())

    def wait_until_completed(self, number: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while self.states()[State.COMPLETED] < number:
            log = (self.folder / "worker.log").read_text()
            assert time.monotonic() < deadline, (self.states(), log[-4000:])

    def check_journals(self) -> None:
        """Assert that every job was settled once."""

        async def read() -> list[list[str]]:
            engine = SqliteEngine(self.path)
            await engine.open()
            jobs = (await engine.find(JobFilter(), limit=10 * JOBS)).jobs
            kinds = [
                [e.kind.value for e in await engine.journal(job.definition.id)] for job in jobs
            ]
            await engine.close()
            return kinds

        for kinds in asyncio.run(read()):
            assert kinds.count("completed") == 1, kinds
            assert "staleCompletionIgnored" not in kinds, kinds


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    store.start()
    yield store
    with suppress(AssertionError):
        store.kill()


@pytest.fixture
def as_producer(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A program that may create jobs of the shop, through the server."""
    monkeypatch.setenv(TOKEN, store.tokens["producer"])
    with Service("shop", f"http://127.0.0.1:{store.port}") as service:
        yield service


def test_jobs_are_created_run_and_steered_without_access_to_the_database(
    store: Store, as_producer: Service
) -> None:
    count = as_producer.declare("count", payload=int, result=int)
    with store.worker(store.port):
        ref = count.create_sync(6)
        assert ref.wait_sync("60s") == 7
        url = f"http://127.0.0.1:{store.port}"
        shown = subprocess.run(
            [sys.executable, "-m", "trellis", "jobs", "show", ref.id, "--url", url],
            env={**environment(), TOKEN: store.tokens["operator"]},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "completed" in shown.stdout
    assert store.runs() == Counter([6])


@pytest.mark.long
def test_a_server_that_is_killed_loses_no_job_and_starts_none_twice(
    store: Store, as_producer: Service
) -> None:
    count = as_producer.declare("count", payload=int, result=int)
    count.create_many_sync(range(JOBS))
    with store.worker(store.port):
        for part in range(1, 4):
            store.wait_until_completed(part)
            store.kill()
            with pytest.raises((EngineUnavailable, OutcomeUnknown)):
                count.create_sync(-1)
            store.start()
            count.create_many_sync(range(part * JOBS, (part + 1) * JOBS))
        store.wait_until_completed(4 * JOBS)
    assert store.states() == Counter({State.COMPLETED: 4 * JOBS})
    assert store.runs() == Counter(range(4 * JOBS))
    store.check_journals()


def _create(count: Job[int, int], number: int) -> None:
    """Create a job; repeat the call while it is not known whether that was done."""
    while True:
        with suppress(OutcomeUnknown):
            count.create_sync(number, idempotency_key=str(number))
            return


@pytest.mark.long
def test_lost_replies_lose_no_job_and_start_none_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, store.tokens["producer"])
    with LossyProxy(store.port) as proxy:
        producer = Service("shop", f"http://127.0.0.1:{proxy.port}")
        count = producer.declare("count", payload=int, result=int)
        with producer, store.worker(proxy.port):
            count.create_sync(0)
            store.wait_until_completed(1)
            proxy.lose_every = 4
            for number in range(1, FEW):
                _create(count, number)
            store.wait_until_completed(FEW)
            assert proxy.lost > FEW // 10
            proxy.lose_every = 0
    assert store.states() == Counter({State.COMPLETED: FEW})
    assert store.runs() == Counter(range(FEW))
    store.check_journals()
