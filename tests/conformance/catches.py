"""Which test of the suite catches which mutant, and how that one test is run.

Each mutant is run with the test that is named here, not with the whole suite, which catches it too
but takes longer; `whole_suite.py` runs that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from inspect import signature
from typing import Any, Final, NamedTuple

import pytest

from tests.conformance.mutants import MUTANTS, Mutant
from trellis.engines.port import Engine
from trellis.errors import EngineClosed
from trellis.testing import ManualClock, conformance
from trellis.testing.conformance.helpers import check_journals
from trellis.testing.conformance.suite import Another

#: A part of the suite and a test of it; of a test with parameters, the first ones.
CAUGHT_BY: Final[dict[str, str]] = {
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
    "let an attempt that is over spawn": "TestJoining::test_an_attempt_that_is_over_adds_nothing",
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
    "drop the version guard": "TestConflicts::test_a_conflict_carries_the_job_as_it_is",
    "forget a slot release": "TestAdmission::test_a_busy_key_rejects_and_names_its_holder",
    "claim in another order": (
        "TestClaimOrder::test_jobs_come_by_their_due_time_whatever_the_size_of_a_claim"
    ),
    "hand slots over in another order": (
        "TestTurns::test_of_jobs_that_are_created_together_the_first_in_order_gets_the_slot"
    ),
    "journal a conflict": "TestConflicts::test_of_concurrent_settlements_exactly_one_is_stored",
    "skip a due job": "TestClaim::test_claiming_a_retry_stores_what_the_lifecycle_decides",
    "look too late": "TestTimers::test_a_waiting_job_is_due_at_its_deadline",
    "keep the dedupe mark after the claim": "TestDedupe::test_the_first_claim_clears_the_mark",
    "clear the dedupe mark of an unfinished job": (
        "TestDedupeUnfinished::test_the_key_holds_while_the_job_runs_and_waits_for_its_retry"
    ),
    "forget the period of a dedupe mark": (
        "TestDedupePeriod::test_a_skipped_job_keeps_its_key_for_the_period"
    ),
    "free a slot whose handler may still run": (
        "TestKeyStatus::test_a_blocked_key_is_reported_as_blocked_until_it_is_released"
    ),
    "free a lock whose handler may still run": (
        "TestLockLingering::test_the_lock_stays_held_until_the_worker_reports_that_the_handler_stopped"
    ),
    "believe any note": "TestFences::test_an_old_attempt_notes_nothing",
    "mix the items of attempts": (
        "TestNotes::test_items_belong_to_their_attempt_and_stay_after_the_end"
    ),
    "renew a session that was reaped": "TestReap::test_a_reaped_session_cannot_be_renewed",
    "claim under a session that was reaped": (
        "TestClaimLimits::test_an_unknown_or_ended_session_claims_nothing"
    ),
    "reap by the wall clock": "TestBulkCalls::test_many_lost_attempts_are_given_up_together",
    "count a slot once too often": "TestBulkCalls::test_many_of_one_key_wait_in_line",
    "forget when the job may run": "TestClaim::test_a_handed_back_job_keeps_its_place",
    "count a lock of an attempt that is over": (
        "TestLockLeases::test_an_ended_caller_gets_no_lock_and_is_named_in_the_answer"
    ),
    "forget the virtual time": "TestFairShare::test_a_tenant_that_comes_late_is_served_next",
    "forget where a share ends": "TestFairShare::test_jobs_created_one_by_one_take_turns",
    "count cancelled jobs against their tenant": (
        "TestFairShare::test_cancelled_jobs_do_not_count_against_their_tenant"
    ),
    "give every retry its old turn": "TestFairShare::test_retries_take_a_new_turn",
    "replace a contract that another has stored": (
        "TestContracts::test_a_caller_that_knows_an_older_record_stores_nothing"
    ),
    "leave an acceptance out of the audit": (
        "TestContracts::test_only_an_acceptance_is_in_the_audit"
    ),
    "list contracts from the first on": (
        "TestContracts::test_a_caller_that_knows_an_older_record_stores_nothing"
    ),
    "trim one contract too many": "TestContracts::test_the_latest_hundred_are_kept",
    "trim the deployed contract": (
        "TestContracts::test_the_deployed_one_is_kept_however_many_are_accepted"
    ),
    "give a result no tenant": (
        "TestInheritedTenants::test_a_job_that_takes_a_result_gets_its_tenant_with_it"
    ),
    "inherit the tenant of the last member": (
        "TestInheritedTenants::test_a_fan_in_has_its_own_tenant_or_that_of_the_first_member"
    ),
    "ignore a second declaration": "TestHooks::test_the_latest_declaration_of_a_type_counts",
    "claim from a paused queue": "TestQueues::test_nothing_is_claimed_from_a_paused_queue",
    "count a limit once too rarely": (
        "TestConcurrencyLimits::test_a_lost_job_counts_until_its_session_is_reaped"
    ),
    "count only the lanes of one limit": (
        "TestConcurrencyLimits::test_the_limit_of_a_type_counts_its_jobs_in_all_queues"
    ),
    "forget what lingers under a limit": (
        "TestConcurrencyLimits::test_an_ended_attempt_counts_while_its_handler_may_still_run"
    ),
    "spend no token of a rate": "TestRateLimits::test_the_answer_names_when_the_next_token_comes",
    "refill a bucket by another clock": (
        "TestRateLimits::test_the_answer_names_when_the_next_token_comes"
    ),
    "fire a schedule that has changed": "TestFiring::test_a_decision_is_stored_once",
    "edit a schedule after a slot became due": (
        "TestScheduleEdits::test_an_edit_is_decided_again_when_a_slot_becomes_due_meanwhile"
    ),
    "forget which slots were decided": (
        "TestFiring::test_a_slot_in_the_ledger_is_not_created_again"
    ),
    "fire a slot too late": "TestFiring::test_a_slot_creates_its_job_when_it_is_due",
    "end a watched job without what follows": (
        "TestJoining::test_a_coalesced_member_stands_for_the_existing_job"
    ),
    "forget a member that has not finished": (
        "TestBatches::test_the_last_end_of_a_sealed_batch_creates_the_fan_in_job"
    ),
    "finish an open batch": "TestBatches::test_an_open_batch_never_fires",
    "release a job whose prerequisites have not all ended": (
        "TestDependencies::test_a_job_waits_until_all_that_it_follows_have_ended"
    ),
    "forget to watch a prerequisite": (
        "TestDependencies::test_a_job_that_follows_another_starts_only_after_its_success"
    ),
    "let a changed job start before its prerequisites": (
        "TestWaitingForJobs::test_a_changed_job_waits_on"
    ),
    "hand on no result": "TestHandedOnResults::test_the_result_is_the_payload_of_the_next_job",
    "remove a job that another one needs": (
        "TestWaitingForJobs::test_a_job_is_kept_while_one_that_follows_it_has_not_ended"
    ),
    "leave commands out of the audit": (
        "TestAuditOfJobs::test_a_change_of_an_ended_job_leaves_one_entry"
    ),
    "record a conflict in the audit": (
        "TestAuditOfJobs::test_a_conflict_leaves_none_and_the_next_try_one"
    ),
    "begin a page of the audit with the last entry again": (
        "TestAuditList::test_pages_go_back_in_time"
    ),
    "record a second request to drain": (
        "TestAuditOfQueuesAndWorkers::test_the_drain_of_a_worker_leaves_one_entry"
    ),
    "skip an event of the feed after each page": (
        "TestFeed::test_the_feed_can_be_resumed_after_every_event"
    ),
    "archive a job that runs again": (
        "TestArchive::test_a_job_that_runs_again_is_kept_for_its_new_end"
    ),
    "expire a job twice": "TestArchive::test_a_job_that_runs_again_is_kept_for_its_new_end",
    "forget removals too early": "TestArchive::test_removals_are_forgotten_after_a_while",
    "repeat an event of the feed": "TestFeed::test_the_feed_can_be_resumed_after_every_event",
    "give the number of a removed event again": (
        "TestFeedLosses::test_positions_of_removed_events_are_not_given_again"
    ),
    "keep the first removed event instead of the last": (
        "TestFeedLosses::test_a_reader_that_has_lost_events_is_told"
    ),
}
_PARTS: Final = {part.__name__: part for part in conformance.SUITE}


class Given(NamedTuple):
    """What the fixtures of an engine's author give to a test of the suite."""

    engine: Engine
    clock: ManualClock
    another: Another
    caller: Any


#: Opens a store that is empty.
Opening = Callable[[], AbstractAsyncContextManager[Given]]


@asynccontextmanager
async def given(
    make: Callable[[], Engine], clock: ManualClock, caller: object
) -> AsyncIterator[Given]:
    """Open an engine, and further ones on the same store when a test asks for them."""
    async with AsyncExitStack() as opened:

        async def another() -> Engine:
            engine = make()
            await engine.open()
            opened.push_async_callback(engine.close)
            return engine

        yield Given(await another(), clock, another, caller)


async def check_mutant(mutant: str, opening: Opening) -> None:
    """Assert that the test of a mutant fails with it, and passes without it."""
    await check_caught(MUTANTS[mutant], CAUGHT_BY[mutant], opening)


async def check_caught(mutate: Mutant, name: str, opening: Opening) -> None:
    """Assert that a test of the suite fails with a fault, and passes without it."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        async with opening() as broken:
            assert await _fails(name, broken), f"{name} does not catch the mutant"
    async with opening() as sound:
        await _run(name, sound)


async def _fails(name: str, broken: Given) -> bool:
    try:
        await _run(name, broken)
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - a test fails by any of them
        return True
    return False


async def _run(name: str, of: Given) -> None:
    """Run a test as the suite does: afterwards every journal folds to its head."""
    part, _, test = name.partition("::")
    method = getattr(_PARTS[part](), test)
    values = of._asdict() | _parameters(method)
    await method(**{each: values[each] for each in signature(method).parameters})
    with suppress(EngineClosed):
        await check_journals(of.engine)


def _parameters(test: object) -> dict[str, object]:
    """Return the first of the parameters that a test has."""
    first: dict[str, object] = {}
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names, values = mark.args
            several = not isinstance(names, str)
            first |= zip(names, values[0], strict=True) if several else {names: values[0]}
    return first
