"""The state of a key: its slots, and the jobs that wait for one.

The state changes in the same batch as the event that makes the change, with an expectation of its
own, so that slots are never given twice. A slot is owned by a job, then by its attempt. The
functions here return the state after a step; `core` decides who is admitted and what a transition
does to a slot. Of a long line the state has the head; the rest is in pages (`line.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from trellis.core.admission import KeyFacts
from trellis.core.durations import Instant
from trellis.core.job import Definition, Fence, Head, JobId
from trellis.core.lifecycle import Transition
from trellis.core.slots import keeps_slot, slot_effect
from trellis.core.states import WAITING
from trellis.engines.wire import Codec, codec_of


class Slot(NamedTuple):
    """The right to run one job of the key now."""

    id: JobId
    #: In the order of creation.
    order: int
    fence: Fence | None = None
    #: Set when the attempt was ended from outside: until then the slot stays taken.
    linger_until: Instant | None = None
    #: Whether the job keeps the slot after lingering, for its next attempt.
    keeps: bool = False


#: By what waiting jobs are sorted: priority, run time, order of creation.
Rank: TypeAlias = tuple[int, Instant, int]
#: Stands for the run time of a job that waits for other jobs.
NEVER: Final[Instant] = 2**62


class Waiter(NamedTuple):
    """A waiting job of the key, with or without a slot."""

    id: JobId
    order: int
    priority: int
    run_at: Instant
    #: How many slots the key has, by the policy of this job.
    active: int
    was_claimed: bool = False
    #: Waits for other jobs, too.
    is_unresolved: bool = False

    @property
    def rank(self) -> Rank:
        """Its place in the line."""
        return -self.priority, NEVER if self.is_unresolved else self.run_at, self.order


class Page(NamedTuple):
    """A part of a long line that is stored by itself, as the state knows it."""

    number: int
    #: The rank of its first job; ranks of the page before are lower, of the next one higher.
    first: Rank
    size: int
    #: The earliest run time of its jobs, and the most slots that the policy of one of them allows.
    earliest: Instant
    active: int


class KeyState(NamedTuple):
    """One key."""

    key: str
    slots: tuple[Slot, ...] = ()
    waiting: tuple[Waiter, ...] = ()
    #: How often a slot was taken from a lost attempt.
    takeovers: int = 0
    #: The last number in the order of creation.
    latest: int = 0
    #: The rest of the line, in its order.
    pages: tuple[Page, ...] = ()
    #: The numbers of the pages whose jobs are among `waiting` now; none when it is stored.
    loaded: tuple[int, ...] = ()

    def slot_of(self, job_id: JobId) -> Slot | None:
        """Return the slot that a job holds for its next or present attempt."""
        found = (each for each in self.slots if each.id == job_id and each.linger_until is None)
        return next(found, None)

    def has(self, job_id: JobId) -> bool:
        """Return whether a job waits, as far as the state is loaded."""
        return any(each.id == job_id for each in self.waiting)

    @property
    def is_empty(self) -> bool:
        """Whether no job holds the key or waits for it."""
        return not self.slots and not self.waiting and not self.pages

    @property
    def beyond(self) -> int:
        """How many jobs are in pages that are not loaded."""
        return sum(page.size for page in self.pages)

    @property
    def facts(self) -> KeyFacts:
        """What admission must know; of pages that are not loaded only how many jobs they have."""
        held = {each.id for each in self.slots if each.linger_until is None}
        unclaimed = [
            each.id
            for each in sorted(self.waiting, key=lambda each: each.order)
            if not each.was_claimed
        ]
        holders = (each for each in self.slots if each.linger_until is None)
        holder = min(holders, key=lambda each: each.order, default=None)
        return KeyFacts(
            len(self.slots),
            sum(each.id not in held for each in self.waiting) + self.beyond,
            None if holder is None else holder.id,
            unclaimed[-1] if unclaimed else None,
            unclaimed[0] if unclaimed else None,
        )


_STATE: Final = codec_of(KeyState)
#: How many waiting jobs other programs are shown.
_SHOWN: Final = 32


def _write(state: KeyState) -> dict[str, Any]:
    """Return the state as other programs read it, and as this engine does."""
    return {
        "version": 1,
        "key": state.key,
        "active": [
            {"jobId": each.id, "slotToken": each.fence.attempt_id if each.fence else None}
            for each in state.slots
        ],
        "queued": [{"jobId": each.id} for each in state.waiting[:_SHOWN]],
        "queuedCount": len(state.waiting) + state.beyond,
        "staleTakeoverCount": state.takeovers,
        "trellis": _STATE.write(state),
    }


CODEC: Final = Codec(_write, lambda raw: _STATE.decode(raw["trellis"]))


def waiter_of(definition: Definition, head: Head, order: int, *, is_unresolved: bool) -> Waiter:
    """Return a waiting job as its key lists it."""
    policy = definition.policy.key
    return Waiter(
        definition.id,
        order,
        definition.priority,
        head.run_at,
        1 if policy is None else policy.active,
        head.claims > 0,
        is_unresolved,
    )


def enter(state: KeyState, waiter: Waiter) -> KeyState:
    """Return the state with a waiting job, at its place in the line."""
    others = (each for each in state.waiting if each.id != waiter.id)
    return state._replace(waiting=tuple(sorted((*others, waiter), key=lambda each: each.rank)))


def leave(state: KeyState, job_id: JobId) -> KeyState:
    """Return the state after a job waits no more."""
    return state._replace(waiting=tuple(each for each in state.waiting if each.id != job_id))


class Handed(NamedTuple):
    """A state after free slots were given to waiting jobs."""

    state: KeyState
    #: Jobs that may start now or at their run time, and need a hint: those that got a slot, and
    #: those that have theirs back after lingering.
    jobs: list[JobId]
    #: How many slots were taken before jobs got one.
    taken: int
    #: The last due job that was looked at; and whether no slot was free for it.
    reached: Rank | None
    is_full: bool


def hand_over(state: KeyState, now: Instant, due: Iterable[JobId] = ()) -> Handed:
    """Return the state after free slots were given to waiting jobs in the order of claims.

    `due` names jobs whose time has come although the clock does not say so. Slots whose lingering
    is over are free.
    """
    before, state = state, end_lingering(state, lambda slot: (slot.linger_until or now) <= now)
    known, slots, jobs = set(due), list(state.slots), returned_to(before, state)
    with_slot = {each.id for each in slots if each.linger_until is None}
    ready = (
        each
        for each in state.waiting
        if each.id not in with_slot
        and not each.is_unresolved
        and (each.run_at <= now or each.id in known)
    )
    reached, is_full = None, False
    for each in sorted(ready, key=lambda one: one.rank):
        reached, is_full = each.rank, len(slots) >= each.active
        if is_full:
            break
        slots.append(Slot(each.id, each.order))
        jobs.append(each.id)
    after = state._replace(slots=tuple(slots))
    return Handed(after, jobs, len(state.slots), reached, is_full)


def give_to_attempt(state: KeyState, job_id: JobId, fence: Fence) -> KeyState:
    """Return the state after the job that has a slot was claimed."""
    slots = tuple(
        each._replace(fence=fence) if each.id == job_id and each.linger_until is None else each
        for each in state.slots
    )
    return leave(state._replace(slots=slots), job_id)


def settle(
    state: KeyState,
    transition: Transition,
    order: int,
    linger_until: Instant | None,
    *,
    is_unresolved: bool,
) -> KeyState:
    """Return the state after a transition: its slot is kept, freed or lingers; it waits, or not."""
    definition, head = transition.definition, transition.head
    state = _update(state, transition, linger_until)
    if head.state not in WAITING:
        return leave(state, definition.id)
    waiter = waiter_of(definition, head, order, is_unresolved=is_unresolved)
    return enter(state, waiter)


def _update(state: KeyState, transition: Transition, linger_until: Instant | None) -> KeyState:
    definition, head = transition.definition, transition.head
    slot = state.slot_of(definition.id)
    if slot is None:
        return state
    effect, keeps = slot_effect(transition), keeps_slot(definition, head)
    others = tuple(each for each in state.slots if each is not slot)
    if effect == "linger" and linger_until is not None:
        return state._replace(
            slots=(*others, slot._replace(linger_until=linger_until, keeps=keeps))
        )
    if effect == "keep" or keeps:
        return state._replace(slots=(*others, slot._replace(fence=head.fence)))
    return state._replace(slots=others)


def end_lingering(state: KeyState, is_over: Callable[[Slot], bool]) -> KeyState:
    """Return the state after the lingering of these slots has ended.

    Such a slot is free, unless its job keeps it for its next attempt and has no other.
    """
    slots: list[Slot] = []
    held = {each.id for each in state.slots if each.linger_until is None}
    may_keep = {each.id for each in state.waiting} - held
    for slot in state.slots:
        if slot.linger_until is None or not is_over(slot):
            slots.append(slot)
        elif slot.keeps and slot.id in may_keep:
            may_keep.remove(slot.id)  # of several slots of the job it keeps one
            slots.append(slot._replace(linger_until=None, fence=None, keeps=False))
    return (
        state
        if len(slots) == len(state.slots) and tuple(slots) == state.slots
        else (state._replace(slots=tuple(slots)))
    )


def returned_to(before: KeyState, after: KeyState) -> list[JobId]:
    """Return the jobs that have their slots back because the lingering of these has ended."""
    lingered = {each.id for each in before.slots if each.linger_until is not None}
    return [
        each.id
        for each in after.slots
        if each.linger_until is None and each.id in lingered and each not in before.slots
    ]


def next_order(state: KeyState, now: Instant) -> int:
    """Return the place of a new job in the order of creation.

    It is above those of all jobs that were created before, also of those that have left the state
    and come back: the time is above them when the state of an unused key was deleted.
    """
    return max(state.latest + 1, now)
