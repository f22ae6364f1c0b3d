"""`trellis batches`: what operators see of batches, and what they change."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.insight.dot import parsed
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
    assert re.search(r"open +0 % +1 ", listed.out)
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


@pytest.fixture
async def nested(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A batch that waits, with a batch in it that has finished; its ids by name."""
    url = f"sqlite:///{tmp_path / 'nested.db'}"
    app = Service("press", url)

    @app.job
    async def write(chapter: str) -> str:
        return chapter

    @app.job
    async def bind() -> None: ...

    async with app, app.batch(then=bind, name='the "book"\n1') as outer:
        async with outer.batch(then=bind, name="annex") as inner:
            part = await inner.create(write, "maps")
        async with app.worker():
            view = await inner.ref.wait("20s")
            await bind.ref(str(view.fan_in)).wait("20s")
        members = await outer.create_many(write, ["owls", "gulls"])
    return url, {
        "outer": outer.id,
        "inner": inner.id,
        "part": part.id,
        "then": str(view.fan_in),
        "first": members[0].id,
        "second": members[1].id,
    }


def test_a_batch_is_shown_as_a_tree(nested: tuple[str, dict[str, str]], command: Run) -> None:
    url, ids = nested
    shown = command("batches", "show", ids["outer"], "--tree", "--url", url)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines() == [
        f'batch {ids["outer"]}  the "book"\\n1  sealed, 3 members',
        f"├─ batch {ids['inner']}  annex  finished, 1 member",
        f"│  ├─ {ids['part']}  press/write  completed",
        f"│  └─ then {ids['then']}  press/bind  completed",
        f"├─ {ids['first']}  press/write  pending",
        f"├─ {ids['second']}  press/write  pending",
        "└─ then press/bind  (not created yet)",
    ]
    details = command("batches", "show", ids["outer"], "--url", url).out
    assert "progress   50 % of 3 members and 1 batch: 1 completed, 2 pending" in details
    cut = command("batches", "show", ids["outer"], "--tree", "--limit", "2", "--url", url)
    assert f"├─ … and 1 more: trellis jobs list batch:{ids['outer']}" in cut.out
    assert cut.err == "2 members not shown. Show more with --limit.\n"


def test_a_batch_is_written_for_graphviz(nested: tuple[str, dict[str, str]], command: Run) -> None:
    url, ids = nested
    statements = parsed(
        command("batches", "show", ids["outer"][-8:], "--dot", "--url", url).out.rstrip("\n")
    )
    assert statements[ids["outer"]]["label"].startswith('batch the "book"\n1\nsealed, members: 3\n')
    assert statements[f"{ids['inner']} -> {ids['then']}"] == {"style": "bold"}
    assert f"{ids['outer']} -> {ids['inner']}" in statements
    both = command("batches", "show", ids["outer"], "--dot", "--tree", "--url", url)
    assert both.code == 2
    assert command("batches", "show", "0" * 26, "--tree", "--url", url).code == 3


def test_an_operator_seals_cancels_and_retries(url: str, command: Run) -> None:
    first, second = json.loads(command("batches", "list", "--json", "--url", url).out)
    sealed = command("batches", "seal", first["id"], "--reason", "it is gone", "--url", url)
    assert (sealed.code, "is sealed" in sealed.err) == (0, True)
    cancelled = command("batches", "cancel", first["id"], "--json", "--url", url)
    assert json.loads(cancelled.out)["state"] == "cancelled"
    assert command("batches", "cancel", second["id"], "--url", url).code == 4
    retried = command("batches", "retry-failed", second["id"], "--url", url)
    assert retried.err == "1 job of the batch waiting to run again.\n"
    again = command("batches", "retry-failed", second["id"], "--url", url)
    assert (again.code, "nothing was changed" in again.err) == (0, True)
    assert command("batches", "show", "nothing", "--url", url).code == 3


async def test_python_has_the_same(url: str) -> None:
    async with connect(url, actor="ann") as jobs:
        (batch,) = await jobs.batches.find(state="open")
        assert (await jobs.batches.seal(batch.id)).state == "sealed"
        members = [member async for member in jobs.batches.members(batch.id)]
        assert [member.type for member in members] == ["press/write"]
        assert (await jobs.batches.cancel(batch.id, reason="no")).state == "cancelled"
