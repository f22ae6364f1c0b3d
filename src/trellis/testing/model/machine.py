"""The state machine with which Hypothesis drives an engine and the memory engine."""
# ruff: noqa: S101 - comparing is what this is for

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from trellis.core.durations import SECOND
from trellis.engines.memory import MemoryEngine
from trellis.engines.port import Engine
from trellis.testing.clock import ManualClock
from trellis.testing.model.side import Plain, Side
from trellis.testing.model.steps import step_for

#: For CI: two hundred histories of fifty steps, the same ones every time.
THOROUGH: Final = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
#: Hypothesis prefers small numbers and numbers that it finds in the modules imported so far: a life
#: would depend on which tests ran before. This far from zero it draws evenly, from nothing else.
_FAR: Final = 2**200
ROLLS: Final = st.integers(_FAR, _FAR + 2**24 - 1).map(lambda number: number - _FAR)


class EngineModel(RuleBasedStateMachine):
    """Does the same steps on two engines and compares the answers."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._is_broken = False
        self.sides: list[Side] = []

    def make_clock(self) -> ManualClock:
        """Make the clock of the engine under test; override it for an engine in a server."""
        return ManualClock()

    async def open_engine(self, clock: ManualClock) -> Engine:
        """Open the engine under test, empty, on this clock."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        """Start with two empty engines and a session."""
        self._run(self._open())
        self._both(lambda side: side.open_session(60 * SECOND))

    async def _open(self) -> None:
        clock, reference_clock = self.make_clock(), ManualClock()
        reference = MemoryEngine(clock=reference_clock)
        await reference.open()
        engine = await self.open_engine(clock)
        can = engine.capabilities
        self.sides = [Side(engine, clock, can), Side(reference, reference_clock, can)]

    def teardown(self) -> None:
        """Compare everything once more, then close."""
        try:
            if self.sides and not self._is_broken:
                self._run(self._look_around())
                self._both(lambda side: side.look_closely())
        finally:
            self._runner.run(self._close())
            self._runner.close()

    async def _close(self) -> None:
        for side in self.sides:
            await side.engine.close()

    # One rule on purpose: Hypothesis switches whole rules off for a history and picks evenly among
    # the rest, and a history without claims, or of claims only, finds little.

    @rule(rolls=st.lists(ROLLS, min_size=1, max_size=3))
    def do(self, rolls: list[int]) -> None:
        """Do a few steps, then compare the state of both engines."""
        for step in map(step_for, rolls):
            note(f"{step}")
            self._both(step.on)
        self._run(self._look_around())

    def _both(self, act: Callable[[Side], Awaitable[Plain]]) -> None:
        """Do the same to both engines; the answers must be equal."""
        self._run(self._compare(act))

    def _run(self, steps: Coroutine[None, None, None]) -> None:
        try:
            self._runner.run(steps)
        except BaseException:
            self._is_broken = True  # later differences follow from this one: do not report them
            raise

    async def _compare(self, act: Callable[[Side], Awaitable[Plain]]) -> None:
        answer, expected = [await act(side) for side in self.sides]
        assert answer == expected, "The engines answered differently."

    async def _look_around(self) -> None:
        seen, should_see = [await side.look() for side in self.sides]
        for part, ours, theirs in zip(seen._fields, seen, should_see, strict=True):
            assert ours == theirs, f"The engines differ in {part}."
