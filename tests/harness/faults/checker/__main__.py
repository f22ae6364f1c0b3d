"""`python -m tests.harness.faults.checker FOLDER`: judge the histories of a campaign once more."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness.faults.checker import check
from tests.harness.faults.checker.reading import read_folder
from tests.harness.faults.checker.report import complain, describe


def main() -> int:
    """Read, describe, judge."""
    histories = read_folder(Path(sys.argv[1]))
    print(describe(histories))
    violations = check(histories)
    print(complain(violations) or "no breach found")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
