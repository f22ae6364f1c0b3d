"""Run the whole suite on each mutant, and see which of its tests catch it: `make mutants`.

`make test-long` runs only the one test that `CAUGHT_BY` names for a mutant. This takes hours and
shows more: mutants that only one test catches, and quicker tests to name. It fails if a named test
lets its mutant pass.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.catches import CAUGHT_BY
from tests.conformance.mutants import MUTANTS, OF_POSTGRES, SHARED

#: Where the suite runs on an engine, and which of the tests there are its.
SUITES: Final = {
    "sqlite": (Path(__file__).with_name("test_engines.py"), "sqlite"),
    "postgres": (Path(__file__).parents[1] / "engines/postgres/test_conformance.py", "pg18"),
}
_SHOWN: Final = 3


class Timing:
    """A plugin that keeps which tests failed, and how long each test took."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2].partition("[")[0]
        self.seconds[name] += report.duration
        if report.failed:
            self.failed.add(name)

    def catching(self) -> list[str]:
        """Return the tests that failed, the quickest first."""
        return sorted(self.failed, key=self.seconds.__getitem__)


def run_suite(mutant: str, engine: str) -> list[str]:
    """Return the tests that fail on an engine with this fault, the quickest first."""
    seen = Timing()
    suite, chosen = SUITES[engine]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        MUTANTS[mutant](patch)
        pytest.main(
            [
                *("-q", "--no-header", "--no-summary", "--tb=no", "--assert=plain", "-k", chosen),
                *("-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={folder}/tests"),
                str(suite),
            ],
            plugins=[seen],
        )
    return seen.catching()


def runs(engine: str) -> list[str]:
    """Return the mutants of an engine."""
    if engine == "postgres":
        return [*SHARED, *OF_POSTGRES]
    return [mutant for mutant in MUTANTS if mutant not in OF_POSTGRES]


def main() -> int:
    """Run the suite on the chosen mutants; return 1 if a named test lets its mutant pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=SUITES, help="Only on this engine.")
    parser.add_argument("--only", default="", help="Only mutants with these words in their names.")
    chosen = parser.parse_args()
    passed: list[str] = []
    for engine in SUITES if chosen.engine is None else [chosen.engine]:
        for mutant in (each for each in runs(engine) if chosen.only in each):
            catching = run_suite(mutant, engine)
            print(f"{mutant} ({engine}): {len(catching)} tests catch it")
            print("".join(f"  {each}\n" for each in catching[:_SHOWN]), end="", flush=True)
            if CAUGHT_BY[mutant] not in catching:
                passed.append(f"{CAUGHT_BY[mutant]} does not catch: {mutant} ({engine})")
    print("\n".join(passed))
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
