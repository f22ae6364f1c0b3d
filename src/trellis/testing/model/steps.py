"""The steps of the model as values, and how likely each is.

A step is drawn whole, so that a failure prints as a short program: one line per step. What a step
picks ("the third newest claim") is a number, taken modulo what there is.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from hypothesis import strategies as st

from trellis.core.spans import SECOND
from trellis.core.states import State
from trellis.engines.values import Demand, GroupBy, JobFilter, QueueSettings
from trellis.testing.model.menu import (
    BODIES,
    QUEUES,
    SERVICE,
    TYPES,
    VERBS,
    WORDS,
    Wish,
    queue_of,
)
from trellis.testing.model.side import Plain, Side


class Step(Protocol):
    """Something done to one engine."""

    async def on(self, side: Side) -> Plain:
        """Do it, and return the answer in comparable form."""


class Create(NamedTuple):
    """Create some jobs."""

    wishes: list[Wish]

    async def on(self, side: Side) -> Plain:
        """Create."""
        return await side.create(self.wishes)


class CreateAgain(NamedTuple):
    """Send a job once more, as it was or with another payload."""

    recent: int
    payload: str | None

    async def on(self, side: Side) -> Plain:
        """Create."""
        return await side.create_again(self.recent, self.payload)


class Claim(NamedTuple):
    """Take what there is: of all types, or of one."""

    session: int
    limit: int
    each: int
    only: str | None

    async def on(self, side: Side) -> Plain:
        """Claim."""
        names = tuple(TYPES) if self.only is None else (self.only,)
        demands = [
            Demand(
                SERVICE, queue, tuple(each for each in names if queue_of(each) == queue), self.each
            )
            for queue in QUEUES
        ]
        return await side.claim(self.session, demands, self.limit)


class Settle(NamedTuple):
    """Let an attempt say how it ended, knowing how its job stands or only how it was claimed."""

    claim: int
    word: str
    fresh: bool

    async def on(self, side: Side) -> Plain:
        """Decide and commit."""
        return await side.settle(self.claim, WORDS[self.word], fresh=self.fresh)


class SettleTogether(NamedTuple):
    """Settle several attempts in one batch, some perhaps twice or too late."""

    claims: tuple[int, ...]
    word: str

    async def on(self, side: Side) -> Plain:
        """Decide all, commit all."""
        return await side.settle_together(self.claims, WORDS[self.word])


class SettleLate(NamedTuple):
    """Let any attempt, however old, settle as a worker would."""

    claim: int
    word: str

    async def on(self, side: Side) -> Plain:
        """Apply through `trellis.control`."""
        return await side.apply_late(self.claim, WORDS[self.word])


class Say(NamedTuple):
    """Let an attempt note something about itself."""

    claim: int
    bodies: tuple[int, ...]

    async def on(self, side: Side) -> Plain:
        """Note."""
        return await side.note(self.claim, [BODIES[each] for each in self.bodies])


class Operate(NamedTuple):
    """Let an operator do something to a job that was claimed once, or to any."""

    recent: int
    verb: str
    claimed: bool

    async def on(self, side: Side) -> Plain:
        """Apply through `trellis.control`."""
        return await side.operate(self.recent, VERBS[self.verb], claimed=self.claimed)


class SetQueue(NamedTuple):
    """Pause, drain or reopen a queue."""

    queue: str
    paused: bool
    draining: bool

    async def on(self, side: Side) -> Plain:
        """Set it."""
        return await side.engine.set_queue(QueueSettings(SERVICE, *self))


class Renew(NamedTuple):
    """Renew a session, naming all or none of its claims as held and as stopped."""

    session: int
    held: bool
    stopped: bool

    async def on(self, side: Side) -> Plain:
        """Renew."""
        return await side.renew(self.session, held=self.held, stopped=self.stopped)


class Replace(NamedTuple):
    """Close a session, or try to reap it; then open another."""

    session: int
    reap: bool
    lease: int

    async def on(self, side: Side) -> Plain:
        """End one, start one."""
        ended = await side.end_session(self.session, reap=self.reap)
        return ended, await side.open_session(self.lease)


class Advance(NamedTuple):
    """Let time pass."""

    seconds: int

    async def on(self, side: Side) -> Plain:
        """Turn the clock."""
        side.clock.advance(self.seconds)
        return await side.engine.now()


class Reboot(NamedTuple):
    """Start the machine again."""

    async def on(self, side: Side) -> Plain:
        """Void all leases."""
        side.clock.reboot()
        return await side.engine.now()


class Promote(NamedTuple):
    """Promote what is due."""

    limit: int

    async def on(self, side: Side) -> Plain:
        """Promote."""
        return await side.engine.promote(self.limit)


class Maintain(NamedTuple):
    """Do a round of maintenance."""

    async def on(self, side: Side) -> Plain:
        """Reap, give up, settle what is overdue, promote."""
        return await side.maintain()


class Prune(NamedTuple):
    """Remove what retention no longer keeps."""

    limit: int

    async def on(self, side: Side) -> Plain:
        """Prune."""
        return await side.engine.prune(self.limit)


class Read(NamedTuple):
    """Find and count by some filter."""

    types: tuple[str, ...]
    states: tuple[State, ...]
    key: str | None
    group: GroupBy

    async def on(self, side: Side) -> Plain:
        """Read a page and the counts."""
        where = JobFilter(types=self.types, states=self.states, key=self.key)
        page = await side.engine.find(where, limit=3)
        counts = await side.engine.count(where, self.group)
        return side.plain(page.jobs), page.next_after is None, dict(counts.groups)


_flags: Final = st.booleans()
_recent: Final = st.integers(0, 9)
_session: Final = st.sampled_from((0, 0, 0, 0, 1))
_limits: Final = st.sampled_from((100, 100, 2, 1))
_words: Final = st.sampled_from(("complete", "complete", "fail", "fail", "fail", *WORDS))

_wishes: Final = st.builds(
    Wish,
    type=st.sampled_from(tuple(TYPES)),
    key=st.sampled_from((1, 2)),
    priority=st.sampled_from((0, 0, 1, -1)),
    payload=st.sampled_from(("1", "2")),
    delay=st.sampled_from((0, 0, 0, 5 * SECOND)),
    deadline=st.sampled_from((None, None, None, 4 * SECOND, 40 * SECOND)),
    dedupe=st.sampled_from((None, None, None, "d")),
    idempotency_key=st.sampled_from((None, None, None, None, "i")),
)

_WEIGHTED: Final[list[tuple[int, st.SearchStrategy[Step]]]] = [
    (7, st.builds(Create, st.lists(_wishes, min_size=2, max_size=6))),
    (1, st.builds(CreateAgain, _recent, st.sampled_from((None, "3")))),
    (9, st.builds(Claim, _session, _limits, _limits, st.none())),
    (1, st.builds(Claim, _session, _limits, _limits, st.sampled_from(tuple(TYPES)))),
    (10, st.builds(Settle, _recent, _words, st.just(value=True))),
    (2, st.builds(Settle, _recent, _words, st.just(value=False))),
    (2, st.builds(SettleTogether, st.tuples(_recent, _recent, _recent), _words)),
    (2, st.builds(SettleLate, st.integers(0, 40), _words)),
    (2, st.builds(Say, _recent, st.tuples(*[st.integers(0, len(BODIES) - 1)] * 3))),
    (4, st.builds(Operate, _recent, st.sampled_from(tuple(VERBS)), st.just(value=True))),
    (2, st.builds(Operate, _recent, st.sampled_from(tuple(VERBS)), st.just(value=False))),
    (4, st.builds(SetQueue, st.sampled_from(QUEUES), st.just(value=False), st.just(value=False))),
    (1, st.builds(SetQueue, st.sampled_from(QUEUES), _flags, st.just(value=False))),
    (1, st.builds(SetQueue, st.sampled_from(QUEUES), st.just(value=False), _flags)),
    (3, st.builds(Renew, _session, _flags, _flags)),
    (2, st.builds(Replace, _session, _flags, st.sampled_from((10 * SECOND, 60 * SECOND)))),
    (5, st.builds(Advance, st.sampled_from((1, 1, 5, 5, 11, 31, 100)))),
    (1, st.builds(Promote, _limits)),
    (4, st.just(Maintain())),
    (1, st.builds(Prune, _limits)),
    (1, st.just(Reboot())),
    (
        1,
        st.builds(
            Read,
            st.sampled_from(((), ("plain", "pair"), ("reject",))),
            st.sampled_from(((), (State.ACTIVE,), (State.PENDING, State.RETRY, State.DEAD))),
            st.sampled_from((None, "k/1")),
            st.sampled_from(("state", "type", "queue", "service")),
        ),
    ),
]
#: Any step, the common ones more often.
STEPS: Final[st.SearchStrategy[Step]] = st.sampled_from(
    [place for place, (weight, _) in enumerate(_WEIGHTED) for _ in range(weight)]
).flatmap(lambda place: _WEIGHTED[place][1])
