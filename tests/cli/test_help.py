"""Help at every level: complete, quick, and without loading anything heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import rich_click as click

from tests.cli.conftest import Run, environment
from trellis import __version__
from trellis.cli.app import trellis

PROGRAM = """
import contextlib, io, json, sys
import click
from trellis.cli.app import run, trellis

def paths(command, path):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from paths(command.get_command(context, name), [*path, name])

texts = {}
for path in paths(trellis, []):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run([*path, "--help"]) == 0, path
    texts[" ".join(path)] = out.getvalue()
heavy = "pydantic fastapi asyncpg nats sqlite3 asyncio".split()
json.dump({"texts": texts, "loaded": [name for name in heavy if name in sys.modules]}, sys.stdout)
"""


@pytest.fixture(scope="module")
def helped() -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_help_at_every_level_loads_nothing_heavy(helped: dict[str, Any]) -> None:
    assert helped["loaded"] == []
    assert len(helped["texts"]) > 25


def test_the_first_page_lists_every_command_without_importing_any() -> None:
    program = (
        "import sys; from trellis.cli.app import run, trellis; code = run(['--help']); "
        "names = trellis.list_commands(None); "
        "print([name for name in names if f'trellis.cli.{name}' in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    *page, imported = ran.stdout.splitlines()
    assert imported == "[]"
    shown = " ".join(" ".join(page).replace("│", " ").split())
    context = click.Context(trellis)
    for name in trellis.list_commands(context):
        first, _, _ = trellis.get_command(context, name).help.partition("\n\n")
        assert f"{name} {first}" in shown


def test_every_command_says_what_it_does_and_takes_a_url(
    helped: dict[str, Any],
) -> None:
    groups = {
        "",
        "jobs",
        "dlq",
        "keys",
        "archive",
        "audit",
        "tokens",
        "workers",
        "queues",
        "drain",
        "schedules",
        "schedules window",
        "contract",
        "batches",
        "nats",
    }
    without = {"demo", "completion", "contract export", "contract import", "nats permissions"}
    for path, text in helped["texts"].items():
        assert f"Usage: {' '.join(['trellis', *path.split()])}" in text
        if path not in groups:
            assert ("--url" in text) is (path not in without), path
            assert "--debug" in text, path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_written(command: Run, shell: str) -> None:
    ran = command("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert "_TRELLIS_COMPLETE" in ran.out


def test_a_shell_gets_the_words_that_may_follow(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TRELLIS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "trellis jobs ca")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert command().out.split() == ["plain,cancel"]


def test_the_guide_names_every_command() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "cli.md").read_text()
    for name in trellis.list_commands(None):  # type: ignore[arg-type] # it needs no context
        assert f"trellis {name}" in guide, name


def test_help_lists_the_commands(command: Run) -> None:
    ran = command("--help")
    assert ran.code == 0
    for name in ("demo", "doctor", "migrate", "worker"):
        assert name in ran.out


def test_help_loads_neither_pydantic_nor_any_engine() -> None:
    program = (
        "import sys; from trellis.cli.app import run; code = run(['--help']); "
        "bad = [m for m in ('pydantic', 'sqlite3', 'asyncio') if m in sys.modules]; "
        "sys.exit(f'loaded {bad}' if bad else code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_version_is_that_of_the_package(command: Run) -> None:
    ran = command("--version")
    assert (ran.code, ran.out.split()) == (0, ["trellis,", "version", __version__])
    assert __version__ == metadata.version("trellis-jobs")


def test_help_without_its_texts_says_why(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-OO", "-m", "trellis", "worker", "--help"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stderr == (
        "Python -OO (PYTHONOPTIMIZE=2) removes the texts of the help. Use -O instead.\n"
    )
