"""The pytest plugin: found by its entry point, light, and of use with and without asyncio."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import trellis.testing

ROOT = Path(__file__).parents[2]

PLAIN = """
import pytest
from trellis import Service

app = Service("app", "sqlite:////nowhere/app.db")

@app.job
def double(number: int) -> int:
    return number * 2

@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_doubling(trellis_sandbox, number):
    double.create_sync(number)
    trellis_sandbox.run_all_sync()
    assert [job.result for job in trellis_sandbox.created(double)] == [number * 2]

def test_without_the_sandbox():
    assert app.url == "sqlite:////nowhere/app.db"
"""

ASYNC = """
import asyncio
import pytest
from test_plain import double

@pytest.mark.asyncio
@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_doubling(trellis_sandbox, number):
    ref = await double.create(number)
    await trellis_sandbox.run_all()
    assert await ref.wait("10s") == number * 2
    assert len(trellis_sandbox.created()) == 1
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "trellis.testing.plugin"),
            *("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)),
            *arguments,
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_fixture_needs_nothing_but_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(PLAIN)
    ran = run_pytest(tmp_path)
    assert (ran.returncode, "5 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr


def test_the_fixture_serves_async_tests_beside_plain_ones(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(PLAIN)
    (tmp_path / "test_async.py").write_text(ASYNC)
    ran = run_pytest(tmp_path, "-p", "pytest_asyncio.plugin")
    assert (ran.returncode, "9 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr


def test_the_entry_point_leads_to_the_fixture() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = import_module(project["entry-points"]["pytest11"]["trellis"])
    assert hasattr(plugin, "trellis_sandbox")


def test_no_module_of_the_kit_has_the_name_of_something_it_exports() -> None:
    # Importing the module would put it in the place of what is exported.
    folder = ROOT / "src" / "trellis" / "testing"
    modules = {path.stem for path in folder.iterdir()}
    assert modules & set(trellis.testing.__all__) == set()


def test_loading_the_plugin_loads_nothing_else() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import trellis.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["trellis", "trellis.testing", "trellis.testing.plugin"]
