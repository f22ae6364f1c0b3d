"""The line of a key: its state, and pages of their own for what a state cannot hold.

A line that is longer than `WHOLE` is divided by rank: the state has the first jobs and a list of
pages, each a message with up to `PAGE` jobs. All ranks of a page are below those of the next one,
so that a step reads and writes the state and, now and then, a page, however long the line is. Pages
change only together with the state. Jobs that have a slot are always in the state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, NamedTuple

from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.core.states import ENDED
from trellis.engines.jetstream import keys
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.keys import NEVER, KeyState, Page, Slot, Waiter
from trellis.engines.jetstream.store import Current
from trellis.engines.jetstream.subjects import JobName
from trellis.engines.wire import codec_of

#: The longest line that is in the state alone; how many jobs of a longer one the state has, and how
#: many a page has at most.
WHOLE: Final = 128
HEAD: Final = 32
PAGE: Final = 128


class Part(NamedTuple):
    """What a page contains."""

    waiting: tuple[Waiter, ...]


_PART: Final = codec_of(Part)


class Line:
    """The line of one key, read and written through a draft."""

    def __init__(self, draft: Draft, service: str, job_type: str, key_hash: str) -> None:
        self._draft = draft
        self._names = service, job_type
        self.subject = draft.store.subjects.key(service, job_type, key_hash)
        self._first = False

    @classmethod
    def at(cls, draft: Draft, subject: str) -> Line:
        """Return the line whose state has this subject."""
        *_, service, job_type, _, key_hash = subject.split(".")
        return cls(draft, service, job_type, key_hash)

    async def read(self, key: str) -> KeyState:
        """Return the state with the first jobs of the line."""
        return await self._draft.value(self.subject, keys.CODEC) or KeyState(key)

    async def load(self, state: KeyState, pages: Iterable[Page]) -> KeyState:
        """Return the state with the jobs of these pages."""
        for page in pages:
            part: Part | None = await self._draft.value(self._page(page.number), _PART)
            found = () if part is None else part.waiting
            state = state._replace(
                waiting=tuple(sorted((*state.waiting, *found), key=lambda each: each.rank)),
                pages=tuple(each for each in state.pages if each.number != page.number),
                loaded=(*state.loaded, page.number),
            )
        return state

    async def find(self, state: KeyState, current: Current) -> KeyState:
        """Return the state with the page in which a waiting job is, if it is in one."""
        definition, head = current.record
        place = -definition.priority, head.run_at, current.created.request.order
        # A job that waits for others, or whose move has not ended, stands after those that do not.
        for rank in (place, (place[0], NEVER, place[2])):
            index = bisect_right(state.pages, rank, key=lambda page: page.first) - 1
            if not state.has(definition.id) and index >= 0:
                state = await self.load(state, state.pages[index : index + 1])
        return state

    async def hand_over(
        self, state: KeyState, now: Instant, due: Iterable[JobId] = ()
    ) -> keys.Handed:
        """Return the state after free slots were given to the first due jobs of the line."""
        due = list(due)
        while True:
            handed = keys.hand_over(state, now, due)
            page = next((each for each in state.pages if _may_precede(each, handed, now)), None)
            if page is None:
                return handed
            state = await self.load(state, [page])

    async def over(self, state: KeyState) -> list[Slot]:
        """Return the slots whose job has ended or is not there: an incomplete write has left them.

        That they are is staged as a guard of the next write.
        """
        found = []
        for slot in state.slots:
            owner = None if slot.linger_until is not None else await self._draft.find(slot.id)
            if slot.linger_until is not None or (
                isinstance(owner, Current) and owner.head.state not in ENDED
            ):
                continue
            sequence = 0 if owner is None else owner.sequence
            self._draft.guard(JobName(*self._names, slot.id), sequence)
            found.append(slot)
        return found

    async def has_lost(self, state: KeyState, current: Current) -> bool:
        """Return whether a waiting job cannot get a slot because of an incomplete write.

        It is not in its line, or it is the first one and a slot belongs to no job that is there.
        """
        job_id = current.job.id
        if state.slot_of(job_id) is not None:
            return False
        if not state.has(job_id):
            return True
        next_one = next((each for each in state.waiting if state.slot_of(each.id) is None), None)
        is_next = next_one is not None and next_one.id == job_id
        return is_next and bool(await self.over(state))

    async def put(self, state: KeyState, *, first: bool = False) -> None:
        """Stage the state, before the events if `first`, and the pages that have changed."""
        self._first = first
        if state.beyond + len(state.waiting) <= WHOLE:
            state = await self.load(state, state.pages)
            await self._store_pages(state, {})
            return
        owners = {each.id for each in state.slots}
        held = [each for each in state.waiting if each.id in owners]
        free = [each for each in state.waiting if each.id not in owners]
        edge = state.pages[0].first if state.pages else None
        near = [each for each in free if edge is None or each.rank < edge][:HEAD]
        last = state.pages[-1] if state.pages else None
        groups: dict[Page | None, list[Waiter]] = {}
        for each in free[len(near) :]:
            index = bisect_right(state.pages, each.rank, key=lambda page: page.first) - 1
            groups.setdefault(state.pages[max(index, 0)] if last else None, []).append(each)
        parts: list[list[Waiter]] = []
        for page, added in groups.items():
            parts += _divided(await self._merged(page, added), is_last=page == last)
        touched = {page.number for page in groups if page is not None}
        state = state._replace(
            waiting=tuple(sorted((*held, *near), key=lambda each: each.rank)),
            pages=tuple(page for page in state.pages if page.number not in touched),
            loaded=(*state.loaded, *touched),
        )
        used = {page.number for page in state.pages}
        numbers = (number for number in count(1) if number not in used)
        await self._store_pages(state, dict(zip(numbers, parts, strict=False)))

    async def _merged(self, page: Page | None, added: Sequence[Waiter]) -> list[Waiter]:
        """Return the jobs of a page with further ones."""
        part: Part | None = None
        if page is not None:
            part = await self._draft.value(self._page(page.number), _PART)
        found = () if part is None else part.waiting
        return sorted((*found, *added), key=lambda each: each.rank)

    async def _store_pages(self, state: KeyState, parts: dict[int, list[Waiter]]) -> None:
        """Stage pages and the state; the pages that were loaded and are not stored are deleted."""
        new = [_page_of(number, waiting) for number, waiting in parts.items() if waiting]
        pages = tuple(sorted((*state.pages, *new), key=lambda page: page.first))
        after = state._replace(pages=pages, loaded=())
        self._draft.put(self.subject, None if after.is_empty else after, first=self._first)
        for number in {*state.loaded, *parts}:
            subject, waiting = self._page(number), tuple(parts.get(number, ()))
            wanted = Part(waiting) if waiting else None
            if await self._draft.value(subject, _PART) != wanted:
                self._draft.put(subject, wanted, first=self._first)

    def _page(self, number: int) -> str:
        head, _, key_hash = self.subject.rpartition(".h.")
        return f"{head}.w.{key_hash}.{number}"


def may_change(state: KeyState) -> bool:
    """Return whether a slot may be handed over later, without a write before."""
    return bool(state.waiting or state.pages) or any(
        each.linger_until is not None for each in state.slots
    )


def may_move(state: KeyState, now: Instant) -> bool:
    """Return whether a slot is to be handed over, as far as the state tells."""
    handed = keys.hand_over(state, now)
    return handed.state != state or any(_may_precede(page, handed, now) for page in state.pages)


def _may_precede(page: Page, handed: keys.Handed, now: Instant) -> bool:
    """Return whether a job of a page may get a slot instead of, or after, those that got one."""
    taken = len(handed.state.slots)
    if page.earliest > now or page.active <= handed.taken:
        return False
    if handed.reached is not None and page.first < handed.reached:
        return True
    return not handed.is_full and page.active > taken


def _page_of(number: int, waiting: Sequence[Waiter]) -> Page:
    return Page(
        number,
        waiting[0].rank,
        len(waiting),
        min(each.rank[1] for each in waiting),
        max(each.active for each in waiting),
    )


def _divided(waiting: list[Waiter], *, is_last: bool) -> list[list[Waiter]]:
    """Return the jobs of a page that may have grown as pages: at the end of a line, full ones."""
    number = -(-len(waiting) // PAGE)
    size = PAGE if is_last or number < 2 else -(-len(waiting) // number)  # noqa: PLR2004
    return [waiting[start : start + size] for start in range(0, len(waiting), size)]
