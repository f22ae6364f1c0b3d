"""The engine's time as a worker estimates it."""

from __future__ import annotations

from typing import Final

from trellis.core.durations import SECOND
from trellis.engines.clock import uptime
from trellis.worker.session import EngineTime

NOW: Final = 1_893_456_000 * SECOND


def test_an_answer_that_a_blocked_loop_comes_to_late_sets_no_clock_back() -> None:
    engine_time = EngineTime(NOW)
    sent = uptime() - 3 * SECOND
    answer = engine_time.now() - 3 * SECOND
    before = engine_time.now()
    engine_time.learn(answer, sent)
    assert engine_time.now() >= before


def test_an_answer_corrects_an_estimate_that_cannot_be_right() -> None:
    engine_time = EngineTime(NOW)
    engine_time.learn(NOW + 3600 * SECOND, uptime())
    assert engine_time.now() >= NOW + 3600 * SECOND
    sent = uptime()
    engine_time.learn(NOW, sent)
    assert engine_time.now() <= NOW + (uptime() - sent)
