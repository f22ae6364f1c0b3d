"""Commands with the URL of a server: they write what they write at the database, secrets masked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.server.serving import serving
from trellis import connect
from trellis.engines.values import JobFilter
from trellis.portal import call

SECRET = "hunter2-over-http"
#: What only reads; ID is a job.
READS = [
    "jobs list --json", "jobs count --by state --json", "jobs show ID --json", "jobs logs ID",
    "jobs why ID --json", "jobs items ID --json", "jobs graph ID", "dlq list --json",
    "keys list --json", "workers list --json", "batches list --json", "schedules list --json",
    "contract list --json", "audit --json", "archive list --json", "locks --json",
    "drain status --json", "queues limits --json",
]  # fmt: skip


@pytest.fixture
def remote(shop: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of the shop, and a token of an operator in the environment."""
    url = f"sqlite:///{shop[0] / 'jobs.db'}"
    token = call(_token, url)
    monkeypatch.setenv("TRELLIS_TOKEN", token)
    with serving(url) as running:
        yield f"http://127.0.0.1:{running.port}"


async def _token(url: str) -> str:
    async with connect(url) as jobs:
        return (await jobs.tokens.create(["admin.read", "admin.mutate"])).text


@pytest.mark.parametrize("words", READS)
def test_a_command_that_reads_writes_the_same(
    command: Run, shop: tuple[Path, dict[str, str]], remote: str, words: str
) -> None:
    arguments = words.replace("ID", shop[1]["completed"]).split()
    there = command(*arguments, "--url", f"sqlite:///{shop[0] / 'jobs.db'}")
    through = command(*arguments, "--url", remote)
    assert (through.code, timeless(through.out)) == (there.code, timeless(there.out)), through.err
    assert there.code == 0, there.err


def timeless(output: str) -> str:
    """Replace how long ago something was: the two commands run one after the other."""
    return re.sub(r"(under )?\d+ s ago", "a while ago", output)


def test_a_job_is_created_changed_and_cloned_without_showing_its_secret(
    command: Run, shop: tuple[Path, dict[str, str]], remote: str
) -> None:
    name = {"service": "shop", "type": "bill"}
    payload = json.dumps({"password": SECRET})
    made = command(
        "enqueue", f"{name['service']}/{name['type']}", payload, "--delay", "1h", "--url", remote
    )
    assert made.code == 0, made.err
    job_id = made.out.strip()
    shown = command("jobs", "show", job_id, "--json", "--url", remote)
    assert (shown.code, SECRET in shown.out) == (0, False)
    cloned = command("jobs", "clone", job_id, "--url", remote)
    assert cloned.code == 0, cloned.err
    url = f"sqlite:///{shop[0] / 'jobs.db'}"
    payloads = call(_payloads, url, name["service"], name["type"])
    assert payloads.count(payload.replace(" ", "")) == 2
    for words in (["set", job_id, "--priority", "3"], ["cancel", job_id]):
        assert command("jobs", *words, "--url", remote).code == 0


async def _payloads(url: str, service: str, name: str) -> list[str]:
    async with connect(url) as jobs:
        page = await jobs.engine.find(JobFilter(services=(service,), types=(name,)))
        return [each.definition.payload for each in page.jobs]


@pytest.mark.parametrize(
    "words",
    ["doctor", "queues list", "tokens list", "tokens login", "migrate --check", "migrate",
     "drain on", "drain off", "queues aging off"],
)  # fmt: skip
def test_a_command_works_through_a_server(command: Run, remote: str, words: str) -> None:
    ran = command(*words.split(), "--url", remote)
    if words == "tokens login":  # it would give more than the token may do
        assert (ran.code != 0, "admin.stream" in ran.err) == (True, True)
    else:
        assert ran.code == 0, ran.err


def test_a_command_without_a_token_says_how_to_get_one(
    command: Run, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRELLIS_TOKEN")
    ran = command("jobs", "list", "--url", remote)
    assert (ran.code, "needs a token in TRELLIS_TOKEN" in ran.err) == (ran.code, True)
    assert "trellis tokens create worker:SERVICE" in ran.err
    assert ran.code != 0
