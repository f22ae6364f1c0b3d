"""The program of the guide to the feed runs, stops and goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT

GUIDE = (ROOT / "docs" / "guides" / "feed.md").read_text()


def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    ((name, text),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / name).write_text(text)
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (ran.stdout, ran.returncode) == ("3 jobs are indexed\n", 0), ran.stderr
