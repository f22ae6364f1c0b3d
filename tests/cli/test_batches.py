"""`trellis batches`: what operators see of batches, and what they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trellis import Retry, Service, connect


class Left(Exception):
    """Leaves the block of a batch."""


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A finished batch with a dead member, and one whose creator died."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Service("press", url)

    @app.job(retry=Retry(attempts=1))
    async def write(chapter: str) -> str:
        return {"owls": "hoo"}[chapter]

    @app.job
    async def bind() -> None: ...

    async with app:
        async with app.batch(then=bind, name="birds") as batch:
            await batch.create_many(write, ["owls", "gulls"])
        async with app.worker():
            await batch.ref.wait("20s")
        forgotten = await app.batch(then=bind).__aenter__()
        await forgotten.create(write, "owls")
    return url


def test_batches_are_listed_and_shown(url: str, command: Run) -> None:
    listed = command("batches", "--url", url)
    assert listed.code == 0
    assert "birds" in listed.out
    assert "1 unsuccessful" in listed.out
    first, second = json.loads(command("batches", "list", "--json", "--url", url).out)
    assert (first["state"], second["state"]) == ("open", "finished")
    shown = command("batches", "show", second["id"], "--url", url).out
    assert "100 % of 2 members: 1 completed, 1 dead" in shown
    assert "press/bind when all have finished" in shown
    document = json.loads(command("batches", "show", second["id"][-8:], "--json", "--url", url).out)
    assert [member["result"] for member in document["members"]] == ["hoo", None]
    only = command("batches", "list", "--state", "open", "-q", "--url", url)
    assert only.out == f"{first['id']}\n"


def test_an_operator_seals_cancels_and_retries(url: str, command: Run) -> None:
    first, second = json.loads(command("batches", "list", "--json", "--url", url).out)
    sealed = command("batches", "seal", first["id"], "--reason", "it is gone", "--url", url)
    assert (sealed.code, "is sealed" in sealed.err) == (0, True)
    cancelled = command("batches", "cancel", first["id"], "--json", "--url", url)
    assert json.loads(cancelled.out)["state"] == "cancelled"
    assert command("batches", "cancel", second["id"], "--url", url).code == 4
    retried = command("batches", "retry-failed", second["id"], "--url", url)
    assert "1 job of the batch" in retried.err
    assert command("batches", "show", "nothing", "--url", url).code == 3


async def test_python_has_the_same(url: str) -> None:
    async with connect(url, actor="ann") as jobs:
        (batch,) = await jobs.batches.find(state="open")
        assert (await jobs.batches.seal(batch.id)).state == "sealed"
        members = [member async for member in jobs.batches.members(batch.id)]
        assert [member.type for member in members] == ["press/write"]
        assert (await jobs.batches.cancel(batch.id, reason="no")).state == "cancelled"
