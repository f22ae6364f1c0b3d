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
#: The part of the suite that must notice; the whole of it would, too, but takes longer.
NOTICED_BY = {
    "drop the version guard": "TestConflicts",
    "forget a slot release": "TestAdmission",
    "claim in another order": "TestClaiming",
    "journal a conflict": "TestCommitting",
    "skip a due job": "TestClaiming",
    "look too late": "TestAgenda",
    "keep the dedupe mark after the claim": "TestDedupe",
    "free a slot whose handler may still run": "TestKeyStatus",
    "free a lock whose handler may still run": "TestLockLingering",
    "believe any note": "TestFences",
    "renew a session that was reaped": "TestClaimLimits",
    "reap by the wall clock": "TestBatches",
    "count a slot once too often": "TestBatches",
    "forget when the job may run": "TestClaiming",
    "count a lock of an attempt that is over": "TestLockLeases",
    "claim from a paused queue": "TestQueues",
}


def test_every_mutant_has_a_part_of_the_suite_that_notices() -> None:
    assert NOTICED_BY.keys() == MUTANTS.keys()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_suite_catches_the_mutant(mutant: str) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"),
            *("-p", "no:xdist", "-k", f"sqlite and {NOTICED_BY[mutant]}"),
            "tests/conformance/test_engines.py",
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
