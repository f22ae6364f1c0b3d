"""Where Python is missing, or comes in parts, `make` says in one sentence what to install."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT

MAKE = shutil.which("make")

#: An interpreter that fails when its command line contains these words.
WRAPPER = """#!/bin/sh
case "$*" in *"{words}"*) exit 1;; esac
exec {python} "$@"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make` needs to begin, and a path with nothing but what its own lines call."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("grep", "rm"):
        tool = shutil.which(name)
        assert tool is not None
        (tmp_path / "bin" / name).symlink_to(tool)
    return tmp_path


def put_python(checkout: Path, name: str, fails_at: str) -> Path:
    wrapper = checkout / "bin" / name
    wrapper.write_text(WRAPPER.format(words=fails_at, python=sys.executable))
    wrapper.chmod(0o755)
    return wrapper


def make(checkout: Path, *arguments: str) -> str:
    assert MAKE is not None
    ran = subprocess.run(
        [MAKE, "-s", "demo", *arguments],
        cwd=checkout,
        env={"PATH": str(checkout / "bin")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert not (checkout / ".venv").exists()
    sentence, *rest = ran.stderr.splitlines()
    assert all(line.startswith("make") for line in rest)
    return sentence


pytestmark = pytest.mark.skipif(MAKE is None, reason="needs make")


def test_a_python_without_venv_is_told_which_package_to_install(checkout: Path) -> None:
    put_python(checkout, "python3", fails_at="ensurepip")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert make(checkout) == (
        "python3 comes without its venv module: install it (on Debian and Ubuntu: "
        f"apt install python{version}-venv), then run make again."
    )


def test_a_named_python_without_venv_is_named_back(checkout: Path) -> None:
    python = put_python(checkout, "mine", fails_at="ensurepip")
    assert make(checkout, f"PYTHON={python}").startswith(f"{python} comes without its venv module")


def test_without_any_python_that_is_new_enough_make_says_what_is_needed(checkout: Path) -> None:
    put_python(checkout, "python3", fails_at="version_info")
    assert make(checkout).startswith("Trellis needs Python 3.11 or later and found none")
