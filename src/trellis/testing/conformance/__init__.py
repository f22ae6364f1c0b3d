"""The conformance suite: every engine must pass it.

Import it into a test module and define four fixtures there (pytest-asyncio in auto mode):

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
    def caller(engine): ...  # a connection of the application, see `caller_transaction.py`

`DECLARED` is the number of tests: check that as many were collected. A test may be skipped only
when `engine.capabilities` lacks what it needs; `NEEDS` names those tests. After every test the
journal of every job must fold to its head. `trellis.testing.model` adds random commands to this.

For readable failures, call `pytest.register_assert_rewrite("trellis.testing.conformance")` in your
`conftest.py` before importing this.
"""

from __future__ import annotations

from typing import Final

from trellis.testing.conformance.adjustments import TestAdjust
from trellis.testing.conformance.archive import TestArchive
from trellis.testing.conformance.audit import (
    TestAuditList,
    TestAuditOfBatches,
    TestAuditOfJobs,
    TestAuditOfQueuesAndWorkers,
)
from trellis.testing.conformance.batch_members import TestBatchRetention, TestJoining
from trellis.testing.conformance.batches import TestBatches, TestNestedBatches, TestStopping
from trellis.testing.conformance.bulk_calls import TestBulkCalls
from trellis.testing.conformance.caller_transaction import TestCallerTransaction
from trellis.testing.conformance.cancel import TestCancel
from trellis.testing.conformance.claim import (
    TestClaim,
    TestClaimLimits,
    TestClaimOrder,
    TestClaimTimes,
)
from trellis.testing.conformance.commit import (
    TestCommit,
    TestConflicts,
    TestSeveralDecisionsAboutAJob,
)
from trellis.testing.conformance.contracts import TestContracts
from trellis.testing.conformance.create import TestCreate, TestTogether
from trellis.testing.conformance.dedupe import (
    TestDedupe,
    TestDedupePeriod,
    TestDedupeUnfinished,
    TestIdempotency,
)
from trellis.testing.conformance.dependencies import (
    TestDependencies,
    TestDependentCreation,
    TestHandedOnResults,
    TestWaitingForJobs,
)
from trellis.testing.conformance.durability import TestDurability, TestOpen, TestSharedStore
from trellis.testing.conformance.error_filters import TestFailures
from trellis.testing.conformance.facts import TestFacts, TestWhoRanAJob
from trellis.testing.conformance.fairness import TestAging, TestFairShare, TestInheritedTenants
from trellis.testing.conformance.feed import TestFeed, TestFeedLosses
from trellis.testing.conformance.fences import TestFences
from trellis.testing.conformance.hints import TestHints
from trellis.testing.conformance.hooks import TestHooks
from trellis.testing.conformance.key_rates import TestKeyRates, TestKeyRateSettings
from trellis.testing.conformance.keys import TestAdmission, TestKeyStatus, TestRevival
from trellis.testing.conformance.late_results import TestLateResults, TestLostReplies
from trellis.testing.conformance.leases import TestLeaseClock, TestReap, TestRenewal
from trellis.testing.conformance.limits import (
    TestConcurrencyLimits,
    TestLimitSettings,
    TestRateLimits,
)
from trellis.testing.conformance.lock_lingering import TestLockLingering
from trellis.testing.conformance.locks import TestLockLeases, TestLocks
from trellis.testing.conformance.next_due import TestNextDue
from trellis.testing.conformance.notes import TestLogs, TestNotes
from trellis.testing.conformance.operators import TestOperators
from trellis.testing.conformance.outcomes import TestOutcomes
from trellis.testing.conformance.policies import TestPolicyInForce
from trellis.testing.conformance.queues import (
    TestDrainOfAllQueues,
    TestQueues,
    TestQueuesOfTypes,
)
from trellis.testing.conformance.rates import TestRates
from trellis.testing.conformance.reads import TestCount, TestFind, TestLoad
from trellis.testing.conformance.removal import TestRemoval
from trellis.testing.conformance.retention import TestRetention, TestSessionRetention
from trellis.testing.conformance.schedule_edits import TestScheduleChanges, TestScheduleEdits
from trellis.testing.conformance.schedules import TestFiring, TestSchedules
from trellis.testing.conformance.slot_lingering import TestSlotLingering
from trellis.testing.conformance.slots import TestSlots, TestSlotsHeldByJobs, TestTurns
from trellis.testing.conformance.suite import EngineSuite, capabilities_of
from trellis.testing.conformance.timers import TestTimers
from trellis.testing.conformance.tokens import TestTokens
from trellis.testing.conformance.worker_drain import TestDrain

#: The parts of the suite.
SUITE: Final[tuple[type[EngineSuite], ...]] = (
    TestCreate,
    TestTogether,
    TestClaim,
    TestClaimOrder,
    TestClaimLimits,
    TestClaimTimes,
    TestFairShare,
    TestInheritedTenants,
    TestAging,
    TestPolicyInForce,
    TestCommit,
    TestConflicts,
    TestSeveralDecisionsAboutAJob,
    TestBulkCalls,
    TestHooks,
    TestBatches,
    TestJoining,
    TestStopping,
    TestNestedBatches,
    TestBatchRetention,
    TestFences,
    TestRenewal,
    TestReap,
    TestLeaseClock,
    TestDrain,
    TestLocks,
    TestLockLeases,
    TestLockLingering,
    TestAdmission,
    TestKeyStatus,
    TestRevival,
    TestSlots,
    TestSlotsHeldByJobs,
    TestTurns,
    TestSlotLingering,
    TestDedupe,
    TestDedupePeriod,
    TestDedupeUnfinished,
    TestIdempotency,
    TestDependencies,
    TestDependentCreation,
    TestHandedOnResults,
    TestWaitingForJobs,
    TestTimers,
    TestNextDue,
    TestNotes,
    TestLogs,
    TestLateResults,
    TestLostReplies,
    TestCancel,
    TestRetention,
    TestSessionRetention,
    TestArchive,
    TestRemoval,
    TestLoad,
    TestFind,
    TestCount,
    TestFacts,
    TestRates,
    TestWhoRanAJob,
    TestFailures,
    TestDrainOfAllQueues,
    TestQueues,
    TestQueuesOfTypes,
    TestConcurrencyLimits,
    TestRateLimits,
    TestKeyRates,
    TestKeyRateSettings,
    TestLimitSettings,
    TestOutcomes,
    TestOperators,
    TestAdjust,
    TestAuditOfJobs,
    TestAuditOfQueuesAndWorkers,
    TestAuditList,
    TestAuditOfBatches,
    TestFeed,
    TestFeedLosses,
    TestSchedules,
    TestFiring,
    TestScheduleEdits,
    TestScheduleChanges,
    TestContracts,
    TestTokens,
    TestHints,
    TestOpen,
    TestDurability,
    TestSharedStore,
    TestCallerTransaction,
)

#: How many tests the suite has.
DECLARED: Final = sum(len(part.declared()) for part in SUITE)

#: Tests that need capabilities, by name.
NEEDS: Final[dict[str, tuple[str, ...]]] = {
    f"{part.__name__}.{name}": needed
    for part in SUITE
    for name in part.declared()
    if (needed := capabilities_of(getattr(part, name)))
}

__all__ = [part.__name__ for part in SUITE]
