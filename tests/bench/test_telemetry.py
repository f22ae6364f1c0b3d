"""The measurement of telemetry, in small: every way drains all jobs."""

from __future__ import annotations

import pytest

from bench.telemetry import OFF, WAYS, measure, ratios

pytestmark = pytest.mark.long


def test_every_way_drains_the_same_jobs() -> None:
    found = measure(jobs=50, rounds=1)
    assert all(rate > 0 for rates in found.values() for rate in rates)
    compared = ratios(found)
    assert (set(compared), compared[OFF]) == (set(WAYS), 1)
