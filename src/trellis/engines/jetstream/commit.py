"""`commit`: each decision is one event, guarded by the sequence of the event it was decided on.

What changes together with the job (the state of its key, what follows its end, the entry of the
audit) is in the same batch. Decisions about jobs without any of that are stored many at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

from trellis.core.admission import Reject, revive_key
from trellis.core.audit import recorded
from trellis.core.commands import Crash, LoseLease, Resolve
from trellis.core.durations import Instant
from trellis.core.followups import is_end, is_followed
from trellis.core.job import Fence, Head, JobId
from trellis.core.lifecycle import Transition
from trellis.core.slots import may_run_on
from trellis.core.states import ENDED, WAITING
from trellis.engines.jetstream import keys
from trellis.engines.jetstream.draft import OVERHEAD, Draft
from trellis.engines.jetstream.followups import Followups
from trellis.engines.jetstream.hints import hint_later
from trellis.engines.jetstream.limits import LimitTable, lane_of
from trellis.engines.jetstream.line import Line
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.locks import LockTable
from trellis.engines.jetstream.plain import PlainWriter
from trellis.engines.jetstream.sessions import SessionTable
from trellis.engines.jetstream.store import Current, Remembered, Store
from trellis.engines.jetstream.subjects import JobName
from trellis.engines.jetstream.writing import BATCH
from trellis.engines.values import CommitResult, Committed, Conflict, KeyRefused
from trellis.errors import ConflictPersists, EngineError, Unstorable

_TRIES: Final = 50
#: How many decisions that change the same states are stored in one batch.
_SHARED: Final = 100
_REMEMBERED: Final = 20_000


class Seen:
    """The jobs as this process last saw them: their sequences guard the next write."""

    def __init__(self) -> None:
        self._jobs = Remembered[Current]()
        #: Jobs that were seen, also those whose present state is not known any more.
        self._ids: OrderedDict[JobId, None] = OrderedDict()

    def add(self, current: Current) -> None:
        """Remember a job."""
        definition = current.definition
        self._jobs.put(definition.row, current, len(definition.payload))
        self._ids[definition.id] = None
        self._ids.move_to_end(definition.id)
        if len(self._ids) > _REMEMBERED:
            self._ids.popitem(last=False)

    def has(self, job_id: JobId) -> bool:
        """Return whether a job was seen."""
        return job_id in self._ids

    def find(self, row: int, head: Head) -> Current | None:
        """Return the job if it was seen with this version and fence."""
        found = self._jobs.get(row)
        if found is None or (found.head.version, found.head.fence) != (head.version, head.fence):
            return None
        return found

    def drop(self, row: int) -> None:
        """Forget a job."""
        self._jobs.drop(row)


class CommitVerb:
    """The part of the engine that stores decisions."""

    _store: Store
    _seen: Seen
    _sessions: SessionTable
    _followups: Followups
    _locks: LockTable
    _limits: LimitTable
    _plain: PlainWriter

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, guarded by version and fence."""
        for transition in transitions:
            self._check_size(transition)
        results: list[CommitResult | None] = [None] * len(transitions)
        rows = Counter(each.definition.row for each in transitions)
        plain: dict[int, tuple[Current, Transition]] = {}
        for index, transition in enumerate(transitions):
            row = transition.definition.row
            current = self._seen.find(row, transition.before)
            if current is not None and rows[row] == 1 and _is_plain(transition, current):
                plain[index] = current, transition
        # What follows from a decision must not overtake another decision of the call: first those
        # are stored that nothing follows from.
        await self._commit_plain(plain, results)
        await self._commit_rest(transitions, rows, results)
        return [each for each in results if each is not None]

    def _check_size(self, transition: Transition) -> None:
        """Raise `Unstorable` for a result or error that the server does not take.

        Before anything is stored: the caller divides such a call and repeats its parts.
        """
        result, error = getattr(transition.command, "result", None), transition.head.error
        texts = [result, *(error or ())]
        size = sum(len(text.encode()) for text in texts if isinstance(text, str))
        most = self._store.link.max_payload
        if size + OVERHEAD > most:
            raise Unstorable(
                f"The result or error has {size:,} bytes; the NATS server takes messages of "
                f"{most:,} bytes. Nothing was stored. Store the data elsewhere and return its "
                "name, or raise max_payload."
            )

    async def _commit_plain(
        self, plain: dict[int, tuple[Current, Transition]], results: list[CommitResult | None]
    ) -> None:
        """Store decisions that change nothing but their jobs, if these are as last seen."""
        with suppress(Unstorable):  # each alone, so that only one of them fails
            stored = await self._plain.store(list(plain.values()))
            for index, found in zip(plain, stored, strict=True):
                if isinstance(found, Current):
                    results[index] = Committed()
                    await self._after(plain[index][1], found)
                else:
                    self._seen.drop(plain[index][1].definition.row)
            for found in stored:
                if isinstance(found, EngineError):
                    raise found

    async def _commit_rest(
        self,
        transitions: Sequence[Transition],
        rows: Counter[int],
        results: list[CommitResult | None],
    ) -> None:
        """Store the decisions that have no answer yet: about each job in their order."""
        left = [index for index, result in enumerate(results) if result is None]
        if len(rows) > 1:
            left = await self._commit_shared(transitions, left, results)
        for index in left:
            results[index] = await self._commit_one(transitions[index])

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
        await self._add_hooks(draft, transitions)
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
            await self._add_hooks(draft, [transition])
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
            refused = await self._stage_key(draft, current, transition, until)
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

    async def _add_hooks(self, draft: Draft, transitions: Sequence[Transition]) -> None:
        for transition in transitions:
            if is_end(transition):
                await self._followups.add_hooks(draft, transition)

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
        self, draft: Draft, current: Current, transition: Transition, until: Instant | None
    ) -> KeyRefused | None:
        definition, head = transition.definition, transition.head
        line = Line(draft, definition.service, definition.type, definition.key_hash or "")
        state = await line.read(definition.key or "")
        if transition.before.state in ENDED and head.state in WAITING:
            state, handed, *_ = await line.hand_over(state, draft.now)
            key = definition.policy.key
            decision = None if key is None else revive_key(key, state.facts)
            if isinstance(decision, Reject):
                return KeyRefused(*decision)
            await self._hint(draft, handed)
        elif transition.before.state in WAITING:
            state = await line.find(state, current)
        was = next((each for each in state.waiting if each.id == definition.id), None)
        is_unresolved = (
            was is not None and was.is_unresolved and type(transition.command) is not Resolve
        )
        order = current.created.request.order
        state = keys.settle(state, transition, order, until, is_unresolved=is_unresolved)
        if isinstance(transition.command, LoseLease | Crash) and not head.blocked:
            state = state._replace(takeovers=state.takeovers + 1)
        state, handed, *_ = await line.hand_over(state, max(draft.now, transition.event.at))
        # A job that comes back to its key must be there first; what leaves it can be done again.
        await line.put(state, first=transition.before.state not in ENDED)
        await self._hint(draft, [each for each in handed if each != definition.id])
        if until is not None:
            await self._schedule(await line.load(state, state.pages[:1]), current.job, until)
        return None

    async def _hint(self, draft: Draft, handed: Iterable[JobId]) -> None:
        for job_id in handed:
            current = await draft.job(job_id)
            if current is not None:
                draft.hint(current)

    async def _schedule(self, state: keys.KeyState, job: JobName, until: Instant) -> None:
        """Have the next waiting job of a key looked at when its lingering slot is free."""
        waiting = (each.id for each in state.waiting if state.slot_of(each.id) is None)
        for job_id in islice(waiting, 1):
            current = await self._store.job(job_id)
            if current is not None and job[:2] == current.job[:2]:
                await hint_later(self._store, current, until)

    async def _after(self, transition: Transition, current: Current) -> None:
        """Remember the job; deal with the locks and the work message of an attempt that is over."""
        self._seen.add(current)
        fence = transition.before.fence
        if fence is None or current.head.fence == fence:
            return
        with suppress(EngineError):  # the end is stored
            until = await self._linger_until(transition)
            if until is not None:
                await self._locks.linger(fence, until)
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
            # A handler may have stopped before its attempt is settled: the claim still counts.
            if not await self._sessions.claimed({fence: held}):
                self._sessions.drop(fence)
        return ended

    async def _end_in_key(self, subject: str, is_over: Callable[[keys.Slot], bool]) -> int:
        """End lingering in one key, and hand over what is free then; return how many ended."""
        while True:
            draft = Draft(self._store)
            line = Line.at(draft, subject)
            state = await line.read("")
            after = keys.end_lingering(state, is_over)
            ended = sum(each.linger_until is not None for each in state.slots) - sum(
                each.linger_until is not None for each in after.slots
            )
            kept = keys.returned_to(state, after)
            after, handed, *_ = await line.hand_over(after, draft.now)
            if after.slots == state.slots:
                return 0
            await line.put(after)
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
