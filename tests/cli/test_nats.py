"""Commands on NATS: what they say when the URL, the server, the streams or the runtime is wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.harness.servers.nats import NatsServer, nats_server
from tests.harness.servers.nats_fixtures import *  # noqa: F403 - fixtures, listed there
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects

COMMANDS = (("doctor",), ("jobs", "list"), ("queues", "pause", "shop/greet"))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nats://", "names no server: write nats://host:4222"),
        ("nats://host:port", "names no server"),
        ("nats://host:4222,", "names no server"),
        ("nats://me:secret@host:4222/eu", "has a path"),
        ("nats://me:secret@host 1:4222", "names no server"),
        ("nats://host:4222?prefx=a", "It knows prefix, service"),
        ("nats://host:4222?prefix=a.b", "cannot begin subjects"),
        ("nats://host:4222?service=a.b", "service"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_before_connecting(
    command: Run, url: str, says: str
) -> None:
    for line in (("migrate",), *COMMANDS):
        ran = command(*line, "--url", url)
        assert ran.code == 2, ran.err
        assert says in ran.err
        assert "secret" not in ran.err


@pytest.mark.parametrize("line", [("migrate",), *COMMANDS])
def test_a_server_without_jetstream_is_named(
    command: Run, tmp_path: Path, line: tuple[str]
) -> None:
    with nats_server(tmp_path / "nats", "jetstream: disabled") as server:
        ran = command(*line, "--url", server.url)
    assert ran.code == 5
    assert "has no JetStream" in ran.err
    assert "Turn JetStream on" in ran.err


@pytest.mark.parametrize("line", COMMANDS)
def test_missing_streams_and_another_prefix_are_named(
    command: Run, nats_url: str, line: tuple[str]
) -> None:
    ran = command(*line, "--url", f"{nats_url}?prefix=elsewhere")
    assert ran.code == 5
    assert "no stream elsewhere_JOBS" in ran.err
    assert "trellis migrate --url" in ran.err


SERVICE = "from trellis import Service\nservice = Service('shop')\n"


@pytest.mark.parametrize(
    "line",
    [
        ("doctor",), ("serve", "--port", "0"), ("jobs", "serve"), ("jobs", "rebuild"),
        ("worker", "only_here:service"), ("jobs", "list"), ("schedules", "list"),
        ("migrate", "--check"), ("migrate", "--sql"),
    ],
)  # fmt: skip
def test_only_a_migration_makes_streams(
    command: Run, own_nats: NatsServer, tmp_path: Path, line: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("TRELLIS_JOBS_DB_PATH", str(tmp_path / "jobs.sqlite"))
    (tmp_path / "only_here.py").write_text(SERVICE)
    monkeypatch.chdir(tmp_path)
    ran = command(*line, "--url", own_nats.url)
    assert asyncio.run(_streams(own_nats)) == []
    if "--sql" in line:
        assert (ran.code, '"name": "JOBS"' in ran.out) == (0, True)
        return
    assert ran.code == (1 if line[0] == "migrate" else 5), ran
    assert "Run: trellis migrate" in ran.out + ran.err


async def _streams(server: NatsServer) -> list[str]:
    link = Link([server.url])
    await link.open()
    names: list[str] = (await link.api("STREAM.NAMES")).get("streams") or []
    await link.close()
    return names


@pytest.fixture
def url(command: Run, nats_url: str, tmp_path: Path) -> str:
    """A deployment without an admin runtime."""
    made = f"{nats_url}?prefix=t{abs(hash(tmp_path))}"
    assert command("migrate", "--url", made).code == 0
    return made


def test_a_migration_says_what_it_does(command: Run, nats: NatsServer) -> None:
    url = f"{nats.url}?prefix=migrated"
    behind = command("migrate", "--check", "--url", url)
    assert (behind.code, "streams and consumers are missing" in behind.out) == (1, True)
    assert json.loads(command("migrate", "--sql", "--url", url).out.split("\n}")[0] + "}")
    assert "from schema 0 to 1" in command("migrate", "--url", url).out
    assert "is up to date (schema 1)" in command("migrate", "--url", url).out

    async def delete() -> None:
        link = Link([nats.url])
        await link.open()
        await link.api(f"STREAM.DELETE.{Subjects('migrated').work}")
        await link.close()

    asyncio.run(delete())
    assert (
        "was put in order (schema 1): 2 streams or consumers"
        in command("migrate", "--url", url).out
    )


def test_without_an_admin_runtime_the_doctor_shows_what_the_engine_says(
    command: Run, url: str
) -> None:
    ran = command("doctor", "--url", url)
    assert ran.code == 1
    assert "kept by one server" in ran.out
    assert "Jobs        not read" in ran.out
    assert "jobs serve`" in ran.out
    found = json.loads(command("doctor", "--json", "--url", url).out)
    assert (found["healthy"], found["engine"], found["journals_checked"]) == (False, "jetstream", 0)


def test_without_an_admin_runtime_a_list_says_what_to_start(command: Run, url: str) -> None:
    ran = command("jobs", "list", "--url", url)
    assert ran.code == 5
    assert "No admin runtime answers" in ran.err


def test_a_queue_is_paused_without_an_admin_runtime(command: Run, url: str) -> None:
    ran = command("queues", "pause", "shop/greet", "--url", url)
    assert (ran.code, "Queue shop/greet is paused" in ran.err) == (0, True), ran
