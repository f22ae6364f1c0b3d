"""The files in deploy/nats: servers accept them, and what the guide says can be done with them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.jetstream.manual import ManualEngine
from tests.engines.postgres.household import Thing, inventory
from tests.harness import ROOT
from tests.harness.servers.nats import NatsCluster, NatsServer, nats_program, nats_server
from tests.harness.servers.nats_fixtures import nats_three
from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.topology import identity_of, parts
from trellis.testing.builders import a_demand, a_job, a_worker

__all__ = ["nats_three"]
FILES = ROOT / "deploy" / "nats"
OF_SHOP = ("--service", "shop", "--type", "invoice")
PASSWORDS = {
    "NATS_ADMIN_PASSWORD": "one",
    "NATS_SHOP_PASSWORD": "two",
    "NATS_SYSTEM_PASSWORD": "three",
}


def check(path: Path) -> subprocess.CompletedProcess[str]:
    """Have the server check a configuration."""
    return subprocess.run(
        [nats_program(), "-t", "-c", path],
        env=os.environ | PASSWORDS,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["single", "n1", "n2", "n3"])
def test_the_server_accepts_the_configuration(name: str) -> None:
    ran = check(FILES / f"{name}.conf")
    assert (ran.returncode, "is valid" in ran.stderr + ran.stdout) == (0, True)


def test_the_nodes_differ_in_nothing_but_their_name() -> None:
    texts = {
        (FILES / f"n{number}.conf").read_text().replace(f"n{number}", "node", 2)
        for number in (1, 2, 3)
    }
    assert len(texts) == 1


def test_the_permissions_are_those_that_the_command_writes() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "trellis", "nats", "permissions", *OF_SHOP],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == (FILES / "shop-permissions.conf").read_text()


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsServer]:
    """A server with the users of the file."""
    for name, value in PASSWORDS.items():
        monkeypatch.setenv(name, value)
    text = (FILES / "common.conf").read_text()
    users = text[text.index("accounts {") :]
    permissions = FILES / "shop-permissions.conf"
    inlined = users.replace('include "shop-permissions.conf"', permissions.read_text())
    with nats_server(tmp_path / "server", inlined) as server:
        yield server


async def test_the_users_of_the_file_can_do_what_they_are_for(configured: NatsServer) -> None:
    admin = ManualEngine(configured.url_of("admin", "one"))
    await admin.migrate()
    await admin.open()
    shop = JetStreamEngine(configured.url_of("shop", "two"))
    await shop.open()
    await shop.create([new := a_job()])
    session = (await shop.open_session(a_worker(), 30 * SECOND)).id
    await admin.catch_up()
    taken = (await shop.claim(session, [a_demand()], 9)).jobs
    assert [each.definition.id for each in taken] == [new.id]
    await shop.close()
    await admin.close()


def snapshot(*arguments: str) -> str:
    """Run the program of the guide."""
    ran = subprocess.run(
        [sys.executable, FILES / "snapshot.py", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


async def _fill(url: str, ids: list[JobId], identities: list[int]) -> dict[JobId, Thing]:
    engine = ManualEngine(url, prefix="eu")
    await engine.migrate()
    await engine.open()
    await engine.create([a_job(id=job_id) for job_id in ids])
    before = await inventory(engine)
    identities.append(await _identity(engine))
    await engine.close()
    return before


async def _identity(engine: ManualEngine) -> int:
    return identity_of(await engine._link.api(f"STREAM.INFO.{engine._subjects.jobs}"))


async def test_a_backup_can_be_restored_to_another_server(tmp_path: Path) -> None:
    ids, backup = [JobId(f"job-{number}") for number in range(50)], str(tmp_path / "backup")
    identities: list[int] = []
    with nats_server(tmp_path / "first") as first:
        before = await _fill(first.url, ids, identities)
        told = await asyncio.to_thread(snapshot, "save", f"{first.url}?prefix=eu", backup)
        assert told == "saved eu_JOBS\nsaved eu_JOBS_STATE\n"
    with nats_server(tmp_path / "second") as second:
        told = await asyncio.to_thread(snapshot, "restore", f"{second.url}?prefix=eu", backup)
        assert told == "restored eu_JOBS\nrestored eu_JOBS_STATE\n"
        engine = ManualEngine(second.url, prefix="eu")
        await engine.migrate()
        await engine.open()
        assert await inventory(engine) == before
        # A projection with what was stored after the backup does not fit.
        assert await _identity(engine) not in identities
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        taken = (await engine.claim(session, [a_demand()], 99)).jobs
        assert {each.definition.id for each in taken} == set(ids)
        await engine.close()


async def test_a_backup_can_be_restored_beside_streams_of_others(tmp_path: Path) -> None:
    backup, ids = str(tmp_path / "backup"), [JobId("one"), JobId("two")]
    with nats_server(tmp_path / "server") as server:
        url = f"{server.url}?prefix=eu"
        before = await _fill(server.url, ids, [])
        engine = ManualEngine(server.url, prefix="eu")
        await engine._link.open()
        await engine._link.api("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["other"]})
        await asyncio.to_thread(snapshot, "save", url, backup)
        streams = {each.stream for each in parts(Subjects("eu"), 1)}
        for stream in streams:
            await engine._link.api(f"STREAM.DELETE.{stream}")
        await asyncio.to_thread(snapshot, "restore", url, backup)
        await engine.migrate()
        await engine.open()
        names = (await engine._link.api("STREAM.NAMES"))["streams"]
        assert set(names) == {*streams, "OTHER"}
        assert await inventory(engine) == before
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        taken = (await engine.claim(session, [a_demand()], 9)).jobs
        assert {each.definition.id for each in taken} == set(ids)
        await engine.close()


@pytest.mark.long
async def test_a_backup_of_one_server_becomes_three_replicas(
    nats_three: NatsCluster, tmp_path: Path
) -> None:
    ids, backup = [JobId(f"job-{number}") for number in range(9)], str(tmp_path / "backup")
    with nats_server(tmp_path / "one") as one:
        await _fill(one.url, ids, [])
        await asyncio.to_thread(snapshot, "save", f"{one.url}?prefix=eu", backup)
    await asyncio.to_thread(nats_three.start)
    await asyncio.to_thread(snapshot, "restore", f"{nats_three.url}?prefix=eu", backup)
    for replicas in (None, 3):
        engine = JetStreamEngine(nats_three.url, prefix="eu", replicas=replicas)
        await engine.migrate()
        await engine.open()
        assert (await engine.health()).facts["replicas"] == (replicas or 1)
        assert all((await engine.load(ids)).records)
        await engine.close()
