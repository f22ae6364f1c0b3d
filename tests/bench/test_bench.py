"""The benchmark runs; what it measures is nobody's test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_runs_and_prints_its_table(tmp_path: Path) -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench",
            "--jobs",
            "500",
            "--rounds",
            "1",
            "--folder",
            str(tmp_path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert "engine / floor" in run.stdout
    assert "decide:" in run.stdout
