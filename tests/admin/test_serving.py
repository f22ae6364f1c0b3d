"""`trellis jobs serve` and `rebuild` as programs."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from tests.harness.projections import differences
from tests.server.serving import ENOUGH, Listener
from trellis import ActiveJob, JobRef, Service, connect
from trellis.admin.opening import admin_runtime, hosted
from trellis.cli.app import run
from trellis.cli.job_projection import hosting
from trellis.core.commands import Cancel
from trellis.core.job import JobId
from trellis.core.states import State
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.url import deployment_of
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import JobFilter
from trellis.errors import ConfigurationError
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept, accept_one, settle, the


@contextmanager
def program(url: str, path: Path, command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of the projection, with the path in the variable."""
    environment = {**os.environ, "NO_COLOR": "1", "TRELLIS_JOBS_DB_PATH": str(path)}
    with subprocess.Popen(
        [sys.executable, "-m", "trellis", "jobs", command, "--url", url],
        stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def url(nats_url: str, subjects: Subjects) -> str:
    return f"{nats_url}?prefix={subjects.prefix}"


#: What no projector writes: the state of a job is wrong, another job is not there.
_DAMAGE = (
    "update trellis_queue set state = 'active' where job = :changed",
    "delete from trellis_event where job = :lost",
    "delete from trellis_queue where job = :lost",
    "delete from trellis_job where seq = :lost",
)
States: TypeAlias = dict[JobId, State]


def damage(path: Path, states: States, changed: JobId, lost: JobId) -> States:
    """Damage the rows of two jobs; return the states that the projection then has."""
    with closing(sqlite3.connect(path, timeout=10)) as file, file:
        rows = dict(map(tuple, file.execute("select id, seq from trellis_job")))
        for statement in _DAMAGE:
            named = {"changed": rows[changed], "lost": rows[lost]}
            assert file.execute(statement, named).rowcount == 1
    left = {job_id: state for job_id, state in states.items() if job_id != lost}
    return left | {changed: State.ACTIVE}


async def _states(engine: Engine) -> States:
    """Return the jobs that the projection has."""
    page = await engine.find(JobFilter())
    return {each.definition.id: each.head.state for each in page.jobs}


async def _some(engine: Engine) -> tuple[list[JobId], States]:
    """Store three jobs that wait and one that has ended."""
    *waiting, over = await accept(engine, *(a_job() for _ in range(4)))
    await settle(engine, over, Cancel())
    ids = [each.definition.id for each in waiting]
    return ids, dict.fromkeys(ids, State.PENDING) | {over.definition.id: State.CANCELLED}


@pytest.mark.long
async def test_it_answers_ends_on_a_signal_and_is_made_again(
    url: str, engine: Engine, link: Link, subjects: Subjects, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.sqlite"
    ids, states = await _some(engine)
    with program(url, path, "serve") as server:
        assert server.stderr is not None
        assert "Serving the jobs" in server.stderr.readline()
        assert (await engine.count(JobFilter())).total == 4
        answer = await link.ask(subjects.rpc("List"), b'{"limit": 9}', 20)
        assert json.loads(answer.data)["count"] == 4
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    tables = SqliteEngine(path)
    await tables.open()
    assert await _states(tables) == states
    damaged = damage(path, states, *ids[:2])
    assert await _states(tables) == damaged
    with program(url, path, "rebuild") as rebuilding:
        assert rebuilding.wait(30) == 0
        assert rebuilding.stderr is not None
        assert "The projection has all" in rebuilding.stderr.read()
    assert await _states(tables) == states
    await tables.close()


@pytest.mark.long
async def test_a_rebuild_puts_damaged_rows_right_beside_a_runtime_on_the_same_file(
    url: str, engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.sqlite"
    ids, states = await _some(engine)
    with program(url, path, "serve") as server:
        assert server.stderr is not None
        assert "Serving the jobs" in server.stderr.readline()
        assert await _states(engine) == states
        damaged = damage(path, states, *ids[:2])
        new = await accept_one(engine, a_job())
        # The runtime goes on from its place, so it does not put the rows right.
        added = {new.definition.id: State.PENDING}
        assert await _states(engine) == damaged | added
        with program(url, path, "rebuild") as rebuilding:
            assert rebuilding.wait(30) == 0
        assert await _states(engine) == states | added
        newest = await accept_one(engine, a_job())
        added[newest.definition.id] = State.PENDING
        assert await _states(engine) == states | added
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    await _same_as_a_new_one(url, path)


@pytest.mark.long
async def test_jobs_that_run_during_a_rebuild_are_projected_as_they_are(
    url: str, engine: Engine, tmp_path: Path
) -> None:
    path, refs = tmp_path / "jobs.sqlite", list[JobRef[Any]]()
    async with Service("shop", url) as shop:

        @shop.job
        async def double(job: ActiveJob[int]) -> int:
            job.progress(1, 2)
            return 2 * job.payload

        with program(url, path, "serve") as server:
            assert server.stderr is not None
            assert "Serving the jobs" in server.stderr.readline()
            async with shop.worker():
                refs += await double.create_many(range(300))
                with program(url, path, "rebuild") as rebuilding:
                    while rebuilding.poll() is None:
                        refs += await double.create_many(range(20))
                        await refs[-1].wait("30s")
                    assert rebuilding.returncode == 0
                for ref in refs:
                    await ref.wait("30s")
            assert (await engine.count(JobFilter(), "state")).groups == {"completed": len(refs)}
            server.send_signal(signal.SIGTERM)
            assert server.wait(20) == 0
    assert len(refs) > 300
    await _same_as_a_new_one(url, path)


async def _same_as_a_new_one(url: str, path: Path) -> None:
    """Compare all rows with those of a projection that was made from the first message."""
    fresh = path.with_name("fresh.sqlite")
    for each in (path, fresh):
        async with admin_runtime(url, str(each), changes=False) as runtime:
            assert await runtime.answers.catch_up()
    assert await asyncio.to_thread(differences, path, fresh) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///jobs.db", "another store"),
        ("nats://host?prefix=a.b", "prefix="),
        ("nats://host?x=1", "does not know: x"),
    ],
)
def test_a_url_that_names_no_deployment_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        deployment_of(url)


def test_a_missing_folder_is_named(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none" / "jobs.sqlite"
    assert run(("jobs", "serve", "--url", url, "--projection", str(missing))) == 2
    assert "There is no folder" in " ".join(capfd.readouterr().err.split())


@contextmanager
def http_server(url: str, folder: Path, *options: str) -> Iterator[str]:
    """Run `trellis serve` with a runtime, until a signal ends it; yield the address of the API."""
    command = [
        sys.executable, "-m", "trellis", "serve", "--url", url, "--port", "0", "--no-login",
        "--projection", str(folder / "jobs.sqlite"), *options,
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            yield server.stderr.readline().split()[2].removesuffix(".")
            server.send_signal(signal.SIGTERM)
            assert server.wait(20) == -signal.SIGTERM
        finally:
            server.kill()


@pytest.mark.long
async def test_the_http_server_hosts_the_runtime(url: str, engine: Engine, tmp_path: Path) -> None:
    await accept(engine, a_job(), a_job())
    with http_server(url, tmp_path, "--no-auth") as address:
        async with httpx.AsyncClient() as caller:
            page = (await caller.get(f"{address}/jobs", timeout=30)).json()
            metrics = (await caller.get(address.replace("/api/v1", "/metrics"))).text
        assert page["count"] == 2
        assert "trellis_projection_lag_messages" in metrics


@pytest.fixture
async def ids(url: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two jobs by the clock of the server; a token for all is in the environment."""
    async with connect(url) as jobs:
        token = await jobs.tokens.create(["admin.read", "admin.mutate", "admin.stream"])
        records = await accept(jobs.engine, a_job(), a_job(type="refund"))
    monkeypatch.setenv("TRELLIS_TOKEN", token.text)
    return [each.definition.id for each in records]


@pytest.mark.long
async def test_commands_through_the_http_server_write_what_they_write_on_nats(
    url: str, ids: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def output(words: str, place: str) -> Any:  # noqa: ANN401 - JSON
        arguments = (*words.split(), "--json", "--url", place)
        assert await asyncio.to_thread(run, arguments) == 0, capfd.readouterr().err
        # Advice names the URL of the command itself.
        return json.loads(capfd.readouterr().out.replace(shlex.quote(place), "URL"))

    verbs = ["list", f"show {ids[0]}", f"why {ids[0]}", "count --by state"]
    with http_server(url, tmp_path) as address:
        server = address.removesuffix("/api/v1")
        direct = [await output(f"jobs {each}", url) for each in verbs]
        through = [await output(f"jobs {each}", server) for each in verbs]
    assert through == direct
    listed, shown, why, counts = direct
    assert [each["id"] for each in listed] == ids[::-1]
    assert (shown["id"], shown["type"], shown["state"]) == (ids[0], "invoice", "pending")
    assert [each["kind"] for each in shown["journal"]] == ["created"]
    assert [each["code"] for each in why["causes"]] == ["no_worker"]
    assert counts == {"pending": 2}


@pytest.mark.long
async def test_a_change_over_http_is_stored_on_nats_and_comes_on_the_live_stream(
    url: str, ids: list[str], engine: Engine, tmp_path: Path
) -> None:
    token = os.environ["TRELLIS_TOKEN"]
    listener, is_open = Listener(token, "after=s0.0"), asyncio.Event()

    def kinds() -> list[str]:
        changes = listener.of("change")
        return [each["event"]["kind"] for each in changes if each["job_id"] == ids[0]]

    def is_cancelled() -> bool:
        if kinds() == ["created"]:
            is_open.set()
        return "cancelled" in kinds()

    with http_server(url, tmp_path) as address:
        listening = asyncio.create_task(listener.listen(httpx.URL(address).port or 0, is_cancelled))
        async with asyncio.timeout(ENOUGH):
            await is_open.wait()
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(headers=headers, timeout=30) as caller:
            answer = await caller.post(f"{address}/jobs/{ids[0]}/cancel", json={})
            assert answer.status_code == 200, answer.text
            shown = (await caller.get(f"{address}/jobs/{ids[0]}")).json()
        await listening
    assert kinds() == ["created", "cancelled"]
    assert listener.connections == 1
    first, second = [await the(engine, JobId(each)) for each in ids]
    assert (first.head.state, second.head.state) == (State.CANCELLED, State.PENDING)
    assert (shown["id"], shown["state"]) == (ids[0], "cancelled")


def test_a_projection_for_another_store_is_refused() -> None:
    assert hosting("sqlite:///jobs.db", None) is None
    with pytest.raises(ConfigurationError, match="for jobs on NATS"):
        hosting("sqlite:///jobs.db", "projection.db")


async def test_a_server_does_not_start_with_a_projection_that_must_be_corrected(
    url: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.sqlite"
    own = SqliteEngine(path)
    await own.open()
    await accept(own, a_job())
    await own.close()
    has_started = False
    with pytest.raises(ConfigurationError, match="has jobs of its own"):
        async with hosted(url, str(path)):
            has_started = True
    assert not has_started
