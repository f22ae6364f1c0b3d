"""C16: the projection that was kept through all faults is the one that is made from nothing.

The streams are the truth and a projection is only what they say. So every row that an admin runtime
kept while it was killed and started again must be in a projection that is made afterwards from the
first message on, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.faults.checker.histories import Histories
from tests.harness.faults.checker.violations import Violation, about

_RULE = "C16 projection"


def check_projections(histories: Histories) -> Iterator[Violation]:
    """Refuse every row that differs."""
    for each in histories.differences:
        text = f"{each.table} {each.row}: the projection has {each.kept}; rebuilt {each.rebuilt}"
        # A row that names a job is shown with its journal.
        jobs = [job for job in histories.rows if job in each.row]
        yield about(histories, _RULE, text, *jobs)
