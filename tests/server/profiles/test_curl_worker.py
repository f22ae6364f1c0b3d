"""The worker in the shell, with curl, against a real server: it runs jobs, fails, dies, stops."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from tests.harness import ROOT
from tests.server.profiles.steps import Store
from tests.worker.faulty import eventually
from trellis import control
from trellis.core.policy import DEFAULT_POLICY
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import give_up_lost, reap_lapsed

GUIDE = (ROOT / "docs" / "guides" / "any-language.md").read_text()
SCRIPT = ROOT / "examples" / "curl-worker.sh"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not shutil.which("curl") or not shutil.which("jq"), reason="the worker needs curl and jq"
    ),
]
PATIENCE = 60
#: What the program of the worker does, by the order in the payload.
PROGRAM = """#!/bin/sh
order=$(jq .order)
echo "order $order" >&2
case $order in
    1) echo "::progress 2 4" >&2; printf 'nul \\0, no newline' >&2; echo '{"sent": 1}' ;;
    2) exit 3 ;;
    3) exit 65 ;;
    4) echo $$ >"$PIDS/$WORKER_ID"; exec sleep 600 ;;
    5) echo $$ >"$PIDS/$WORKER_ID"; until test -e "$PIDS/go"; do sleep 0.1; done ;;
esac
"""


class Site:
    """A server, and workers in the shell."""

    def __init__(self, store: Store, folder: Path, api: str) -> None:
        self.store, self._folder, self.api = store, folder, api
        self._program = folder / "program.sh"
        self._program.write_text(PROGRAM)
        self._program.chmod(0o755)

    @asynccontextmanager
    async def worker(self, name: str) -> AsyncIterator[Process]:
        """Run a worker; end it and its program afterwards."""
        environment = {
            **os.environ, "TRELLIS_API": self.api, "WORKER_ID": name, "POLL": "0.1",
            "HEARTBEAT": "1", "TYPES": "shop/invoice", "PIDS": str(self._folder),
            "TRELLIS_TOKEN": await self.store.token("worker:shop"),
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", str(SCRIPT), str(self._program),
            env=environment, start_new_session=True, stdin=DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def has_begun(self, name: str) -> int:
        """Return the process of the program that a worker runs, once it runs."""
        file = self._folder / name
        await eventually(lambda: file.exists() and bool(file.read_text()), PATIENCE)
        return int(file.read_text())

    async def until(self, job_id: str, *states: State) -> None:
        """Wait until a job is in one of these states."""

        async def is_there() -> bool:
            return await self.store.state(job_id) in states

        await eventually(is_there, PATIENCE)

    async def status(self, name: str) -> str | None:
        """Return the status of a worker."""
        found = {each["id"]: each["status"] for each in await self.store.read("/api/workers")}
        return found.get(name)


class Server:
    """A real server on this machine, which can be stopped and started again."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, on the same port as before."""
        config = uvicorn.Config(
            self._app, port=self.port, log_config=None, ws="none", lifespan="off"
        )
        self._server = uvicorn.Server(config)
        listening = config.bind_socket()
        self.port = listening.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve([listening]))

    async def stop(self) -> None:
        """Stop listening."""
        assert self._server is not None
        assert self._serving is not None
        self._server.should_exit = True
        await self._serving


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    """A server."""
    server = Server(store.app)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def site(store: Store, server: Server, tmp_path: Path) -> Site:
    """A server, and workers in the shell."""
    return Site(store, tmp_path, f"http://127.0.0.1:{server.port}")


async def test_it_runs_jobs_with_progress_log_and_result_and_reports_failures(site: Site) -> None:
    store = site.store
    never = replace(DEFAULT_POLICY, retry=Retry.never())
    good = await store.create(a_job(payload='{"order":1}'))
    bad = await store.create(a_job(payload='{"order":2}'))
    hopeless = await store.create(a_job(payload='{"order":3}', policy=never))
    async with site.worker("shell-1") as worker:
        await site.until(good, State.COMPLETED)
        await site.until(bad, State.RETRY)
        await site.until(hopeless, State.FAILED)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), PATIENCE) == 0
    shown = await store.read(f"/api/jobs/{good}")
    assert (shown["status"], shown["metadata"]) == ("SUCCESS", {"sent": 1})
    lines = [line["message"] for line in await store.read(f"/api/jobs/{good}/logs")]
    assert lines == ["order 1", "nul , no newline"]
    progress = await store.operator.progress(good)
    assert progress is not None
    assert (progress.current, progress.total) == (2, 4)
    failed = await store.read(f"/api/jobs/{bad}")
    assert (failed["status"], failed["error"]) == ("QUEUED", "The program ended with 3.")
    assert await site.status("shell-1") is None  # it has signed off


async def test_a_job_of_a_killed_worker_runs_elsewhere_and_the_worker_is_offline(
    site: Site,
) -> None:
    store = site.store
    job_id = await store.create(a_job(payload='{"order":4}'))
    async with site.worker("shell-1") as worker:
        await site.has_begun("shell-1")
        await site.until(job_id, State.ACTIVE)
        assert (await store.read(f"/api/jobs/{job_id}"))["status"] == "PROCESSING"
        os.killpg(worker.pid, signal.SIGKILL)
        await worker.wait()
    assert await site.status("shell-1") == "ONLINE"
    store.clock.advance("60s")
    assert await site.status("shell-1") == "OFFLINE"
    await reap_lapsed(store.engine)
    await give_up_lost(store.engine)
    store.clock.advance("10m")
    async with site.worker("shell-2"):
        await site.has_begun("shell-2")
        assert await site.status("shell-1") == "OFFLINE"
        attempts = await store.operator.attempts(job_id)
        assert [each.worker for each in attempts] == ["shell-1", "shell-2"]


async def test_a_cancelled_job_and_a_stopped_worker_end_the_program(site: Site) -> None:
    store = site.store
    job_id = await store.create(a_job(payload='{"order":4}'))
    async with site.worker("shell-1") as worker:
        await site.has_begun("shell-1")
        await control.cancel(store.engine, job_id)
        await site.until(job_id, State.CANCELLED)
        back = await store.create(a_job(payload='{"order":4}'))
        await site.until(back, State.ACTIVE)
        worker.send_signal(signal.SIGTERM)
        await site.until(back, State.RETRY)
        assert await asyncio.wait_for(worker.wait(), PATIENCE) == 0
    (record,) = (await store.engine.load([back])).records
    assert record is not None
    assert (record.head.attempt, record.head.error) == (0, None)


@pytest.mark.long
async def test_a_job_that_was_taken_from_the_worker_ends_the_program(site: Site) -> None:
    store = site.store
    job_id = await store.create(a_job(payload='{"order":4}'))
    async with site.worker("shell-1"):
        program = await site.has_begun("shell-1")
        await control.cancel(store.engine, job_id, force=True)
        await eventually(lambda: not Path(f"/proc/{program}").exists(), PATIENCE)
        after = await store.create(a_job(payload='{"order":1}'))
        await site.until(after, State.COMPLETED)
    assert await store.state(job_id) is State.CANCELLED


@pytest.mark.long
async def test_it_goes_on_when_the_server_was_away(
    site: Site, server: Server, tmp_path: Path
) -> None:
    job_id = await site.store.create(a_job(payload='{"order":5}'))
    async with site.worker("shell-1"):
        await site.has_begun("shell-1")
        await server.stop()
        (tmp_path / "go").touch()
        program = await site.has_begun("shell-1")
        await eventually(lambda: not Path(f"/proc/{program}").exists(), PATIENCE)
        assert await site.store.state(job_id) is State.ACTIVE
        await server.start()
        await site.until(job_id, State.COMPLETED)


async def test_the_requests_of_the_guide_lead_a_job_to_its_end(site: Site, tmp_path: Path) -> None:
    store = site.store
    job_id = await store.create(a_job(service="infra", type="plan", queue="plan"))
    (requests,) = re.findall(r"```sh\n(api=.*?)```", GUIDE, re.DOTALL)
    token = await store.token("worker:infra")
    environment = {**os.environ, "TRELLIS_API": site.api, "TRELLIS_TOKEN": token}
    shell = await asyncio.create_subprocess_exec(
        "/bin/sh", "-e", "-c", requests, env=environment, cwd=tmp_path, stdout=DEVNULL
    )
    assert await asyncio.wait_for(shell.wait(), PATIENCE) == 0
    shown = await store.read(f"/api/jobs/{job_id}")
    assert (shown["status"], shown["metadata"]) == ("SUCCESS", {"plan": "3 to add"})
    progress = await store.operator.progress(job_id)
    assert progress is not None
    assert (progress.phase, progress.current) == ("plan", 1)
    lines = [line["message"] for line in await store.read(f"/api/jobs/{job_id}/logs")]
    assert lines == ["3 to add"]
