"""What a run has shown, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from tests.harness.faults.checker.causes import second_starts
from tests.harness.faults.checker.conservation import sort_requests
from tests.harness.faults.checker.histories import Histories
from tests.harness.faults.checker.keys import overlap_causes
from tests.harness.faults.checker.shutdown import lateness
from tests.harness.faults.checker.sometimes import count_sometimes
from tests.harness.faults.checker.violations import Violation

_MOST_SHOWN: Final = 20


def describe(histories: Histories) -> str:
    """Sum up what happened."""
    states = Counter(str(row.head["state"]) for row in histories.rows.values())
    faults = Counter(f"{fault.kind} {fault.target}" for fault in histories.faults)
    terms = [fault for fault in histories.faults if fault.kind == "term"]
    last = max(((lateness(fault) + 2_000_000_000) / 1e6 for fault in terms), default=0)
    return "\n".join(
        (
            _line("requests", sort_requests(histories)),
            _line("jobs", states),
            _line("journal", _sizes(histories)),
            _line("faults", faults),
            _line("seen", count_sometimes(histories)),
            _line("second starts", second_starts(histories)),
            _line("handlers of one key at once, the first one's attempt over",
                  overlap_causes(histories)),
            f"slowest stop: {last:.0f} ms after the grace",
        )
    )  # fmt: skip


def _sizes(histories: Histories) -> dict[str, int]:
    return {
        "events": len(histories.events),
        "handlers begun": len(histories.runs),
        "worker sessions": len(histories.sessions),
    }


def _line(title: str, counts: Mapping[str, int]) -> str:
    words = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
    return f"{title}: {words or 'none'}"


def complain(violations: Sequence[Violation]) -> str:
    """Write the breaches, at most a page of them."""
    shown = [str(each) for each in violations[:_MOST_SHOWN]]
    if len(violations) > _MOST_SHOWN:
        shown.append(f"... and {len(violations) - _MOST_SHOWN} more")
    return "\n".join(shown)
