"""Listening to everything that happens to jobs: `changes` of a service and of an operator.

Each change comes at least once, in commit order; its cursor is where a program that was stopped
goes on. The engine's feed is read page by page and filtered here, so the cursor of the feed also
moves over changes that do not match.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, NamedTuple, Self, TypedDict, Unpack

from trellis.core.durations import SECOND, to_datetime
from trellis.core.events import EventKind
from trellis.core.job import Definition, Failure, mentions
from trellis.core.states import State
from trellis.engines.feed import Changes, Expired, FeedEntry
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError, CursorExpired
from trellis.insight.filters import Several, listed, read_states, split_types
from trellis.insight.following import Follower, Look
from trellis.insight.views import JobEvent, job_event
from trellis.telemetry import current
from trellis.telemetry.metrics import FEED_LAG

#: Events in one page of the engine.
_PAGE: Final = 1000


class ChangeFilters(TypedDict, total=False):
    """Which changes: every given part must match."""

    #: One type or several; "shop/sync" names its service too.
    type: Several
    #: The state after the change: one or several, or a group such as "ended".
    state: Several
    #: The kind of event: "created", "started", "completed", "failed", ...
    kind: Several


@dataclass(frozen=True, slots=True)
class JobChange:
    """One change of a job, as the feed has it."""

    #: Where to go on after this change; store it together with what you did about it.
    cursor: str
    job_id: str
    service: str
    type: str
    queue: str
    tags: Mapping[str, str]
    event: JobEvent

    @property
    def name(self) -> str:
        """Service and type, as people write them."""
        return f"{self.service}/{self.type}"


class Traits(NamedTuple):
    """What a job has from its creation on; as a wish: None means any."""

    key: str | None = None
    tenant: str | None = None
    batch: str | None = None
    parent: str | None = None
    #: The schedule that created it.
    schedule: str | None = None

    def fits(self, wish: Traits) -> bool:
        """Return whether a job with these has everything that is wished."""
        return all(want in {None, own} for own, want in zip(self, wish, strict=True))


ANY_TRAITS: Final = Traits()


def traits_of(definition: Definition) -> Traits:
    """Return the traits of a job."""
    relations = definition.relations
    if relations is None:
        return Traits(definition.key)
    return Traits(
        definition.key, relations.tenant, relations.batch, relations.parent, relations.schedule
    )


class Wanted(NamedTuple):
    """What a reader wants; empty tuples mean any."""

    services: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    kinds: tuple[EventKind, ...] = ()
    #: Each as the queue alone or as service/queue.
    queues: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    #: All of them.
    tags: tuple[tuple[str, str], ...] = ()
    #: Part of the code or message of the error that the change has, in any case.
    error: str | None = None
    #: These are no part of an entry: a reader that wants them loads the jobs.
    traits: Traits = ANY_TRAITS

    def matches(self, entry: FeedEntry) -> bool:
        """Return whether the reader wants this entry."""
        return (
            (not self.services or entry.service in self.services)
            and (not self.types or entry.type in self.types)
            and (not self.states or entry.event.state in self.states)
            and (not self.kinds or entry.event.kind in self.kinds)
            and (not self.jobs or entry.job_id in self.jobs)
            and self.has_queue(entry.service, entry.queue)
            and (not self.tags or set(self.tags) <= set(entry.tags))
            and (self.error is None or mentions(_error_of(entry), self.error))
        )

    def has_queue(self, service: str, queue: str) -> bool:
        """Return whether the reader wants what happens in this queue."""
        return not self.queues or queue in self.queues or f"{service}/{queue}" in self.queues


def wanted(service: Several | None = None, **filters: Unpack[ChangeFilters]) -> Wanted:
    """Return what filters of changes mean; raise `ConfigurationError` for a wrong one."""
    unknown = sorted(set(filters) - set(ChangeFilters.__annotations__))
    if unknown:
        raise ConfigurationError(
            f"{unknown[0]}= is not a filter of changes. Use service, type, state or kind."
        )
    services, types = split_types(listed(service), listed(filters.get("type")))
    kinds = tuple(map(_kind, listed(filters.get("kind"))))
    return Wanted(services, types, read_states(filters.get("state")), kinds)


class ChangeFeed:
    """The changes after a cursor: an asynchronous iterator that ends only when it is closed."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[tuple[Engine, Follower]]],
        after: str | None,
        service: Several | None = None,
        **filters: Unpack[ChangeFilters],
    ) -> None:
        self._wanted = wanted(service, **filters)
        self._connect = connect
        self._cursor = after
        self._changes = self._read()

    @property
    def cursor(self) -> str | None:
        """Where to go on: after the last change returned, or later if the rest did not match.

        Store it now and then when few changes match; then it cannot expire.
        """
        return self._cursor

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobChange:
        return await anext(self._changes)

    async def aclose(self) -> None:
        """End it; the engine stays open."""
        await self._changes.aclose()

    async def _read(self) -> AsyncGenerator[JobChange, None]:
        engine, follower = await self._connect()
        position = self._cursor

        async def look() -> Look[FeedEntry]:
            nonlocal position
            self._cursor = position  # all of the page before was returned
            page = await engine.changes(position, _PAGE)
            if isinstance(page, Expired):
                raise cursor_expired(page)
            position = page.cursor
            await measure_lag(engine, page)
            return Look(list(filter(self._wanted.matches, page.entries)), page.is_last)

        async with aclosing(follower.feed(look)) as entries:
            async for entry in entries:
                self._cursor = entry.cursor
                yield job_change(entry)


async def measure_lag(engine: Engine, page: Changes) -> None:
    """Record how old the last change of a page is now, if metrics are kept."""
    if current.registry is None:
        return
    lag = 0
    if page.entries:
        lag = max(0, await engine.now() - page.entries[-1].event.at)
    current.registry.number(FEED_LAG).value = lag / SECOND


def job_change(entry: FeedEntry) -> JobChange:
    """Return an entry of the feed as callers see it."""
    return JobChange(
        entry.cursor,
        entry.job_id,
        entry.service,
        entry.type,
        entry.queue,
        dict(entry.tags),
        job_event(entry.event),
    )


def cursor_expired(page: Expired) -> CursorExpired:
    """Return the error that says what was lost."""
    if page.until is None:
        return CursorExpired(
            "The cursor is of a later time than the database: a backup was restored, or the "
            "database is another one. Changes may come again. To read all that is kept, pass "
            "after=error.cursor.",
            cursor=page.cursor,
            until=None,
        )
    until = to_datetime(page.until)
    return CursorExpired(
        "Jobs were removed, by retention or by an operator, whose changes had not been read: the "
        f"last of these changes happened at {until:%Y-%m-%d %H:%M:%S} UTC. To go on with the "
        "changes that are left, pass after=error.cursor.",
        cursor=page.cursor,
        until=until,
    )


def _error_of(entry: FeedEntry) -> Failure | None:
    stored = (entry.event.data or {}).get("error")
    return Failure(*map(str, stored[:2])) if isinstance(stored, list | tuple) else None


def _kind(word: str) -> EventKind:
    try:
        return EventKind(word)
    except ValueError as error:
        near = get_close_matches(word, list(EventKind), 1)
        meant = f"Did you mean {near[0]}?" if near else f"Known kinds: {', '.join(EventKind)}."
        raise ConfigurationError(f"{word!r} is not a kind of event. {meant}") from error
