"""The steps of the model as values, and how likely each is.

A step follows from one number. Hypothesis draws only that number: it can remove steps from a
failing history, but cannot prefer the first choice of every list, which it does when it draws the
parts. A choice of a step ("the third newest claim") is taken modulo the number of candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple, Protocol

from trellis.core.durations import SECOND, Micros
from trellis.core.limits import Limit, Override, Scope
from trellis.core.states import State
from trellis.engines.archive import Archived
from trellis.engines.audit import By
from trellis.engines.contracts import NewContract, Status
from trellis.engines.demand import Demand
from trellis.engines.values import GroupBy, JobFilter, QueueSettings
from trellis.testing.model.batches import (
    add_step,
    cancel_step,
    open_step,
    retry_step,
    seal_step,
    spawn_step,
)
from trellis.testing.model.menu import (
    NOTE_BODIES,
    OPERATIONS,
    QUEUES,
    SERVICE,
    SETTLEMENTS,
    TYPES,
    JobRequest,
    a_request,
    queue_of,
)
from trellis.testing.model.schedules import (
    change_step,
    declare_step,
    fire_step,
    pass_time,
    run_step,
)
from trellis.testing.model.side import Plain, Side


class Step(Protocol):
    """Something done to one engine."""

    async def on(self, side: Side) -> Plain:
        """Do it, and return the answer in comparable form."""


class Create(NamedTuple):
    """Create some jobs."""

    requests: list[JobRequest]

    async def on(self, side: Side) -> Plain:
        """Create."""
        return await side.create(self.requests)


class CreateAgain(NamedTuple):
    """Send a job once more, as it was or with another payload."""

    recent: int
    payload: str | None

    async def on(self, side: Side) -> Plain:
        """Create."""
        return await side.create_again(self.recent, self.payload)


class Claim(NamedTuple):
    """Claim due jobs: of all types, or of one."""

    session: int
    limit: int
    each: int
    only: str | None

    async def on(self, side: Side) -> Plain:
        """Claim."""
        names = tuple(TYPES) if self.only is None else (self.only,)
        demands = [
            Demand(SERVICE, some, self.each)
            for queue in QUEUES
            if (some := tuple(each for each in names if queue_of(each) == queue))
        ]
        return await side.claim(self.session, demands, self.limit)


class Settle(NamedTuple):
    """Settle an attempt, decided against its job now or against its claim."""

    claim: int
    settlement: str
    fresh: bool

    async def on(self, side: Side) -> Plain:
        """Decide and commit."""
        return await side.settle(self.claim, SETTLEMENTS[self.settlement], fresh=self.fresh)


class SettleTogether(NamedTuple):
    """Settle several attempts in one batch, some perhaps twice or too late."""

    claims: tuple[int, ...]
    settlement: str

    async def on(self, side: Side) -> Plain:
        """Decide all, commit all."""
        return await side.settle_together(self.claims, SETTLEMENTS[self.settlement])


class SettleLate(NamedTuple):
    """Settle any attempt, even an old one, as a worker does."""

    claim: int
    settlement: str

    async def on(self, side: Side) -> Plain:
        """Apply through `trellis.control`."""
        return await side.apply_late(self.claim, SETTLEMENTS[self.settlement])


class MakeNotes(NamedTuple):
    """Store notes of an attempt."""

    claim: int
    bodies: tuple[int, ...]

    async def on(self, side: Side) -> Plain:
        """Note."""
        return await side.note(self.claim, [NOTE_BODIES[each] for each in self.bodies])


class Operate(NamedTuple):
    """Apply a command of an operator to a job that was claimed once, or to any."""

    recent: int
    operation: str
    claimed: bool

    async def on(self, side: Side) -> Plain:
        """Apply through `trellis.control`."""
        return await side.operate(self.recent, OPERATIONS[self.operation], claimed=self.claimed)


class SetQueue(NamedTuple):
    """Pause, drain or reopen a queue."""

    queue: str
    paused: bool
    draining: bool

    async def on(self, side: Side) -> Plain:
        """Set it."""
        return await side.engine.set_queue(QueueSettings(SERVICE, *self))


class SetAging(NamedTuple):
    """Let waiting jobs age, or not."""

    span: Micros | None

    async def on(self, side: Side) -> Plain:
        """Set it."""
        return await side.engine.set_aging(self.span, By())


class SetLimit(NamedTuple):
    """Limit a queue, a type or its keys, or lift a limit; read how far all limits are used."""

    scope: Scope
    limit: Limit

    async def on(self, side: Side) -> Plain:
        """Set it, unless the engine chooses what starts under it."""
        before = await side.engine.limits()
        if not side.can.ordered:
            return before
        change = Override(self.limit, frozenset({"active", "rate"}))
        return before, await side.engine.change_limit(self.scope, change, By())


class PutContract(NamedTuple):
    """Store a contract after the latest one, or after one that the caller believes is."""

    behind: int
    fingerprint: str
    status: Status

    async def on(self, side: Side) -> Plain:
        """Store it."""
        known = await side.engine.contracts(SERVICE, 1)
        after = max(0, (known[0].number if known else 0) - self.behind)
        new = NewContract(SERVICE, after, "{}", self.fingerprint, self.status)
        stored = await side.engine.put_contract(new)
        return stored, await side.engine.contracts(limit=5)


class Renew(NamedTuple):
    """Renew a session, naming all or none of its claims as held and as stopped."""

    session: int
    held: bool
    stopped: bool

    async def on(self, side: Side) -> Plain:
        """Renew."""
        return await side.renew(self.session, held=self.held, stopped=self.stopped)


class Drain(NamedTuple):
    """Ask a worker to finish and exit."""

    session: int

    async def on(self, side: Side) -> Plain:
        """Ask."""
        return await side.engine.ask_drain(side.sessions[-1 - self.session % len(side.sessions)])


class Lock(NamedTuple):
    """Take or free a lock, for a session or for one of the attempts."""

    name: str
    session: int
    claim: int | None
    free: bool

    async def on(self, side: Side) -> Plain:
        """Take or free."""
        return await side.lock(self.name, self.session, self.claim, free=self.free)


class EndLockHolder(NamedTuple):
    """End the attempt that has a lock, as an operator."""

    name: str

    async def on(self, side: Side) -> Plain:
        """Cancel by force: its handler may still run."""
        return await side.end_lock_holder(self.name, OPERATIONS["force"])


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
    """Advance the clock by some seconds."""

    seconds: int

    async def on(self, side: Side) -> Plain:
        """Advance the clock."""
        await side.advance(self.seconds)
        return await side.engine.now()


class NextDay(NamedTuple):
    """Advance the clock until all leases lapse and old sessions can be removed."""

    async def on(self, side: Side) -> Plain:
        """Advance the clock by more than a day."""
        await pass_time(side, 25 * 3600)
        return await side.engine.now()


class Reboot(NamedTuple):
    """Reboot the machine."""

    async def on(self, side: Side) -> Plain:
        """End all leases."""
        if side.can.boot_clock:
            side.clock.reboot()
        return await side.engine.now()


class Promote(NamedTuple):
    """Promote what is due."""

    limit: int

    async def on(self, side: Side) -> Plain:
        """Promote."""
        return await side.promote(self.limit)


class Maintain(NamedTuple):
    """Do a round of maintenance."""

    async def on(self, side: Side) -> Plain:
        """Reap, give up, settle what is overdue, promote."""
        return await side.maintain()


class Prune(NamedTuple):
    """Remove what retention no longer keeps, perhaps after a while."""

    limit: int
    seconds: int

    async def on(self, side: Side) -> Plain:
        """Prune."""
        await pass_time(side, self.seconds)
        return await side.engine.prune(self.limit)


class SwitchArchive(NamedTuple):
    """Archive expired jobs before they are removed, or no more."""

    is_on: bool

    async def on(self, side: Side) -> Plain:
        """Switch the archive."""
        return await side.engine.set_archive(SERVICE, on=self.is_on)


class Archive(NamedTuple):
    """Take expired jobs from the archive's queue, and remove those that were taken."""

    limit: int
    #: How many of them are removed.
    removed: int

    async def on(self, side: Side) -> Plain:
        """Archive."""
        records = await side.engine.archivable(SERVICE, self.limit)
        taken = [Archived(each.definition.id, each.head.version) for each in records]
        removed = await side.engine.remove_archived(taken[: self.removed])
        return side.plain(records), removed, await side.engine.archives()


class Remove(NamedTuple):
    """Remove some jobs at an operator's request."""

    recent: tuple[int, ...]

    async def on(self, side: Side) -> Plain:
        """Remove."""
        return await side.remove(self.recent)


class Read(NamedTuple):
    """Find and count by some filter."""

    types: tuple[str, ...]
    states: tuple[State, ...]
    key: str | None
    error: str | None
    ending: str | None
    group: GroupBy

    async def on(self, side: Side) -> Plain:
        """Read a page and the counts."""
        where = JobFilter(
            types=self.types,
            states=self.states,
            key=self.key,
            error_contains=self.error,
            id_suffix=self.ending,
        )
        page = await side.engine.find(where, limit=3)
        counts = await side.engine.count(where, self.group)
        crossed = await side.engine.count(where, self.group, "state")
        total = await side.engine.count(where)
        groups = counts.groups, dict(crossed.combinations), dict(total.combinations)
        return side.plain(page.jobs), page.next_after is None, groups


_SCOPES: Final = (
    *(Scope("queue", SERVICE, queue) for queue in QUEUES),
    *(Scope("type", SERVICE, name) for name in ("plain", "pair", "watched")),
    *(Scope("key", SERVICE, name) for name in ("rated", "pair", "strict")),
)
_LIMITS: Final = (
    Limit(),
    Limit(),
    Limit(active=2),
    Limit(rate="2/5s"),
    Limit(active=3, rate="1/1s", burst=3),
)


#: Seconds before a pruning: none, or until jobs expire, kept ones are due again, batches expire.
_PASSING: Final = (0, 0, 200, 3700, 31 * 24 * 3600)


def _flag(dice: Random) -> bool:
    return dice.random() < 1 / 2


def _recent(dice: Random) -> int:
    return dice.randrange(10)


def _session(dice: Random) -> int:
    return dice.choice((0, 0, 0, 0, 1))


def _maybe_claim(dice: Random) -> int | None:
    return None if _flag(dice) else _recent(dice)


def _status(dice: Random) -> Status:
    return "accepted" if _flag(dice) else "deployed"


def _limit(dice: Random) -> int:
    return dice.choice((100, 100, 2, 1))


def _settlement(dice: Random) -> str:
    return dice.choice(("complete", "complete", "fail", "fail", "fail", *SETTLEMENTS))


def _read(dice: Random) -> Step:
    groups: tuple[GroupBy, ...] = ("state", "type", "queue", "service", "error")
    return Read(
        dice.choice(((), ("plain", "pair"), ("reject",))),
        dice.choice(((), (State.ACTIVE,), (State.PENDING, State.RETRY, State.DEAD))),
        dice.choice((None, "k/1")),
        dice.choice((None, None, "LEASE")),
        dice.choice((None, None, "1")),
        dice.choice(groups),
    )


_WEIGHTED: Final[list[tuple[int, Callable[[Random], Step]]]] = [
    (5, lambda dice: Create([a_request(dice) for _ in range(dice.randint(1, 6))])),
    (1, lambda dice: CreateAgain(_recent(dice), dice.choice((None, "3")))),
    (7, lambda dice: Claim(_session(dice), _limit(dice), _limit(dice), None)),
    (1, lambda dice: Claim(_session(dice), 100, _limit(dice), dice.choice(tuple(TYPES)))),
    (9, lambda dice: Settle(_recent(dice), _settlement(dice), fresh=True)),
    (2, lambda dice: Settle(_recent(dice), _settlement(dice), fresh=False)),
    (2, lambda dice: SettleTogether(tuple(dice.sample(range(9), 3)), _settlement(dice))),
    (1, lambda dice: SettleLate(dice.randrange(40), _settlement(dice))),
    (2, lambda dice: MakeNotes(_recent(dice), tuple(dice.sample(range(len(NOTE_BODIES)), 3)))),
    (5, lambda dice: Operate(_recent(dice), dice.choice(tuple(OPERATIONS)), claimed=True)),
    (2, lambda dice: Operate(_recent(dice), dice.choice(tuple(OPERATIONS)), claimed=False)),
    (3, lambda dice: SetQueue(dice.choice(QUEUES), paused=False, draining=False)),
    (1, lambda dice: SetQueue(dice.choice(QUEUES), paused=_flag(dice), draining=_flag(dice))),
    (1, lambda dice: SetAging(dice.choice((None, 5 * SECOND, 60 * SECOND)))),
    (2, lambda dice: SetLimit(dice.choice(_SCOPES), dice.choice(_LIMITS))),
    (1, lambda dice: PutContract(dice.choice((0, 0, 1)), dice.choice("ab"), _status(dice))),
    (3, lambda dice: Renew(_session(dice), _flag(dice), _flag(dice))),
    (1, lambda dice: Drain(_session(dice))),
    (3, lambda dice: Lock(dice.choice("ab"), _session(dice), _maybe_claim(dice), _flag(dice))),
    (1, lambda dice: EndLockHolder(dice.choice("ab"))),
    (1, lambda dice: Replace(_session(dice), _flag(dice), dice.choice((10, 60)) * SECOND)),
    (4, lambda dice: Advance(dice.choice((1, 1, 5, 5, 11, 31, 100)))),
    (1, lambda dice: Promote(_limit(dice))),
    (3, lambda _: Maintain()),
    (3, lambda dice: Prune(_limit(dice), dice.choice(_PASSING))),
    (1, lambda dice: SwitchArchive(dice.choice((True, True, False)))),
    (1, lambda dice: Archive(_limit(dice), _limit(dice))),
    (1, lambda dice: Remove(tuple(dice.sample(range(20), 3)))),
    (1, lambda dice: dice.choice((Reboot(), NextDay(), Maintain(), Maintain()))),
    (1, _read),
    (1, declare_step),
    (1, change_step),
    (3, fire_step),
    (1, run_step),
    (4, open_step),
    (7, add_step),
    (3, spawn_step),
    (4, seal_step),
    (1, cancel_step),
    (1, retry_step),
]
_STEPS: Final = [make for weight, make in _WEIGHTED for _ in range(weight)]


def step_for(roll: int) -> Step:
    """Return the step of this number."""
    dice = Random(roll)  # noqa: S311 - a workload, not a secret
    return dice.choice(_STEPS)(dice)
