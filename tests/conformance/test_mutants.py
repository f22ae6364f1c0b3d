"""The suite can fail: it catches each deliberate fault of the SQL engines.

The suite runs in this process, once with the fault and once without it: it must fail, then pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.conformance.mutants import MUTANTS, OF_POSTGRES, SHARED
from trellis.testing import conformance

#: Where the suite runs on an engine, and which of the tests there are its.
SUITES: Final = {
    "sqlite": (Path(__file__).with_name("test_engines.py"), "sqlite"),
    "postgres": (Path(__file__).parents[1] / "engines/postgres/test_conformance.py", "pg18"),
}
#: The part or test of the suite that must notice; the whole of it would, too, but takes longer.
NOTICED_BY: Final = {
    "drop the hooks of a job": "TestHooks::test_a_success_creates_its_hook_with_the_outcome",
    "give the hooks of all generations one id": (
        "TestHooks::test_each_generation_fires_and_a_dismissal_does_not"
    ),
    "create the fan-in job of a cancelled batch": (
        "TestStopping::test_a_cancelled_batch_fires_nothing_and_cancels_its_members"
    ),
    "leave a fan-in job out of the outer batch": (
        "TestNestedBatches::test_the_fan_in_job_of_the_inner_batch_is_a_member_of_the_outer_one"
    ),
    "remove members of an unfinished batch": (
        "TestBatchRetention::test_members_of_an_unfinished_batch_are_kept"
    ),
    "let the rest of a failed batch go on": (
        "TestStopping::test_a_failed_member_may_cancel_the_rest"
    ),
    "let an attempt that is over spawn": ("TestJoining::test_an_attempt_that_is_over_adds_nothing"),
    "fire whatever another leader has decided": (
        "TestScheduleEdits::test_a_leader_does_not_store_what_an_edit_has_decided"
    ),
    "forget the jobs of earlier slots": (
        "TestFiring::test_a_slot_is_skipped_while_an_earlier_job_is_unfinished"
    ),
    "start a job after its prerequisite failed": (
        "TestDependencies::test_a_job_whose_prerequisite_fails_is_cancelled_with_all_behind_it"
    ),
    "leave what follows a cancelled job waiting": (
        "TestWaitingForJobs::test_a_long_chain_is_cancelled_to_its_end"
    ),
    "hand no result on to the next job": (
        "TestHandedOnResults::test_the_result_is_the_payload_of_the_next_job"
    ),
    "forget the links beyond the first page": (
        "TestWaitingForJobs::test_many_followers_of_one_job_are_all_released"
    ),
    "count nothing that runs in a claim": (
        "TestConcurrencyLimits::test_sessions_share_the_limit_of_a_queue"
    ),
    "ignore aging": "TestAging::test_aging_holds_between_types_and_queues",
    "spend no token of a key": "TestKeyRates::test_the_jobs_of_a_key_start_by_its_rate",
    "read the feed past transactions that still run": (
        "TestCallerTransaction::test_the_feed_passes_over_nothing_that_a_caller_commits_late"
    ),
    "drop the version guard": "TestConflicts",
    "forget a slot release": "TestAdmission",
    "claim in another order": "TestClaimOrder",
    "hand slots over in another order": "TestTurns",
    "journal a conflict": "TestConflicts",
    "skip a due job": "TestClaim",
    "look too late": "TestTimers",
    "keep the dedupe mark after the claim": "TestDedupe",
    "clear the dedupe mark of an unfinished job": "TestDedupeUnfinished",
    "forget the period of a dedupe mark": "TestDedupePeriod",
    "free a slot whose handler may still run": "TestKeyStatus",
    "free a lock whose handler may still run": "TestLockLingering",
    "believe any note": "TestFences",
    "mix the items of attempts": "TestNotes",
    "renew a session that was reaped": "TestReap",
    "claim under a session that was reaped": "TestClaimLimits",
    "reap by the wall clock": "TestBulkCalls",
    "count a slot once too often": "TestBulkCalls",
    "forget when the job may run": "TestClaim",
    "count a lock of an attempt that is over": "TestLockLeases",
    "forget the virtual time": "TestFairShare",
    "forget where a share ends": "TestFairShare",
    "count cancelled jobs against their tenant": "TestFairShare",
    "give every retry its old turn": "TestFairShare",
    "replace a contract that another has stored": "TestContracts",
    "leave an acceptance out of the audit": "TestContracts",
    "list contracts from the first on": "TestContracts",
    "trim one contract too many": "TestContracts",
    "trim the deployed contract": "TestContracts",
    "give a result no tenant": "TestInheritedTenants",
    "inherit the tenant of the last member": "TestInheritedTenants",
    "ignore a second declaration": "TestHooks",
    "claim from a paused queue": "TestQueues",
    "count a limit once too rarely": "TestConcurrencyLimits",
    "count only the lanes of one limit": "TestConcurrencyLimits",
    "forget what lingers under a limit": "TestConcurrencyLimits",
    "spend no token of a rate": "TestRateLimits",
    "refill a bucket by another clock": "TestRateLimits",
    "fire a schedule that has changed": "TestFiring",
    "edit a schedule after a slot became due": "TestScheduleEdits",
    "forget which slots were decided": "TestFiring",
    "fire a slot too late": "TestFiring",
    "end a watched job without what follows": "TestJoining",
    "forget a member that has not finished": "TestBatches",
    "finish an open batch": "TestBatches",
    "release a job whose prerequisites have not all ended": "TestDependencies",
    "forget to watch a prerequisite": "TestDependencies",
    "let a changed job start before its prerequisites": "TestWaitingForJobs",
    "hand on no result": "TestHandedOnResults",
    "remove a job that another one needs": "TestWaitingForJobs",
    "leave commands out of the audit": "TestAuditOfJobs",
    "record a conflict in the audit": "TestAuditOfJobs",
    "begin a page of the audit with the last entry again": "TestAuditList",
    "record a second request to drain": "TestAuditOfQueuesAndWorkers",
    "skip an event of the feed after each page": "TestFeed",
    "archive a job that runs again": "TestArchive",
    "expire a job twice": "TestArchive",
    "forget removals too early": "TestArchive",
    "repeat an event of the feed": "TestFeed",
    "give the number of a removed event again": "TestFeedLosses",
    "keep the first removed event instead of the last": "TestFeedLosses",
}


class Outcome(NamedTuple):
    """What a run of a part of the suite has shown."""

    exit_code: int
    passed: int
    failed: set[str]


class Counting:
    """A plugin that counts what passed; an error after a test counts as its failure."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed += 1


def run_suite(part: str, engine: str, folder: Path) -> Outcome:
    """Run one part of the suite on an engine, in this process, until a test fails."""
    seen = Counting()
    suite, chosen = SUITES[engine]
    exit_code = pytest.main(
        [
            *("-x", "-q", "--no-header", "--capture=no", f"--basetemp={folder}", "-k", chosen),
            # These belong to the run around this one: processes, cache, and the alarm of a timeout.
            *("-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:faulthandler"),
            *("-o", "timeout=0"),
            f"{suite}::{part}",
        ],
        plugins=[seen],
    )
    return Outcome(int(exit_code), seen.passed, seen.failed)


def test_every_mutant_has_a_part_of_the_suite_that_notices() -> None:
    assert NOTICED_BY.keys() == MUTANTS.keys()
    parts = {part.__name__: part.declared() for part in conformance.SUITE}
    for part, _, test in (noticed.partition("::") for noticed in NOTICED_BY.values()):
        assert not test or test in parts[part]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mutant", "engine"),
    [
        *((mutant, "sqlite") for mutant in MUTANTS if mutant not in OF_POSTGRES),
        *((mutant, "postgres") for mutant in (*SHARED, *OF_POSTGRES)),
    ],
)
def test_the_suite_catches_the_mutant(mutant: str, engine: str, tmp_path: Path) -> None:
    part = NOTICED_BY[mutant]
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[mutant](patch)
        broken = run_suite(part, engine, tmp_path / "broken")
    sound = run_suite(part, engine, tmp_path / "sound")
    # Anything else than a failed test (an import error, nothing collected) is not a catch.
    assert broken.exit_code == pytest.ExitCode.TESTS_FAILED
    assert len(broken.failed) == 1
    assert (sound.exit_code, sound.failed) == (pytest.ExitCode.OK, set())
    assert sound.passed > 0
