"""Which conformance tests the JetStream engine cannot pass, and why."""

from __future__ import annotations

from trellis.engines.capabilities import WITHOUT, Capabilities
from trellis.engines.jetstream import JetStreamEngine
from trellis.testing import conformance

#: By the capability that is missing.
SKIPPED = {
    "ordered": """
        TestAging.test_a_change_of_aging_reaches_a_worker_that_already_claims
        TestAging.test_aging_can_be_turned_off_again
        TestAging.test_aging_holds_between_types_and_queues
        TestAging.test_aging_lifts_what_waits_long
        TestAging.test_slots_of_keys_are_handed_over_by_age
        TestAging.test_the_jobs_ahead_are_counted_by_age
        TestClaimLimits.test_the_limit_holds_over_all_demands_together
        TestClaimLimits.test_the_types_of_one_demand_share_its_limit
        TestClaimOrder.test_claims_one_by_one_come_in_the_same_order
        TestClaimOrder.test_jobs_come_by_their_due_time_whatever_the_size_of_a_claim
        TestFairShare.test_a_job_moved_to_another_queue_takes_a_turn_there
        TestFairShare.test_a_repeated_create_takes_no_second_turn
        TestFairShare.test_a_revived_job_takes_a_turn
        TestFairShare.test_a_running_job_that_was_moved_takes_a_turn_when_it_is_handed_back
        TestFairShare.test_a_share_is_forgotten_when_it_is_over
        TestFairShare.test_a_tenant_that_comes_late_is_served_next
        TestFairShare.test_a_tenant_whose_job_was_just_served_is_not_served_twice
        TestFairShare.test_a_weight_counts_from_the_job_that_has_it
        TestFairShare.test_cancelled_jobs_do_not_count_against_their_tenant
        TestFairShare.test_delayed_jobs_take_turns_when_their_time_has_come
        TestFairShare.test_each_queue_has_its_own_shares
        TestFairShare.test_jobs_created_one_by_one_take_turns
        TestFairShare.test_jobs_without_a_tenant_keep_their_due_time
        TestFairShare.test_keys_hand_their_slots_over_by_turns
        TestFairShare.test_late_comers_have_no_claim_on_the_turns_before_them
        TestFairShare.test_priority_comes_before_turns
        TestFairShare.test_retries_take_a_new_turn
        TestFairShare.test_snoozed_jobs_of_one_tenant_do_not_delay_another
        TestFairShare.test_tenants_take_turns
        TestFairShare.test_the_jobs_ahead_are_counted_by_queue_and_type
        TestFairShare.test_the_jobs_ahead_are_counted_by_turns
        TestFairShare.test_the_jobs_of_a_tenant_run_in_their_order
        TestFairShare.test_the_types_of_a_queue_share_its_turns
        TestFairShare.test_two_thousand_jobs_of_a_tenant_delay_another_by_one_turn
        TestFairShare.test_weights_give_more_turns
        TestFairShare.test_work_that_was_handed_back_keeps_its_place
        TestInheritedTenants.test_a_hook_takes_a_turn_of_the_tenant_of_its_job
        TestInheritedTenants.test_a_job_that_takes_a_result_gets_its_tenant_with_it
        TestInheritedTenants.test_a_result_that_is_there_already_gives_a_new_job_its_tenant
    """,
    "split_types": """
        TestClaimLimits.test_a_type_is_demanded_from_its_queue_and_service
        TestQueues.test_other_queues_go_on_while_one_is_paused
        TestQueuesOfTypes.test_a_demand_for_some_queues_leaves_the_others
    """,
    "boot_clock": """
        TestLeaseClock.test_a_reboot_voids_every_lease
        TestLeaseClock.test_a_wall_clock_set_back_saves_no_lease
        TestLeaseClock.test_a_wall_clock_set_forward_lapses_no_lease
        TestLockLeases.test_a_reboot_ends_every_lock
        TestLockLingering.test_a_lock_that_lingered_is_free_after_a_reboot
        TestLockLingering.test_a_wall_clock_that_is_set_ends_no_lingering_lock
        TestSlotLingering.test_a_slot_that_lingered_is_free_after_a_reboot
        TestSlotLingering.test_a_wall_clock_step_ends_no_lingering_slot
    """,
    "key_rates": """
        TestKeyRateSettings.test_a_changed_declaration_reaches_jobs_that_wait
        TestKeyRateSettings.test_a_lowered_rate_counts_for_jobs_that_have_a_slot
        TestKeyRateSettings.test_a_raised_rate_reaches_jobs_that_wait
        TestKeyRateSettings.test_a_rate_counts_for_jobs_that_could_have_started_without_it
        TestKeyRateSettings.test_a_rate_that_is_lifted_leaves_the_slots
        TestKeyRateSettings.test_engine_objects_share_the_rate
        TestKeyRateSettings.test_the_first_job_declares_the_rate_of_its_keys
        TestKeyRateSettings.test_what_an_operator_set_is_audited_and_reset
        TestKeyRates.test_a_bucket_that_is_full_is_forgotten
        TestKeyRates.test_a_cancelled_job_leaves_its_token_to_the_next
        TestKeyRates.test_a_clock_that_was_set_back_delays_by_one_bucket_at_most
        TestKeyRates.test_a_job_that_is_created_while_another_waits_to_start_follows_by_the_rate
        TestKeyRates.test_a_job_that_was_handed_back_takes_another_token
        TestKeyRates.test_a_retry_that_keeps_its_slot_takes_a_token_and_lets_no_other_pass
        TestKeyRates.test_a_retry_waits_for_a_token_of_its_key
        TestKeyRates.test_an_end_frees_a_slot_but_gives_no_token
        TestKeyRates.test_jobs_of_a_paused_queue_do_not_start_together_when_it_is_resumed
        TestKeyRates.test_jobs_that_a_claim_makes_due_start_by_the_rate
        TestKeyRates.test_jobs_that_are_claimed_one_by_one_get_the_whole_burst
        TestKeyRates.test_jobs_that_found_no_worker_do_not_start_together_when_one_comes
        TestKeyRates.test_the_first_job_of_a_type_takes_a_token_when_a_claim_promotes_it
        TestKeyRates.test_the_jobs_of_a_key_start_by_its_rate
    """,
    "transactions": """
        TestCallerTransaction.test_a_call_that_fails_leaves_the_transaction_as_it_was
        TestCallerTransaction.test_a_rollback_forgets_everything
        TestCallerTransaction.test_no_reader_sees_a_job_before_the_commit
        TestCallerTransaction.test_the_feed_passes_over_nothing_that_a_caller_commits_late
        TestCallerTransaction.test_what_a_rolled_back_caller_added_is_added_again_for_the_next
    """,
    "caller_transactions": """
        TestCallerTransaction.test_a_caller_needs_no_open_engine
        TestCallerTransaction.test_a_caller_s_commit_is_noticed_by_those_who_wait_for_work
        TestCallerTransaction.test_a_caller_s_job_is_admitted_by_every_rule_of_create
        TestCallerTransaction.test_a_caller_s_job_passes_the_key_s_gate
        TestCallerTransaction.test_calls_of_one_transaction_know_of_each_other
        TestCallerTransaction.test_dedupe_keys_of_a_callers_jobs_hold_as_long_as_those_of_others
        TestCallerTransaction.test_jobs_of_caller_and_others_are_claimed_in_one_order
        TestCallerTransaction.test_of_jobs_that_are_stored_together_none_is_left_if_one_is_refused
        TestCallerTransaction.test_what_a_caller_creates_is_stored_as_create_stores_it
    """,
}


def test_exactly_these_conformance_tests_are_skipped() -> None:
    can = JetStreamEngine("nats://127.0.0.1").capabilities
    found = {
        capability: sorted(
            test
            for test, needed in conformance.NEEDS.items()
            if next((each for each in needed if not getattr(can, each)), None) == capability
        )
        for capability in Capabilities._fields
    }
    skipped = {name: tests for name, tests in found.items() if tests}
    assert skipped == {name: text.split() for name, text in SKIPPED.items()}


def test_every_capability_says_what_holds_without_it() -> None:
    assert set(WITHOUT) == set(Capabilities._fields)
    assert all(text.endswith(".") for text in WITHOUT.values())
