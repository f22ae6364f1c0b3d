"""Advised commands can be pasted: they name what the present command names."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import rich_click as click

from tests.cli.conftest import Run
from trellis.cli.app import run, trellis
from trellis.cli.output import as_typed, remember_place
from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import WorkerInfo
from trellis.engines.worker_report import LostThread, WorkerReport

URL = "sqlite:///jobs.db"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    remember_place([])


def commands(
    command: click.Command = trellis, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, set[str]]]:
    """Yield every command, and its options."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))
    else:
        yield " ".join(path), {name for each in command.params for name in each.opts}


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_names_the_place_if_it_can(name: str) -> None:
    sentence, options = f"Do it with: trellis {name} X, please.", COMMANDS[name]
    remember_place(["jobs", "list", "--url", URL])
    place = f" --url {URL}" if "--url" in options else ""
    assert as_typed(sentence) == f"Do it with: trellis{place} {name} X, please."
    remember_place(["--app=shop:app", "jobs", "list"])
    takes_services = "--url" in options and "--app" not in options
    argument = " shop:app" if takes_services else ""
    place = " --app shop:app" if "--app" in options else ""
    assert as_typed(sentence) == f"Do it with: trellis{place} {name}{argument} X, please."


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_written_as_a_framework_calls_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_PROGRAM", "python manage.py trellis")
    assert as_typed(f"See: trellis {name}.") == f"See: python manage.py trellis {name}."


def test_what_is_no_command_and_what_names_its_place_stays() -> None:
    remember_place(["jobs", "list", "--url", URL, "--", "--app", "other"])
    for text in (
        "see trellis.toml, trellis-jobs and what trellis is",
        "trellis jobs why 01M7 --url URL",
        "run `trellis migrate --url sqlite:///other.db` first",
    ):
        assert as_typed(text) == text
    remember_place(["jobs", "list", "--url", "postgresql://ann:secret@db/shop"])
    assert as_typed("trellis workers") == "trellis --url 'postgresql://ann:***@db/shop' workers"
    remember_place(["jobs", "list", "--app", "shop:app"])
    assert as_typed("trellis worker your_module:service") == "trellis worker shop:app"


def test_what_why_advises_can_be_pasted(
    command: Run, shop: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop[0])
    told = command("jobs", "why", shop[1]["failed"], "--url", URL, "--json")
    (cause,) = json.loads(told.out)["causes"]
    assert cause["command"] == f"trellis --url {URL} jobs retry {shop[1]['failed']}"
    program, *arguments = shlex.split(cause["command"])
    assert (program, run([*arguments, "--dry-run"])) == ("trellis", 0)


def test_what_doctor_advises_can_be_pasted(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_thread() -> None:
        engine = SqliteEngine(tmp_path / "jobs.db")
        await engine.open()
        session = (await engine.open_session(WorkerInfo("berlin", "host", 1), 600 * SECOND)).id
        lost = LostThread(JobId("01LOST"), "shop/bill", await engine.now())
        await engine.renew(session, (), report=WorkerReport(lost_threads=(lost,)))
        await engine.close()

    asyncio.run(lose_thread())
    monkeypatch.chdir(tmp_path)
    page = command("doctor", "--url", URL).out
    assert f"See: trellis --url {URL} workers" in page
    monkeypatch.setenv("TRELLIS_PROGRAM", "manage.py trellis")
    warnings = json.loads(command("doctor", "--url", URL, "--json").out)["warnings"]
    assert any(f"See: manage.py trellis --url {URL} workers" in each for each in warnings)
