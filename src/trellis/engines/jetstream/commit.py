"""`commit`: each decision is one event, guarded by the sequence of the event it was decided on.

What changes together with the job (the state of its key, what follows its end, the entry of the
audit) is in the same batch. Decisions about jobs without any of that are stored many at a time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from trellis.core.admission import Reject, revive_key
from trellis.core.audit import recorded
from trellis.core.commands import Resolve
from trellis.core.durations import Instant
from trellis.core.followups import is_end, is_followed
from trellis.core.job import Fence, Head, JobId
from trellis.core.lifecycle import Transition
from trellis.core.slots import may_run_on
from trellis.core.states import ENDED, WAITING, State
from trellis.engines.jetstream import keys
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.followups import Followups
from trellis.engines.jetstream.hints import schedule
from trellis.engines.jetstream.limits import LimitTable, lane_of
from trellis.engines.jetstream.link import BATCH, Written
from trellis.engines.jetstream.locks import LockTable
from trellis.engines.jetstream.sessions import SessionTable
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.values import CommitResult, Committed, Conflict, KeyRefused
from trellis.errors import ConflictPersists, Unstorable

_TRIES: Final = 50
#: From this number of plain decisions on, one batch is faster than as many writes at once.
_BATCHED: Final = 8
_TOGETHER: Final = 500
#: How many decisions that change the same states are stored in one batch.
_SHARED: Final = 100
_REMEMBERED: Final = 20_000


class Seen:
    """The jobs as this process last saw them: their sequences guard the next write."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[int, Current] = OrderedDict()

    def add(self, current: Current) -> None:
        """Remember a job."""
        self._jobs[current.definition.row] = current
        if len(self._jobs) > _REMEMBERED:
            self._jobs.popitem(last=False)

    def find(self, row: int, head: Head) -> Current | None:
        """Return the job if it was seen with this version and fence."""
        found = self._jobs.get(row)
        if found is None or (found.head.version, found.head.fence) != (head.version, head.fence):
            return None
        return found

    def drop(self, row: int) -> None:
        """Forget a job."""
        self._jobs.pop(row, None)


class CommitVerb:
    """The part of the engine that stores decisions."""

    _store: Store
    _seen: Seen
    _sessions: SessionTable
    _followups: Followups
    _locks: LockTable
    _limits: LimitTable

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, guarded by version and fence."""
        results: list[CommitResult | None] = [None] * len(transitions)
        plain: dict[int, Current] = {}
        for index, transition in enumerate(transitions):
            current = self._seen.find(transition.definition.row, transition.before)
            if current is not None and _is_plain(transition, current):
                plain[index] = current
        rows = [transitions[index].definition.row for index in plain]
        if len(plain) >= _BATCHED and len(set(rows)) == len(rows):
            for index in await self._commit_plain(transitions, plain):
                results[index] = Committed()
        await self._commit_rest(transitions, results)
        return [each for each in results if each is not None]

    async def _commit_rest(
        self, transitions: Sequence[Transition], results: list[CommitResult | None]
    ) -> None:
        """Store the decisions that have no answer yet: about each job in their order."""
        groups: dict[int, list[int]] = {}
        for index, transition in enumerate(transitions):
            if results[index] is None:
                groups.setdefault(transition.definition.row, []).append(index)

        async def in_turn(indexes: Iterable[int]) -> None:
            for index in indexes:
                results[index] = await self._commit_one(transitions[index])

        if len(groups) > 1:
            # What follows from a decision must not overtake another decision of the call: first
            # those are stored that nothing follows from, then the others, together.
            singles = [indexes[0] for indexes in groups.values() if len(indexes) == 1]
            await asyncio.gather(*(self._attempt(transitions, each, results) for each in singles))
            left = [index for index in range(len(results)) if results[index] is None]
            left = await self._commit_shared(transitions, left, results)
            await in_turn(left)
            return
        for indexes in groups.values():
            await in_turn(indexes)

    async def _attempt(
        self, transitions: Sequence[Transition], index: int, results: list[CommitResult | None]
    ) -> None:
        """Store a decision that changes nothing but its job, if the job is as it was last seen."""
        transition = transitions[index]
        row = transition.definition.row
        current = self._seen.find(row, transition.before)
        if current is None or not _is_plain(transition, current):
            return
        draft = Draft(self._store)
        draft.know(current)
        draft.transition(current, transition)
        if isinstance(await draft.write(), Written):
            await self._after(transition, draft.written(current.job.id))
            results[index] = Committed()
        else:
            self._seen.drop(row)

    async def _commit_plain(
        self, transitions: Sequence[Transition], plain: dict[int, Current]
    ) -> list[int]:
        """Store decisions that change nothing but their jobs; return which are stored."""
        stored: list[int] = []
        indexes = list(plain)
        for start in range(0, len(indexes), _TOGETHER):
            part = indexes[start : start + _TOGETHER]
            draft = Draft(self._store)
            for index in part:
                draft.know(plain[index])
                draft.transition(plain[index], transitions[index])
            try:
                answer = await draft.write()
            except Unstorable:
                continue  # each alone, so that only one of them fails
            if isinstance(answer, Written):
                stored += part
                for index in part:
                    await self._after(transitions[index], draft.written(plain[index].job.id))
        return stored

    async def _commit_shared(
        self,
        transitions: Sequence[Transition],
        indexes: Sequence[int],
        results: list[CommitResult | None],
    ) -> list[int]:
        """Store decisions that change the same states in one batch; return those left over."""
        left: list[int] = []
        for start in range(0, len(indexes), _SHARED):
            part = indexes[start : start + _SHARED]
            chosen = [transitions[index] for index in part]
            # The second time, no job is taken as it was last seen.
            if not await self._commit_batch(chosen) and not await self._commit_batch(chosen):
                left += part
                continue
            for index in part:
                results[index] = Committed()
        return left

    async def _commit_batch(self, transitions: Sequence[Transition]) -> bool:
        """Store decisions in one batch, what follows from any of them after all of them."""
        jobs = await asyncio.gather(*map(self._held_against, transitions))
        rows = {each.definition.row for each in transitions}
        draft, ended = Draft(self._store), []
        if len(rows) < len(transitions):
            return False
        for transition, current in zip(transitions, jobs, strict=True):
            if current is None:
                return False
            draft.know(current)
            if await self._stage(draft, current, transition, follows=False) is not None:
                return False
            if is_end(transition):
                ended.append(transition)
        await self._followups.end(draft, sorted(ended, key=lambda each: each.definition.row))
        if len(draft.messages) > BATCH or not isinstance(await draft.write(), Written):
            for row in rows:
                self._seen.drop(row)
            return False
        for transition in transitions:
            await self._after(transition, draft.written(transition.definition.id))
        return True

    async def _held_against(self, transition: Transition) -> Current | None:
        """Return the job if it is still as the decision says."""
        definition, before = transition.definition, transition.before
        current = self._seen.find(definition.row, before)
        if current is None:
            current = await self._store.at_row(definition.row)
        if current is None:
            return None
        head = current.head
        is_same = (head.version, head.fence) == (before.version, before.fence)
        return current if is_same else None

    async def _commit_one(self, transition: Transition) -> CommitResult:
        definition, before = transition.definition, transition.before
        for attempt in range(_TRIES):
            current = None if attempt else self._seen.find(definition.row, before)
            if current is None:
                current = await self._store.at_row(definition.row)
            if current is None:
                return Conflict(None)
            head = current.head
            if head.version != before.version or head.fence != before.fence:
                return Conflict(current.record)
            draft = Draft(self._store)
            draft.know(current)
            refused = await self._stage(draft, current, transition)
            if refused is not None:
                return refused
            if isinstance(await draft.write(), Written):
                await self._after(transition, draft.written(definition.id))
                return Committed()
            self._seen.drop(definition.row)
        raise ConflictPersists(
            f"The decision about job {definition.id} was not stored: what changes with it was "
            f"changed by others {_TRIES} times in a row. Try again.",
            job_id=definition.id,
        )

    async def _stage(
        self, draft: Draft, current: Current, transition: Transition, *, follows: bool = True
    ) -> KeyRefused | None:
        """Stage a decision and all that changes with it; or return why it cannot be stored."""
        definition = transition.definition
        until = await self._linger_until(transition)
        if definition.key_hash is not None:
            refused = await self._stage_key(draft, transition, until)
            if refused is not None:
                return refused
        fence = transition.before.fence
        if until is not None and fence is not None:
            await self._locks.linger(fence, until)
            await self._limits.linger(draft, definition, fence, until)
        draft.transition(current, transition)
        found = recorded(transition)
        if found is not None:
            draft.record(*found, at=transition.event.at)
        if follows and is_end(transition):
            await self._followups.end(draft, [transition])
        return None

    async def _stage_following(
        self, draft: Draft, current: Current, transition: Transition
    ) -> KeyRefused | None:
        """Stage a transition that follows from another one of the same batch."""
        return await self._stage(draft, current, transition, follows=False)

    async def _linger_until(self, transition: Transition) -> Instant | None:
        """Return until when slots and locks of an attempt linger that was ended from outside."""
        fence = transition.before.fence
        if fence is None or not may_run_on(transition):
            return None
        session = (await self._sessions.read(fence.session)).value
        if session is None or session.ended_at is not None:
            return None
        return self._store.time.now() + session.lease

    async def _stage_key(
        self, draft: Draft, transition: Transition, until: Instant | None
    ) -> KeyRefused | None:
        definition, head = transition.definition, transition.head
        subject = self._store.subjects.key(
            definition.service, definition.type, definition.key_hash or ""
        )
        found = await draft.value(subject, keys.CODEC)
        state: keys.KeyState = found or keys.KeyState(definition.key or "")
        if transition.before.state in ENDED and head.state in WAITING:
            state, handed = keys.hand_over(state, draft.now)
            key = definition.policy.key
            decision = None if key is None else revive_key(key, state.facts)
            if isinstance(decision, Reject):
                return KeyRefused(*decision)
            await self._hint(draft, handed)
        was = next((each for each in state.waiting if each.id == definition.id), None)
        is_unresolved = (
            was is not None and was.is_unresolved and type(transition.command) is not Resolve
        )
        state = keys.settle(state, transition, until, is_unresolved=is_unresolved)
        if transition.before.state is State.ACTIVE and not transition.command.stopped:
            state = state._replace(takeovers=state.takeovers + 1)
        state, handed = keys.hand_over(state, max(draft.now, transition.event.at))
        draft.put(subject, None if state.is_empty else state)
        await self._hint(draft, [each for each in handed if each != definition.id])
        if until is not None and state.waiting:
            await self._schedule(state, definition.service, definition.type, until)
        return None

    async def _hint(self, draft: Draft, handed: Iterable[JobId]) -> None:
        for job_id in handed:
            current = await draft.job(job_id)
            if current is not None:
                draft.hint(current)

    async def _schedule(
        self, state: keys.KeyState, service: str, job_type: str, until: Instant
    ) -> None:
        """Have the next waiting job of a key looked at when its lingering slot is free."""
        names = await asyncio.gather(*(self._store.job(each.id) for each in state.waiting[:1]))
        for current in names:
            if current is not None and (service, job_type) == current.job[:2]:
                at = max(until, current.head.run_at)
                await self._store.link.write(
                    schedule(self._store.subjects, current.job, at, current.head.run_at, "")
                )

    async def _after(self, transition: Transition, current: Current) -> None:
        """Remember the job; acknowledge the work message of an attempt that is over."""
        self._seen.add(current)
        fence = transition.before.fence
        if fence is None or current.head.fence == fence:
            return
        if self._limits.is_limited(lane_of(transition.definition)):
            await self._store.link.tell(self._store.subjects.woken("limit"))
        held = self._sessions.held.get(fence)
        if held is not None:
            await self._store.link.tell(held.ack, b"+ACK")
            if not may_run_on(transition):
                self._sessions.drop(fence)

    async def _free_lingering(self, fences: Iterable[Fence]) -> int:
        """End the lingering of the slots of these attempts; return how many ended."""
        ended = 0
        places = None
        for fence in fences:
            held = self._sessions.held.get(fence)
            if held is None:
                places = places or await self._sessions.places(fence.session)
                held = places.get(fence)
            if held is None:
                continue
            created = await self._store.created(held.row)
            if created is not None and created.definition.key_hash is not None:
                subject = self._store.subjects.key(
                    held.service, held.type, created.definition.key_hash
                )
                ended += await self._end_in_key(subject, partial(_has_fence, fence))
            self._sessions.drop(fence)
        return ended

    async def _end_in_key(self, subject: str, is_over: Callable[[keys.Slot], bool]) -> int:
        """End lingering in one key, and hand over what is free then; return how many ended."""
        while True:
            draft = Draft(self._store)
            state = await draft.value(subject, keys.CODEC)
            if state is None:
                return 0
            after = keys.end_lingering(state, is_over)
            ended = sum(each.linger_until is not None for each in state.slots) - sum(
                each.linger_until is not None for each in after.slots
            )
            waiting = {each.id for each in after.waiting}
            kept = [
                each.id for each in after.slots
                if each.linger_until is None and each.id in waiting and each not in state.slots
            ]  # fmt: skip
            after, handed = keys.hand_over(after, draft.now)
            if after == state:
                return 0
            draft.put(subject, None if after.is_empty else after)
            await self._hint(draft, [*kept, *handed])
            if isinstance(await draft.write(), Written):
                return ended


def _is_plain(transition: Transition, current: Current) -> bool:
    """Return whether a decision changes nothing but its job."""
    return (
        transition.definition.key_hash is None
        and not current.is_watched
        and not is_followed(transition)
        and not may_run_on(transition)
        and recorded(transition) is None
    )


def _has_fence(fence: Fence, slot: keys.Slot) -> bool:
    return slot.fence == fence
