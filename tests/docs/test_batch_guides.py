"""The programs of the guides to batches and hooks run and print what the guides say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT

PRINTED = [
    ("batches", "book.py", "Birds: 3 chapters"),
    ("batches", "planner.py", "Birds: 3 chapters"),
    ("hooks", "orders.py", "ship -1 failed: no such order"),
]


def programs(guide: str) -> dict[str, str]:
    page = (ROOT / "docs" / "guides" / f"{guide}.md").read_text()
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL))


@pytest.mark.parametrize(("guide", "name", "printed"), PRINTED)
def test_the_program_of_a_guide_runs(guide: str, name: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(programs(guide)[name])
    ran = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.returncode) == (f"{printed}\n", 0), ran.stderr
    page = (ROOT / "docs" / "guides" / f"{guide}.md").read_text()
    assert f"`python {name}` prints `{printed}`" in " ".join(page.split())


def test_every_program_of_these_guides_is_run() -> None:
    found = {(guide, name) for guide in ("batches", "hooks") for name in programs(guide)}
    assert found == {(guide, name) for guide, name, _ in PRINTED}
