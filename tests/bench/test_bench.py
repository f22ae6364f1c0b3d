"""The benchmark runs and says all it should; how fast anything is, is nobody's test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.report import ROWS
from bench.sizes import QUICK
from tests.harness import ROOT

FACTS = [
    "processor", "system", "file system", "Python", "SQLite", "Trellis", "Huey", "fdatasync",
    "others", "decide", "durability",
]  # fmt: skip


@pytest.mark.long
def test_a_quick_run_measures_everybody_judges_every_bar_and_keeps_every_round(
    tmp_path: Path,
) -> None:
    folder, results = tmp_path / "disk", tmp_path / "results"
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--folder", folder, "--results", results],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    check_table(run.stdout)
    check_verdicts(run.stdout)
    assert [line.split(": ")[0] for line in run.stdout.splitlines()[-12:-1]] == FACTS
    check_kept(results)
    assert list(folder.iterdir()) == []


def check_table(printed: str) -> None:
    lines = [line.strip("│").split("│") for line in printed.splitlines() if line.startswith("│")]
    rows = [[cell.strip() for cell in line] for line in lines]
    assert [(row[0], row[1]) for row in rows] == [
        ("" if number else str(figure), name)
        for figure, names in ROWS.items()
        for number, name in enumerate(names.values())
    ]
    lacking = [row for row in rows if row[2] == "has none"]  # Huey has no bulk call
    assert [row[1] for row in lacking] == ["Huey, fsync", "Huey, no fsync"]
    for what, who, median, _, ratio in rows:
        assert median[0].isdigit() or median == "has none", who
        assert bool(ratio) == (not what and median != "has none"), who


def check_verdicts(printed: str) -> None:
    verdicts = [line for line in printed.splitlines() if line.startswith(("PASS", "MISS"))]
    assert len(verdicts) == 6
    assert not [line for line in verdicts if "not measured" in line]


def check_kept(results: Path) -> None:
    (file,) = results.iterdir()
    assert file.name.endswith("-quick.json")
    text = file.read_text(encoding="utf-8")
    kept = json.loads(text)
    assert len(kept["rounds"]) == len(kept["weather"]) == QUICK.rounds
    assert len(kept["rounds"][0]["Trellis"]["create to start, ms"]) == QUICK.latencies
    assert str(ROOT) not in text


def test_the_floor_knows_nothing_of_trellis() -> None:
    look = "import sys, bench.floor_sqlite; print(any('trellis' in name for name in sys.modules))"
    run = subprocess.run(
        [sys.executable, "-S", "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "False"
