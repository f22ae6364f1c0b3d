"""The program of the guide to fair share runs: a late customer is served next."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT

GUIDE = (ROOT / "docs" / "guides" / "fairness.md").read_text()


def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    ((name, text),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "the mail of small came as number 2 of 1001\n"
