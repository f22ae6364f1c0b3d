"""C10: once the faults are over, everything comes to an end."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.faults.checker.histories import Histories
from tests.harness.faults.checker.settling import ENDED
from tests.harness.faults.checker.violations import Violation, about

_RULE = "C10 liveness"


def check_ending(histories: Histories) -> Iterator[Violation]:
    """Refuse jobs that still wait or run."""
    for job, row in histories.rows.items():
        if row.head["state"] not in ENDED:
            yield about(histories, _RULE, f"{job} is still {row.head['state']}", job)
