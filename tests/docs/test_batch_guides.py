"""The programs of the guides to batches and hooks run and print what the guides say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT


@pytest.mark.parametrize(
    ("guide", "printed"),
    [("batches", "Birds: 3 chapters\n"), ("hooks", "ship -1 failed: no such order\n")],
)
def test_the_program_of_a_guide_runs(guide: str, printed: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / f"{guide}.md").read_text()
    ((name, text),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.returncode) == (printed, 0), ran.stderr
    assert f"`{printed.strip()}`" in page
