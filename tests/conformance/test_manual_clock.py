"""The manual clock of tests moves exactly what a test moves."""

from __future__ import annotations

import pytest

from trellis.core.durations import SECOND
from trellis.engines.clock import Clock
from trellis.testing import ManualClock
from trellis.testing.clock import START


def _reading(clock: Clock) -> tuple[int, int, str]:
    return clock.now(), clock.lease_now(), clock.boot_id()


def test_the_clock_starts_at_the_same_instant_every_time_and_stands_still() -> None:
    clock = ManualClock()
    assert clock.now() == START
    assert _reading(clock) == _reading(clock) == _reading(ManualClock())


def test_time_passes_on_both_clocks() -> None:
    clock = ManualClock()
    now, lease, boot = _reading(clock)
    clock.advance("1m")
    clock.advance_micros(7)
    clock.advance(2.5)
    passed = 62 * SECOND + 500_007
    assert _reading(clock) == (now + passed, lease + passed, boot)
    clock.advance_to(now + 2 * passed)
    assert _reading(clock) == (now + 2 * passed, lease + 2 * passed, boot)


def test_setting_the_wall_clock_moves_nothing_else() -> None:
    clock = ManualClock()
    now, lease, boot = _reading(clock)
    clock.step_wall("1h")
    assert _reading(clock) == (now + 3600 * SECOND, lease, boot)
    clock.step_wall("2h", back=True)
    assert _reading(clock) == (now - 3600 * SECOND, lease, boot)


def test_a_reboot_has_a_new_boot_id_and_restarts_the_lease_clock() -> None:
    clock = ManualClock()
    now, lease, boot = _reading(clock)
    clock.reboot()
    assert clock.now() == now
    assert clock.lease_now() < lease
    assert clock.boot_id() != boot


def test_time_never_runs_backwards() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="step_wall"):
        clock.advance_to(START - 1)
