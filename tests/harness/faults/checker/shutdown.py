"""C14: a worker that is told to stop is gone within its grace and two seconds, stuck or not.

Time for which the kernel let it stand in line for a processor is not the worker's; the nemesis
notes how long that was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.harness.faults.checker.histories import Fault, Histories
from tests.harness.faults.checker.violations import Violation, show_fault

_RULE = "C14 shutdown"
_LAST_MOMENT: Final = 2_000_000_000


def check_shutdown(histories: Histories) -> Iterator[Violation]:
    """Compare when each was told with when it was gone."""
    for fault in histories.faults:
        if fault.kind != "term":
            continue
        if fault.until is None:
            yield Violation(_RULE, "a worker told to stop never went", (show_fault(fault),))
        elif (late := lateness(fault)) > 0:
            text = f"a worker was gone {late / 1e6:.0f} ms after its grace and two seconds"
            yield Violation(_RULE, text, (show_fault(fault),))


def lateness(fault: Fault) -> int:
    """Return by how many nanoseconds a worker outstayed; below zero if it did not."""
    return (fault.until or 0) - fault.t - fault.held_up - fault.grace - _LAST_MOMENT
