"""The guide for the audit: its commands and its example run, and its table has every action."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.cli.shop import make_shop
from tests.harness import ROOT
from trellis.cli.app import run
from trellis.core.audit import Action

GUIDE = (ROOT / "docs" / "guides" / "audit.md").read_text()


@pytest.fixture
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_shop(tmp_path)
    monkeypatch.setenv("TRELLIS_URL", f"sqlite:///{tmp_path / 'jobs.db'}")


@pytest.mark.usefixtures("_shop")
def test_the_commands_run(capfd: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    assert len(lines) == 7
    for line in lines:
        program, *words = shlex.split(line)
        assert (program, run(words)) == ("trellis", 0)
    assert "mail server is down" in capfd.readouterr().out


@pytest.mark.usefixtures("_shop")
async def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the example of the guide
    assert await names["pauses_of_today"]() == ["ann: shop/mails, mail server is down"]


def test_the_table_has_every_action_that_is_recorded() -> None:
    """`Change.action` has this type, so no engine can record another one."""
    cells = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| `")]
    listed = [action for cell in cells for action in re.findall(r"`([a-z]+\.[a-z_]+)`", cell)]
    assert sorted(listed) == sorted(get_args(Action))
