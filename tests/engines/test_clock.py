"""The machine's clocks: one for people, one that nobody can set."""

from __future__ import annotations

import time

from trellis.engines.clock import SystemClock


def test_leases_are_judged_by_the_clock_that_counts_since_boot() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    now = SystemClock().lease_now()
    assert before <= now <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def test_people_see_the_wall_clock() -> None:
    before = time.time_ns() // 1000
    now = SystemClock().now()
    assert before <= now <= time.time_ns() // 1000


def test_the_boot_has_a_name_that_stays() -> None:
    assert SystemClock().boot_id() == SystemClock().boot_id() != ""
