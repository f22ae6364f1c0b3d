"""Judging a run from outside: three histories that nobody could have agreed on, joined offline.

* the **client log**: what producers asked for, and what they were told (or never heard);
* the **effect log**: what handlers really did, written by themselves to files of their own;
* the **system truth**: the rows and journals of the database, read with plain SQL, or of the
  streams, read as JSON;

and beside them the **nemesis log**: what was done to which process, and when. `check` holds each
rule (C1 conservation, C2 state machine, ...) against all of them and returns every breach with a
witness: the few lines of each history that show it. Nothing here imports Trellis, so a mistake of
the product cannot excuse itself. Start reading with `histories.py`, then any rule.
"""

from __future__ import annotations

from typing import Final

from tests.harness.faults.checker.causes import check_causes
from tests.harness.faults.checker.conservation import check_conservation
from tests.harness.faults.checker.counting import check_counting
from tests.harness.faults.checker.ending import check_ending
from tests.harness.faults.checker.folding import check_folding
from tests.harness.faults.checker.histories import Histories
from tests.harness.faults.checker.keys import check_keys
from tests.harness.faults.checker.outages import check_outages
from tests.harness.faults.checker.owners import check_owners
from tests.harness.faults.checker.projections import check_projections
from tests.harness.faults.checker.settling import check_settling
from tests.harness.faults.checker.shutdown import check_shutdown
from tests.harness.faults.checker.states import check_states
from tests.harness.faults.checker.timing import check_timing
from tests.harness.faults.checker.violations import Violation

RULES: Final = (
    check_conservation,
    check_states,
    check_owners,
    check_settling,
    check_keys,
    check_folding,
    check_counting,
    check_timing,
    check_ending,
    check_causes,
    check_shutdown,
    check_outages,
    check_projections,
)


def check(histories: Histories) -> list[Violation]:
    """Return every breach of every rule."""
    return [violation for rule in RULES for violation in rule(histories)]
