"""A choice of jobs: look at them, count them, or do one thing to all of them.

A bulk verb goes through everything that fits, not just a page. Each job is decided on its own, as a
single command would be, and what became of it is counted; one that is refused stops nothing. A
filter that names no state means, for a verb, the states in which the lifecycle allows it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from trellis.core.commands import Cancel, Command, Dismiss, Replay, Retry
from trellis.core.durations import to_datetime
from trellis.core.lifecycle import RULES
from trellis.core.states import ENDED, State
from trellis.engines.port import Engine
from trellis.insight.views import JobView, job_view
from trellis.operations.bulk import Progress, Tally, apply_to, clone_each, remove_each, silent
from trellis.operations.choosing import Matching, Source
from trellis.portal import iterated, synced

Verb = Literal["cancel", "retry", "replay", "dismiss", "clone", "delete"]


def _sources(command: type[Command]) -> frozenset[State]:
    return frozenset(state for rule in RULES if rule.command is command for state in rule.sources)


#: In which states the lifecycle allows a verb.
ALLOWED: Final[dict[Verb, frozenset[State]]] = {
    "cancel": _sources(Cancel),
    "retry": _sources(Retry),
    "replay": _sources(Replay),
    "dismiss": _sources(Dismiss),
    "clone": frozenset(State),
    "delete": ENDED,
}


class Selection:
    """Jobs to look at with `async for`, or to do something to."""

    def __init__(self, engine: Callable[[], Engine], source: Source, actor: str) -> None:
        self._engine = engine
        self._source = source
        self._actor = actor

    async def __aiter__(self) -> AsyncIterator[JobView]:
        async for batch in self._source.batches(self._engine()):
            for _, record in batch.jobs:
                if record is not None:
                    yield job_view(record)

    async def count(self) -> int:
        """Return how many there are."""
        return await self._source.count(self._engine())

    def meant_for(self, verb: Verb) -> Selection:
        """Return those that this verb would be tried on."""
        return Selection(self._engine, self._source.among(ALLOWED[verb]), self._actor)

    async def cancel(
        self, reason: str = "", *, force: bool = False, progress: Progress = silent
    ) -> Tally:
        """Stop them: waiting ones at once, running ones by asking, or at once with `force`."""
        return await self._apply("cancel", Cancel(reason, force, self._actor), progress)

    async def retry(self, *, progress: Progress = silent) -> Tally:
        """Run failed ones again, with a fresh budget of attempts."""
        return await self._apply("retry", Retry(self._actor), progress)

    async def replay(self, *, progress: Progress = silent) -> Tally:
        """Bring dead letters back, with a fresh budget of attempts."""
        return await self._apply("replay", Replay(self._actor), progress)

    async def dismiss(self, *, progress: Progress = silent) -> Tally:
        """Close dead letters for good."""
        return await self._apply("dismiss", Dismiss(self._actor), progress)

    async def clone(self, *, progress: Progress = silent) -> Tally:
        """Create a new job from each one's definition."""
        return await clone_each(self._engine(), self._source, progress)

    async def delete(self, *, progress: Progress = silent) -> Tally:
        """Remove ended ones at once, with their journals and logs."""
        source = self._source.among(ALLOWED["delete"])
        return await remove_each(self._engine(), source, progress)

    async def _apply(self, verb: Verb, command: Command, progress: Progress) -> Tally:
        source = self._source.among(ALLOWED[verb])
        return await apply_to(self._engine(), source, command, progress)

    # -- for code without an event loop --------------------------------------------------------

    __iter__ = iterated(__aiter__)
    count_sync = synced(count)
    cancel_sync = synced(cancel)
    retry_sync = synced(retry)
    replay_sync = synced(replay)
    dismiss_sync = synced(dismiss)
    clone_sync = synced(clone)
    delete_sync = synced(delete)


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, newest first; ask for the next one with `after=page.next_after`."""

    #: The engine's time.
    as_of: datetime
    jobs: tuple[JobView, ...]
    next_after: int | None


class Found(Selection):
    """What fits a filter, newest first."""

    def __init__(self, engine: Callable[[], Engine], source: Matching, actor: str) -> None:
        super().__init__(engine, source, actor)
        self._matching = source

    async def page(self, *, after: int | None = None, limit: int = 50) -> JobPage:
        """Return one page."""
        page = await self._matching.page(self._engine(), after, limit)
        return JobPage(to_datetime(page.as_of), tuple(map(job_view, page.jobs)), page.next_after)

    page_sync = synced(page)
