"""The suite can fail: each deliberate fault of the SQLite engine is caught by it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.mutants import MUTANTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_suite_catches_the_mutant(mutant: str) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"),
            *("-p", "no:xdist", "-k", "sqlite", "tests/conformance/test_engines.py"),
        ],
        cwd=ROOT,
        env={**os.environ, "TRELLIS_TEST_MUTANT": mutant},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    # 1: a test failed. Anything else (an import error, nothing collected) is not a catch.
    assert run.returncode == 1, run.stdout[-2000:] + run.stderr[-2000:]
    # A journal that does not fold is found after the test, which pytest calls an error.
    assert re.search(r"\b1 (failed|error) in|\b1 (failed|error),", run.stdout)
