"""Hostile jobs cost their own type, not the worker. The rates compared are of the same run."""

from __future__ import annotations

import pytest

from tests.harness.hostile import measure_hung, measure_poison

pytestmark = pytest.mark.long


async def test_hung_plain_handlers_leave_quick_jobs_at_least_half_of_their_rate() -> None:
    """As many hung handlers per second as 100 in a minute are."""
    found = await measure_hung(15.0, 25)
    assert found.dead == 25
    assert found.ratio >= 0.5, found


async def test_a_stream_of_jobs_that_end_their_process_charges_no_other_job() -> None:
    found = await measure_poison(10.0)
    assert (found.attempts, len(found.waits)) == (1, 20)
    assert found.processes <= 3, found
