"""`trellis move`: its output, its refusals and its exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.conftest import Run
from tests.engines.postgres.household import furnish
from tests.engines.postgres.steps import fresh
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from trellis.core.durations import SECOND
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.builders import a_worker

pytestmark = pytest.mark.on_postgres(18)


@pytest.fixture
def target(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
def source(tmp_path: Path) -> str:
    asyncio.run(furnish(tmp_path / "jobs.db"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def test_a_dry_run_says_what_a_move_then_does_and_the_second_finds_nothing_to_do(
    command: Run, source: str, target: str
) -> None:
    way = ("move", "--from", source, "--to", target)
    dry = command(*way, "--dry-run")
    assert dry.code == 0
    assert "Would move 12 jobs (" in dry.out
    assert (
        "3 jobs that ended stay at the source; --history moves them, too. Nothing was done."
        in dry.out
    )
    assert "Jobs        none" in command("doctor", "--url", target).out

    moved = command(*way)
    assert (moved.code, moved.err) == (0, "")
    assert moved.out.startswith("12 jobs moved to postgresql://")
    assert "8 pending" in moved.out
    assert f"{source} can only be read from now on" in moved.out

    again = command(*way, "--json")
    found = json.loads(again.out)
    assert (again.code, found["moved"], found["already_moved"]) == (0, 0, 12)
    assert found["states"] == {"pending": 8, "retry": 2, "dead": 2}
    assert (found["finished"], found["not_moved"]) == (True, 3)

    doctor = command("doctor", "--url", target)
    assert (doctor.code, "12 checked, all match" in doctor.out) == (0, True)
    password = urlsplit(target).password
    if password:
        assert password not in dry.out + moved.out + again.out


def test_a_target_without_tables_is_refused_with_the_line_that_makes_them(
    command: Run, source: str, postgres_url: str
) -> None:
    ran = command("move", "--from", source, "--to", postgres_url)
    assert (ran.code, ran.out) == (5, "")
    assert "Run: trellis migrate --url" in ran.err


def test_a_source_that_is_not_there_is_not_made(command: Run, tmp_path: Path, target: str) -> None:
    ran = command("move", "--from", f"sqlite:///{tmp_path / 'none.db'}", "--to", target)
    assert (ran.code, "There is no database" in ran.err) == (5, True)
    assert not list(tmp_path.iterdir())


def test_a_live_worker_at_the_source_is_a_refusal_that_names_it(
    command: Run, source: str, target: str, tmp_path: Path
) -> None:
    async def begin() -> None:
        engine = SqliteEngine(tmp_path / "jobs.db")
        await engine.open()
        await engine.open_session(a_worker("left-running"), 600 * SECOND)
        await engine.close()

    asyncio.run(begin())
    ran = command("move", "--from", source, "--to", target)
    assert (ran.code, ran.out) == (4, "")
    assert "left-running" in ran.err
    assert f"trellis workers drain NAME --url {source}" in ran.err


def test_the_wrong_way_round_is_refused_because_there_is_nothing_to_move(
    command: Run, source: str, target: str
) -> None:
    ran = command("move", "--from", target, "--to", source)
    assert (ran.code, "There is nothing to move in postgresql://" in ran.err) == (4, True)
    facts = json.loads(command("doctor", "--quick", "--json", "--url", target).out)["facts"]
    assert "moved_to" not in facts


def test_a_store_is_not_moved_to_itself(command: Run, source: str) -> None:
    ran = command("move", "--from", source, "--to", source)
    assert (ran.code, "is where the jobs are already" in ran.err) == (4, True)
    assert command("enqueue", "shop/invoice", "{}", "--url", source).code == 0


def test_after_a_move_old_programs_learn_where_the_jobs_are(
    command: Run, source: str, target: str
) -> None:
    assert command("move", "--from", source, "--to", target).code == 0
    ran = command("enqueue", "shop/invoice", "{}", "--url", source)
    assert (ran.code, "its jobs were moved to postgresql://" in ran.err) == (5, True)
    assert command("jobs", "list", "--url", source).code == 0
    told = command("doctor", "--quick", "--url", source)
    assert "Warning     The jobs of this store were moved to postgresql://" in told.out
    assert json.loads(command("doctor", "--quick", "--json", "--url", source).out)["facts"][
        "moved_to"
    ].startswith("postgresql://")
