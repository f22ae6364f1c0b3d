"""The user of operators: all that Trellis does as one, on the streams of one deployment only."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import nats as client
import pytest

from tests.engines.jetstream.conftest import Used, matches
from tests.harness import ROOT
from tests.harness.servers.nats import NatsServer, nats_server
from trellis import connect
from trellis.admin.opening import admin_runtime
from trellis.admin.rebuild import rebuild
from trellis.engines.demand import Demand
from trellis.engines.jetstream import JetStreamEngine, topology
from trellis.engines.jetstream.access import denial_in
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.permissions import admin_permissions
from trellis.engines.jetstream.seal import DeploymentSeal
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.testing.builders import a_job, a_worker, complete
from trellis.testing.conformance.helpers import accept_one, settle

PATIENCE = 30
SUBJECTS = Subjects("eu")
ADMIN = admin_permissions(SUBJECTS)
STREAMS = [each.stream for each in topology.parts(SUBJECTS, 1) if each.consumer is None]
#: What is granted of a stream that only its own tools use, or only some streams need.
TOOLS = (
    "$JS.API.STREAM.*.*.{}", "$JS.API.CONSUMER.*.{}", "$JS.API.CONSUMER.*.{}.>",
    "$JS.API.CONSUMER.MSG.NEXT.{}.*", "$JS.API.CONSUMER.LEADER.STEPDOWN.{}.*",
    "$JS.API.DIRECT.GET.{}", "$JS.API.DIRECT.GET.{}.>", "$JS.SNAPSHOT.*.{}.>", "$JS.ACK.{}.>",
    "$JS.ACK.*.*.{}.>",
)  # fmt: skip
RARE = {each.format(stream) for each in TOOLS for stream in STREAMS} | {
    "$JS.API.STREAM.LIST", "_INBOX.>",
}  # fmt: skip

#: What the operators of one deployment may not ask of other streams.
FOREIGN = (
    "STREAM.INFO.{}", "STREAM.CREATE.{}", "STREAM.UPDATE.{}", "STREAM.DELETE.{}",
    "STREAM.PURGE.{}", "STREAM.SNAPSHOT.{}", "STREAM.RESTORE.{}", "STREAM.MSG.GET.{}",
    "STREAM.MSG.DELETE.{}", "STREAM.LEADER.STEPDOWN.{}", "DIRECT.GET.{}", "DIRECT.GET.{}.other.x",
    "CONSUMER.NAMES.{}", "CONSUMER.CREATE.{}.some", "CONSUMER.CREATE.{}.eu_JOBS.other.x",
    "CONSUMER.DURABLE.CREATE.{}.eu_JOBS", "CONSUMER.DELETE.{}.some", "CONSUMER.MSG.NEXT.{}.some",
    "CONSUMER.MSG.NEXT.{}.eu_JOBS", "CONSUMER.LEADER.STEPDOWN.{}.some",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server with a user for the operators of one deployment, and one who may do everything."""
    users = f"{ADMIN.user('admin', 'admin')},\n{{ user: root, password: root }}"
    folder = tmp_path_factory.mktemp("nats")
    with nats_server(folder, f"authorization {{ users: [\n{users}\n] }}") as server:
        yield server


@pytest.fixture
async def root(server: NatsServer) -> AsyncIterator[Link]:
    """A user without limits, beside streams of another deployment and of another program."""
    link = Link([server.url_of("root", "root")])
    await link.open()
    await topology.migrate(link, Subjects(), 1, dry_run=False)
    await link.api("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["other.>"]})
    yield link
    for name in (await link.api("STREAM.NAMES"))["streams"]:
        await link.api(f"STREAM.DELETE.{name}")
    await link.close()


@pytest.fixture
async def engine(server: NatsServer, root: Link) -> AsyncIterator[JetStreamEngine]:
    engine = JetStreamEngine(server.url_of("admin", "admin"), prefix="eu")
    await engine.migrate(dry_run=True)
    await engine.migrate()
    await engine.open()
    yield engine
    await engine.close()


async def _run(engine: Engine) -> None:
    """Run a job, as a program of any service with this user."""
    session = (await engine.open_session(a_worker(), 30_000_000)).id
    record = await accept_one(engine, a_job())
    async with asyncio.timeout(PATIENCE):
        while not (
            taken := (await engine.claim(session, [Demand("shop", ("invoice",), 1)], 1)).jobs
        ):
            pass
    assert taken[0].definition == record.definition
    await settle(engine, taken[0], complete(taken[0]))
    await engine.close_session(session)


async def _repair(engine: JetStreamEngine) -> None:
    """Migrate after every kind of damage that a migration repairs in its own way."""
    link = engine._link
    await link.api(f"STREAM.DELETE.{SUBJECTS.later}")
    await engine.migrate()
    config = (await link.api(f"STREAM.INFO.{SUBJECTS.state}"))["config"]
    await link.api(f"STREAM.UPDATE.{SUBJECTS.state}", config | {"no_ack": True})
    until = {"pause_until": "2100-01-01T00:00:00Z"}
    await link.api(f"CONSUMER.PAUSE.{SUBJECTS.jobs}.work_feed", until)
    await engine.migrate()
    assert await topology.differences(link, SUBJECTS, 1) == []


async def test_operators_work_with_exactly_their_permissions(
    server: NatsServer, engine: JetStreamEngine, used: Used, tmp_path: Path
) -> None:
    url, own = server.url_of("admin", "admin") + "?prefix=eu", cast("Engine", engine)
    await _repair(engine)
    async with admin_runtime(url, str(tmp_path / "jobs.sqlite"), changes=True) as runtime:
        await _run(own)
        async with connect(url) as jobs:
            doomed = await accept_one(own, a_job())
            await jobs.cancel(doomed.definition.id)
            await jobs.cancel((await jobs.clone(doomed.definition.id)).id)
            await jobs.delete(doomed.definition.id)
            await jobs.pause("shop/invoice")
            await jobs.resume("shop/invoice")
            assert await jobs.count()
            assert (await jobs.health()).warnings == ()
        await rebuild(runtime, lambda _: None)
    seal = DeploymentSeal(engine._store)
    await seal.put("other", "postgresql://host/jobs")
    await seal._lift()
    await _run(own)
    assert used.denied == set()
    unused = [
        each
        for each in ADMIN.publish
        if each not in RARE and not any(matches(each, name) for name in used.published)
    ]
    assert unused == []


async def test_operators_save_and_restore_the_streams(
    server: NatsServer, engine: JetStreamEngine, root: Link, tmp_path: Path
) -> None:
    record = await accept_one(cast("Engine", engine), a_job())

    def snapshot(verb: str) -> None:
        program, url = ROOT / "deploy" / "nats" / "snapshot.py", server.url_of("admin", "admin")
        subprocess.run([sys.executable, program, verb, f"{url}?prefix=eu", tmp_path], check=True)

    await asyncio.to_thread(snapshot, "save")
    for stream in STREAMS:
        await root.api(f"STREAM.DELETE.{stream}")
    await asyncio.to_thread(snapshot, "restore")
    await engine.migrate()
    assert (await engine.load([record.definition.id])).records == (record,)


def test_every_request_of_the_source_to_jetstream_is_granted() -> None:
    text = "".join(each.read_text() for each in (ROOT / "src" / "trellis").rglob("*.py"))
    verbs = set(re.findall(r"\b((?:STREAM|CONSUMER|DIRECT)(?:\.[A-Z]+)+)\.\{", text))
    assert verbs >= {"STREAM.INFO", "STREAM.UPDATE", "CONSUMER.CREATE", "DIRECT.GET"}
    for verb in sorted(verbs | {"STREAM.CREATE"}):  # its verb is a variable
        for stream in STREAMS:
            subject = f"$JS.API.{verb}.{stream}" + (".some" if "CONSUMER" in verb else "")
            assert any(matches(each, subject) for each in ADMIN.publish), subject


async def test_operators_cannot_touch_other_streams_of_the_account(
    server: NatsServer, root: Link
) -> None:
    denied: set[str] = set()

    async def remember(error: Exception) -> None:
        if (denial := denial_in(str(error).lower())) is not None:
            denied.add(denial.subject)

    foreign = ["OTHER", "JOBS", "JOBS_WORK", "KV_JOBS_KEYS"]
    before = [await root.api(f"STREAM.INFO.{stream}") for stream in foreign]
    operator = await client.connect(server.url_of("admin", "admin"), error_cb=remember)
    subjects = [f"$JS.API.{verb.format(stream)}" for verb in FOREIGN for stream in foreign]
    for subject in subjects:
        await operator.publish(subject, json.dumps({"seq": 1}).encode())
    for _ in range(2):  # the first ping may overtake what was not written yet
        await operator.flush()
    assert {each.lower() for each in subjects} - denied == set()
    after = [await root.api(f"STREAM.INFO.{stream}") for stream in foreign]
    assert [(each["config"], each["state"]) for each in after] == [
        (each["config"], each["state"]) for each in before
    ]
    await operator.close()
