"""The program of the guide to limits runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT

GUIDE = (ROOT / "docs" / "guides" / "limits.md").read_text()


def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    ((name, text),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "queue letters: 2 at a time, 100 per 1s",
        "type ask_supplier: 10 per 1m (burst 3)",
        "{'completed': 3}",
    ]
