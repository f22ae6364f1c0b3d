"""The suite that every engine must pass, whoever wrote it.

Give it four fixtures and import it into a test module of your own; pytest does the rest (with
pytest-asyncio in auto mode):

    from trellis.testing import ManualClock
    from trellis.testing.conformance import *

    @pytest.fixture
    def clock(): return ManualClock()

    @pytest.fixture
    async def engine(clock):
        engine = MyEngine(..., clock=clock)
        await engine.open()
        yield engine
        await engine.close()

    @pytest.fixture
    def another(clock):
        async def open_another(): ...  # one more engine object on the same store, opened
        return open_another

    @pytest.fixture
    def guest(engine): ...  # a connection of the application, see `conformance.guests`

`DECLARED` is the number of tests: check that as many were collected. A test may be skipped only
because `engine.capabilities` says so; `NEEDS` names those tests. After every test the journal of
every job must fold to its head. `trellis.testing.model` goes on from here with random commands.

For readable failures, call `pytest.register_assert_rewrite("trellis.testing.conformance")` in your
`conftest.py` before importing this.
"""

from __future__ import annotations

from typing import Final

from trellis.testing.conformance.batches import TestBatches
from trellis.testing.conformance.caller_transaction import TestGuests
from trellis.testing.conformance.cancel import TestCancelling
from trellis.testing.conformance.claim import (
    TestClaiming,
    TestClaimLimits,
    TestClaimOrder,
    TestClaimTimes,
)
from trellis.testing.conformance.commit import TestCommitting, TestConflicts
from trellis.testing.conformance.create import TestCreating
from trellis.testing.conformance.dedupe import TestDedupe, TestIdempotency
from trellis.testing.conformance.drain import TestDraining
from trellis.testing.conformance.durability import TestDurability, TestOpening, TestSharing
from trellis.testing.conformance.failures import TestFailures
from trellis.testing.conformance.fences import TestFences
from trellis.testing.conformance.hints import TestHints
from trellis.testing.conformance.keys import TestAdmission, TestKeyStatus, TestRevival
from trellis.testing.conformance.late_results import TestLateResults, TestLostReplies
from trellis.testing.conformance.leases import TestLeaseClock, TestReaping, TestRenewing
from trellis.testing.conformance.lock_lingering import TestLockLingering
from trellis.testing.conformance.locks import TestLockLeases, TestLocks
from trellis.testing.conformance.next_due import TestUpcoming
from trellis.testing.conformance.notes import TestLogs, TestNotes
from trellis.testing.conformance.operators import TestOperators
from trellis.testing.conformance.outcomes import TestOutcomes
from trellis.testing.conformance.queues import TestQueues
from trellis.testing.conformance.reads import TestCounting, TestFinding, TestLoading
from trellis.testing.conformance.removal import TestRemoving
from trellis.testing.conformance.retention import TestRetention, TestSessionRetention
from trellis.testing.conformance.slot_lingering import TestLingering
from trellis.testing.conformance.slots import TestHeldForTheJob, TestSlots
from trellis.testing.conformance.suite import EngineSuite, capability_of
from trellis.testing.conformance.timers import TestAgenda

#: The parts of the suite.
SUITE: Final[tuple[type[EngineSuite], ...]] = (
    TestCreating,
    TestClaiming,
    TestClaimOrder,
    TestClaimLimits,
    TestClaimTimes,
    TestCommitting,
    TestConflicts,
    TestBatches,
    TestFences,
    TestRenewing,
    TestReaping,
    TestLeaseClock,
    TestDraining,
    TestLocks,
    TestLockLeases,
    TestLockLingering,
    TestAdmission,
    TestKeyStatus,
    TestRevival,
    TestSlots,
    TestHeldForTheJob,
    TestLingering,
    TestDedupe,
    TestIdempotency,
    TestAgenda,
    TestUpcoming,
    TestNotes,
    TestLogs,
    TestLateResults,
    TestLostReplies,
    TestCancelling,
    TestRetention,
    TestSessionRetention,
    TestRemoving,
    TestLoading,
    TestFinding,
    TestCounting,
    TestFailures,
    TestQueues,
    TestOutcomes,
    TestOperators,
    TestHints,
    TestOpening,
    TestDurability,
    TestSharing,
    TestGuests,
)

#: How many tests the suite has.
DECLARED: Final = sum(len(part.declared()) for part in SUITE)

#: Tests that need a capability, by name.
NEEDS: Final[dict[str, str]] = {
    f"{part.__name__}.{name}": needed
    for part in SUITE
    for name in part.declared()
    if (needed := capability_of(getattr(part, name))) is not None
}

__all__ = [part.__name__ for part in SUITE]
