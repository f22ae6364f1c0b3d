"""C15: an outage of the whole server, however long, takes no job from a worker.

While the server is away nobody can renew a lease, so after its return everybody gets a full lease
to be heard again before anybody is given up. A lost lease therefore needs another reason: something
was done to the worker's processes, or it was heard after the outage and fell silent later. (A keyed
handler that its own worker stops during an outage is no such loss: that worker's session lives.)
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.faults.checker.histories import Histories, transitions
from tests.harness.faults.checker.violations import Violation, about, show_fault

_RULE = "C15 outages"


def check_outages(histories: Histories) -> Iterator[Violation]:
    """Look for attempts that were lost for no reason but an outage."""
    for job, journal in histories.journals.items() if histories.outages else ():
        for event in transitions(journal):
            if event.error_code != "lease_lost" or histories.faults_before(event):
                continue
            outage = histories.outage_behind(event)
            if outage is not None:
                text = f"{job}: {event.fence} was lost because the server was away"
                told = about(histories, _RULE, text, job, at=event.seq)
                yield Violation(told.rule, told.text, (*told.witness, show_fault(outage)))
