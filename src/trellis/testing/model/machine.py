"""The rules by which Hypothesis drives an engine and the memory engine side by side."""
# ruff: noqa: S101 - comparing is what this is for

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from trellis.core.job import JobId, NewJob
from trellis.core.spans import SECOND
from trellis.core.states import State
from trellis.engines.memory import MemoryEngine
from trellis.engines.port import Engine
from trellis.engines.values import Demand, GroupBy, JobFilter, NoteBody, QueueSettings
from trellis.testing.clock import ManualClock
from trellis.testing.model.menu import (
    BODIES,
    QUEUES,
    SERVICE,
    TYPES,
    VERBS,
    WORDS,
    Wish,
    complete,
    fail,
    queue_of,
)
from trellis.testing.model.side import Plain, Side, Word

#: For the gate: two hundred lives of fifty steps, the same ones every time.
THOROUGH: Final = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

_wishes = st.builds(
    Wish,
    type=st.sampled_from(tuple(TYPES)),
    key=st.sampled_from((1, 2)),
    priority=st.sampled_from((0, 0, 1, -1)),
    payload=st.sampled_from(("1", "2")),
    delay=st.sampled_from((0, 0, 0, 5 * SECOND)),
    deadline=st.sampled_from((None, None, None, 4 * SECOND, 40 * SECOND)),
    dedupe=st.sampled_from((None, None, "d")),
    idempotency_key=st.sampled_from((None, None, None, "i")),
)
#: Picks one of what there is, counted from the newest.
_recent = st.integers(0, 9)
_limits = st.sampled_from((1, 2, 100))


def _has_claims(model: EngineModel) -> bool:
    return bool(model.sides[0].claims)


def _has_jobs(model: EngineModel) -> bool:
    return bool(model.created)


class EngineModel(RuleBasedStateMachine):
    """Two engines, the same commands, the same answers."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self.created: list[NewJob] = []
        self.sides: list[Side] = []

    async def open_engine(self, clock: ManualClock) -> Engine:
        """Open the engine under test, empty, on this clock."""
        raise NotImplementedError

    @initialize()
    def open_both(self) -> None:
        """Start with two empty engines and one session."""
        self._runner.run(self._open())
        self.both(lambda side: side.open_session(30 * SECOND))

    async def _open(self) -> None:
        clock, reference_clock = ManualClock(), ManualClock()
        reference = MemoryEngine(clock=reference_clock)
        await reference.open()
        self.sides = [
            Side(await self.open_engine(clock), clock),
            Side(reference, reference_clock),
        ]

    def teardown(self) -> None:
        """Compare everything once more, then close."""
        try:
            if self.sides:
                job_ids = [new.id for new in self.created]
                self.both(lambda side: side.look_closely(job_ids))
        finally:
            self._runner.run(self._close())
            self._runner.close()

    async def _close(self) -> None:
        for side in self.sides:
            await side.engine.close()

    # -- comparing -----------------------------------------------------------------------------

    def both(self, act: Callable[[Side], Awaitable[Plain]]) -> Any:  # noqa: ANN401 - either answer
        """Do the same to both engines; answers and everything seen afterwards must be equal."""
        return self._runner.run(self._both(act))

    async def _both(self, act: Callable[[Side], Awaitable[Plain]]) -> Plain:
        answer, expected = [await act(side) for side in self.sides]
        assert answer == expected, "The engines answered differently."
        seen, should_see = [await side.look() for side in self.sides]
        for part, ours, theirs in zip(seen._fields, seen, should_see, strict=True):
            assert ours == theirs, f"The engines differ in {part}."
        return answer

    def _claim_at(self, recent: int) -> int:
        count = len(self.sides[0].claims)
        return count - 1 - recent % count

    def _job_at(self, recent: int) -> JobId:
        return self.created[-1 - recent % len(self.created)].id

    def _session_at(self, number: int) -> int:
        return number % len(self.sides[0].sessions)

    # -- creating ------------------------------------------------------------------------------

    @rule(wishes=st.lists(_wishes, min_size=1, max_size=4))
    def create(self, wishes: list[Wish]) -> None:
        """Create some jobs."""
        jobs = [wish.make() for wish in wishes]
        self.created += jobs
        self.both(lambda side: side.create(jobs))

    @precondition(_has_jobs)
    @rule(recent=_recent, payload=st.sampled_from((None, "3")))
    def create_again(self, recent: int, payload: str | None) -> None:
        """Send a job once more, as it was or with another payload."""
        new = self.created[-1 - recent % len(self.created)]
        sent = new if payload is None else new._replace(payload=payload)
        self.both(lambda side: side.create([sent]))

    # -- claiming and settling -----------------------------------------------------------------

    @rule(session=_recent, limit=_limits, each=_limits)
    def claim(self, session: int, limit: int, each: int) -> None:
        """Claim whatever there is."""
        demands = [
            Demand(SERVICE, queue, tuple(name for name in TYPES if queue_of(name) == queue), each)
            for queue in QUEUES
        ]
        self.both(lambda side: side.claim(self._session_at(session), demands, limit))

    @rule(session=_recent, name=st.sampled_from(tuple(TYPES)), limit=_limits)
    def claim_one_type(self, session: int, name: str, limit: int) -> None:
        """Claim jobs of one type alone."""
        demand = Demand(SERVICE, queue_of(name), (name,), 100)
        self.both(lambda side: side.claim(self._session_at(session), [demand], limit))

    @precondition(_has_claims)
    @rule(recent=_recent)
    def complete(self, recent: int) -> None:
        """Let a recent attempt complete, if its job is still its own."""
        claim = self._claim_at(recent)
        self.both(lambda side: side.settle(claim, complete, fresh=True))

    @precondition(_has_claims)
    @rule(recent=_recent)
    def fail(self, recent: int) -> None:
        """Let a recent attempt fail."""
        claim = self._claim_at(recent)
        self.both(lambda side: side.settle(claim, fail, fresh=True))

    @precondition(_has_claims)
    @rule(recent=_recent, word=st.sampled_from(tuple(WORDS)), fresh=st.booleans())
    def settle(self, recent: int, word: str, fresh: bool) -> None:  # noqa: FBT001 - drawn
        """Let a recent attempt say anything, knowing how its job stands or not."""
        claim, say = self._claim_at(recent), WORDS[word]
        self.both(lambda side: side.settle(claim, say, fresh=fresh))

    @precondition(_has_claims)
    @rule(picks=st.lists(_recent, min_size=2, max_size=4), well=st.booleans())
    def settle_together(self, picks: list[int], well: bool) -> None:  # noqa: FBT001 - drawn
        """Settle several attempts in one batch, some perhaps twice or too late."""
        claims = [self._claim_at(pick) for pick in picks]
        word: Word = complete if well else fail
        self.both(lambda side: side.settle_together(claims, word))

    @precondition(_has_claims)
    @rule(recent=st.integers(0, 40), word=st.sampled_from(("complete", *WORDS)))
    def settle_late(self, recent: int, word: str) -> None:
        """Let any attempt, however old, settle as a worker would."""
        claim, say = self._claim_at(recent), WORDS.get(word, complete)
        self.both(lambda side: side.apply_late(claim, say))

    @precondition(_has_claims)
    @rule(recent=_recent, bodies=st.lists(st.sampled_from(BODIES), min_size=1, max_size=3))
    def note(self, recent: int, bodies: list[NoteBody]) -> None:
        """Let an attempt say something about itself."""
        claim = self._claim_at(recent)
        self.both(lambda side: side.note(claim, bodies))

    # -- operating -----------------------------------------------------------------------------

    @precondition(_has_jobs)
    @rule(recent=st.integers(0, 30), verb=st.sampled_from(tuple(VERBS)))
    def operate(self, recent: int, verb: str) -> None:
        """Let an operator do something to a job."""
        job_id = self._job_at(recent)
        self.both(lambda side: side.operate(job_id, VERBS[verb]))

    @rule(queue=st.sampled_from(QUEUES), flags=st.sampled_from(((0, 0), (0, 0), (1, 0), (0, 1))))
    def set_queue(self, queue: str, flags: tuple[int, int]) -> None:
        """Pause, drain or reopen a queue."""
        settings_of_queue = QueueSettings(SERVICE, queue, *map(bool, flags))
        self.both(lambda side: side.engine.set_queue(settings_of_queue))

    # -- sessions and time ---------------------------------------------------------------------

    @precondition(lambda self: len(self.sides[0].sessions) < 4)  # noqa: PLR2004 - enough
    @rule(lease=st.sampled_from((10 * SECOND, 30 * SECOND)))
    def open_session(self, lease: int) -> None:
        """Start one more worker."""
        self.both(lambda side: side.open_session(lease))

    @rule(session=_recent, held=st.booleans(), stopped=st.booleans())
    def renew(self, session: int, held: bool, stopped: bool) -> None:  # noqa: FBT001 - drawn
        """Renew a session."""
        number = self._session_at(session)
        self.both(lambda side: side.renew(number, held=held, stopped=stopped))

    @rule(session=_recent, reap=st.sampled_from((True, True, False)))
    def end_session(self, session: int, reap: bool) -> None:  # noqa: FBT001 - drawn
        """Close a session, or reap it if it has lapsed."""
        self.both(lambda side: side.end_session(self._session_at(session), reap=reap))
        self.both(lambda side: side.open_session(30 * SECOND))

    @rule(seconds=st.sampled_from((1, 5, 11, 31, 100)))
    def advance(self, seconds: int) -> None:
        """Let time pass for both."""
        for side in self.sides:
            side.clock.advance(seconds)
        self.both(lambda side: side.engine.now())

    @rule(limit=_limits)
    def promote(self, limit: int) -> None:
        """Promote what is due."""
        self.both(lambda side: side.engine.promote(limit))

    @rule()
    def maintain(self) -> None:
        """Do a round of maintenance."""
        self.both(lambda side: side.maintain())

    @rule(limit=_limits)
    def prune(self, limit: int) -> None:
        """Remove what retention no longer keeps."""
        self.both(lambda side: side.engine.prune(limit))

    @rule()
    def reboot(self) -> None:
        """Start both machines again."""
        for side in self.sides:
            side.clock.reboot()
        self.both(lambda side: side.engine.now())

    # -- reading -------------------------------------------------------------------------------

    @rule(
        types=st.sampled_from(((), ("plain", "pair"), ("reject",))),
        states=st.sampled_from(((), (State.ACTIVE,), (State.PENDING, State.RETRY, State.DEAD))),
        key=st.sampled_from((None, "k/1")),
        group=st.sampled_from(("state", "type", "queue", "service")),
    )
    def read(
        self, types: tuple[str, ...], states: tuple[State, ...], key: str | None, group: GroupBy
    ) -> None:
        """Find and count by some filter."""
        where = JobFilter(types=types, states=states, key=key)

        async def look(side: Side) -> Plain:
            page = await side.engine.find(where, limit=3)
            counts = await side.engine.count(where, group)
            return side.plain(page.jobs), page.next_after is None, dict(counts.groups)

        self.both(look)
