"""The live stream: changes of jobs, log lines, progress and queue counts as server-sent events.

The id of an event is its place in the feed, with the numbers of the last log lines where a stream
follows logs. It means the same on every server of a store, so a client resumes anywhere, without a
gap and without a duplicate. Progress and queue counts are snapshots: the latest one is sent.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BaseModel, ConfigDict

from trellis.core.access import STREAM
from trellis.core.job import JobId
from trellis.engines.feed import NOW, Cursor, Expired, Position, write_cursor
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError, CursorInvalid, EngineUnavailable, OutcomeUnknown
from trellis.insight.feed import ANY_TRAITS, ChangeFilters, Traits, Wanted, cursor_expired, wanted
from trellis.insight.filters import add_word, split_schedule
from trellis.insight.views import as_json
from trellis.operations.lookup import resolve_job
from trellis.operations.operator import Operator
from trellis.server.access import Needs, has_access
from trellis.server.event_stream import MEDIA_TYPE, EventStream, ending, event, heartbeat
from trellis.server.live import (
    BATCH,
    JobTail,
    Live,
    LiveChange,
    compact,
    live_entries,
    parse_cursor,
    position_of,
)
from trellis.server.windows import Window

router: Final = APIRouter(prefix="/api/v1", tags=["stream"])
#: Jobs whose logs and progress one stream can follow.
MOST_JOBS: Final = 20
#: Characters that are written at once.
_CHUNK: Final = 64 * 1024
#: Seconds after which a stream looks again that could not read the store.
_AGAIN: Final = 1.0
#: Milliseconds after which clients of a server that stops connect again; spread over this span.
_RETRY: Final = (500, 3000)
_LINE: Final = re.compile(r"([0-9A-Z]{26}):(\d{1,18})")

Kind = Literal["changes", "logs", "progress", "queues"]


class StreamQuery(BaseModel):
    """Which events; of each word several values may be given, also with commas between them."""

    model_config = ConfigDict(extra="forbid")

    #: changes, logs, progress, queues; without it changes, and logs and progress of `jobs`.
    events: list[str] = []
    type: list[str] = []
    types: list[str] = []
    service: list[str] = []
    queue: list[str] = []
    queues: list[str] = []
    #: The state after the change.
    state: list[str] = []
    #: The kind of event in the journal, such as created or failed.
    kind: list[str] = []
    #: As name=value; all of them.
    tag: list[str] = []
    #: Part of the code or message of the error of a change.
    error: str | None = None
    #: What the job has since its creation: its whole key, its tenant, the id of its batch and of
    #: its parent, the name of its schedule.
    key: str | None = None
    tenant: str | None = None
    batch: str | None = None
    parent: str | None = None
    schedule: str | None = None
    job: list[str] = []
    jobs: list[str] = []
    #: Where to begin: an id of an event; without it, or with "now", what happens from now on.
    after: str | None = None


class Place(NamedTuple):
    """Where a stream stands: in the feed, and in the logs that it follows."""

    kind: str
    cursor: Cursor
    lines: dict[JobId, int]

    def __str__(self) -> str:
        logs = (f";{job_id}:{number}" for job_id, number in self.lines.items() if number)
        return write_cursor(self.kind, self.cursor) + "".join(logs)

    def at(self, cursor: Cursor) -> Place:
        """Return the place with another one in the feed."""
        return self._replace(cursor=cursor)


@router.get(
    "/stream",
    status_code=HTTPStatus.OK,
    response_class=EventStream,
    responses={200: {"content": {MEDIA_TYPE: {}}, "description": "Events, without end."}},
)
async def stream(
    request: Request,
    jobs: Annotated[Operator, Depends(Needs(STREAM))],
    query: Annotated[StreamQuery, Query()],
    last_event_id: Annotated[str | None, Header(max_length=2000)] = None,
) -> EventStream:
    """Follow changes of jobs, log lines, progress and queue counts as server-sent events."""
    state, caller = request.app.state, request.state.caller
    live: Live = state.live
    named = [await resolve_job(jobs.engine, each) for each in _split(query.jobs, query.job)]
    ids = tuple(each.definition.id for each in named)
    what = Following(_wanted(query, ids), _kinds(query, ids), ids)
    place, reset = await _begin(jobs.engine, what, last_event_id, query.after)
    state.streams.enter(caller.token)
    opened = Stream(live, what, place, state.limits.heartbeat, lambda: has_access(request, STREAM))
    state.open_streams.add(opened)

    def end() -> None:
        state.open_streams.discard(opened)
        state.streams.leave(caller.token)

    return EventStream(opened.blocks(reset), state.limits.stream_patience, end)


class Following(NamedTuple):
    """What a stream follows."""

    wanted: Wanted
    kinds: frozenset[Kind]
    jobs: tuple[JobId, ...]


def _split(*several: list[str]) -> list[str]:
    parts = [part.strip() for each in several for text in each for part in text.split(",")]
    return list(dict.fromkeys(filter(None, parts)))


def _wanted(query: StreamQuery, jobs: tuple[JobId, ...]) -> Wanted:
    filters: ChangeFilters = {
        "type": _split(query.type, query.types),
        "state": _split(query.state),
        "kind": _split(query.kind),
    }
    tags: dict[str, Any] = {}
    for each in query.tag:
        add_word(tags, "tag", each)
    found = wanted(_split(query.service), **filters)
    services, schedule = split_schedule(found.services, query.schedule)
    return found._replace(
        services=services,
        queues=tuple(_split(query.queue, query.queues)),
        jobs=jobs,
        tags=tuple(tags.get("tag", {}).items()),
        error=query.error,
        traits=Traits(query.key, query.tenant, _id(query.batch), _id(query.parent), schedule),
    )


def _id(text: str | None) -> str | None:
    return None if text is None else text.upper()


def _kinds(query: StreamQuery, jobs: tuple[JobId, ...]) -> frozenset[Kind]:
    known: tuple[Kind, ...] = ("changes", "logs", "progress", "queues")
    asked = _split(query.events)
    unknown = [each for each in asked if each not in known]
    if unknown:
        raise ConfigurationError(f"There are no events {unknown[0]!r}. Ask for {', '.join(known)}.")
    kinds = frozenset(each for each in known if each in asked)
    if not kinds:
        kinds = frozenset(("changes", "logs", "progress") if jobs else ("changes",))
    if not jobs and kinds & {"logs", "progress"}:
        raise ConfigurationError("Logs and progress are streamed of named jobs. Give jobs=ID.")
    if len(jobs) > MOST_JOBS:
        raise ConfigurationError(f"One stream follows {MOST_JOBS} jobs at most.")
    return kinds


# -- where a stream begins ---------------------------------------------------------------------


async def _begin(
    engine: Engine, what: Following, resumed: str | None, after: str | None
) -> tuple[Place, str | None]:
    """Return the place, and the data of a reset if the client has lost its place."""
    lines = dict.fromkeys(what.jobs, 0) if "logs" in what.kinds else {}
    text = resumed or after
    if text is None or text == NOW:
        return await _now(engine, lines), None
    try:
        cursor, numbers = _read_place(text)
        page = await engine.changes(cursor, 1)
    except CursorInvalid as error:
        if not resumed:
            raise
        return await _now(engine, lines), _reset(error.code, str(error))
    lines.update({job_id: numbers[job_id] for job_id in lines.keys() & numbers.keys()})
    if isinstance(page, Expired):
        return await _now(engine, lines), _lost(page)
    return Place(cursor[0], parse_cursor(cursor), lines), None


async def _now(engine: Engine, lines: dict[JobId, int]) -> Place:
    page = await engine.changes(NOW, 1)
    return Place(page.cursor[0], parse_cursor(page.cursor), lines)


def _read_place(text: str) -> tuple[str, dict[JobId, int]]:
    cursor, *logs = text.split(";")
    found = [_LINE.fullmatch(each) for each in logs]
    if not cursor or None in found:
        raise CursorInvalid(f"{text!r} is not the id of an event of a stream.")
    return cursor, {JobId(each[1]): int(each[2]) for each in found if each is not None}


def _lost(page: Expired) -> str:
    error = cursor_expired(page)
    return _reset(error.code, "Events after this place were removed.", page.cursor, error.until)


def _reset(code: str, detail: str, cursor: str | None = None, until: datetime | None = None) -> str:
    detail += " Load everything again; the stream goes on from now."
    return compact({"code": code, "detail": detail, "cursor": cursor, "until": as_json(until)})


# -- one stream --------------------------------------------------------------------------------


class Stream:
    """The events for one client."""

    def __init__(
        self,
        live: Live,
        what: Following,
        place: Place,
        pause: float,
        is_allowed: Callable[[], Awaitable[bool]],
    ) -> None:
        self._live, self._what, self._place = live, what, place
        self._pause, self._is_allowed = pause, is_allowed
        self._woken = asyncio.Event()
        #: The window in which the place is; None: the stream reads the store until it is.
        self._window: Window[Any, LiveChange] | None = None
        self._tails: list[JobTail] = []
        self._sent: dict[str, object] = {}
        self._is_stopping = False

    def stop(self) -> None:
        """Let the stream end; the client is asked to connect again."""
        self._is_stopping = True
        self._woken.set()

    async def blocks(self, reset: str | None) -> AsyncGenerator[str, None]:
        """Yield the events in pieces of text, until the stream is stopped."""
        self._live.join(self._woken)
        followed = self._follow()
        try:
            yield self._first(reset)
            checked = asyncio.get_running_loop().time()
            while not self._is_stopping:
                self._woken.clear()
                text, is_behind = await self._news()
                if text:
                    yield text
                now = asyncio.get_running_loop().time()
                if now - checked >= self._pause:
                    checked = now
                    if not await self._is_allowed():
                        yield ending("the token gives no access any more", _RETRY[1])
                        return
                if not is_behind and not await self._rest():
                    yield heartbeat(str(self._place))
            spread = secrets.randbelow(_RETRY[1] - _RETRY[0])
            yield ending("the server stops", _RETRY[0] + spread)
        finally:
            for each in followed:
                await each.release()
            await self._live.leave(self._woken)

    def _follow(self) -> list[Any]:
        kinds = self._what.kinds
        if kinds & {"logs", "progress"}:
            self._tails = [self._live.tail(job_id) for job_id in self._what.jobs]
        followed = [*self._tails, *([self._live.queues] if "queues" in kinds else ())]
        for each in followed:
            each.follow()
        return followed

    def _first(self, reset: str | None) -> str:
        place = str(self._place)
        lost = "" if reset is None else event("reset", reset, place)
        return lost + event("ready", compact({"id": place}), place)

    async def _rest(self) -> bool:
        """Wait for news; return False if none came until the next heartbeat."""
        try:
            async with asyncio.timeout(self._pause if self._window else _AGAIN):
                await self._woken.wait()
        except TimeoutError:
            self._live.join(self._woken)  # a reader that failed is started again
            return self._window is None
        return True

    async def _news(self) -> tuple[str, bool]:
        """Return events that were not sent yet, and whether there are more to read at once."""
        try:
            changes, has_more = await self._changes()
            lines, has_more_lines = await self._lines()
        except (EngineUnavailable, OutcomeUnknown):  # the reader of the feed logs it
            self._window = None
            return "", False
        return "".join([*changes, *lines, *self._snapshots()]), has_more or has_more_lines

    async def _changes(self) -> tuple[list[str], bool]:
        window, cursor = self._live.changes, self._place.cursor
        if window is None:
            return [], False
        is_inside = self._window is window
        entries = window.after(cursor.position, BATCH) if is_inside else None
        if entries is not None:
            has_more = len(entries) == BATCH
            end = entries[-1][0] if has_more else max(window.end, cursor.position)
        else:
            self._window = None
            page = await self._live.page(write_cursor(self._place.kind, cursor))
            if isinstance(page, Expired):
                self._place = await _now(self._live.engine, self._place.lines)
                return [event("reset", _lost(page), str(self._place))], True
            entries, end = live_entries(page), position_of(page.cursor)
            has_more = not page.is_last
            if window.start <= end:
                self._window = window
        if self._what.wanted.traits != ANY_TRAITS:
            await self._live.load_traits(
                each for _, each in entries if self._what.wanted.matches(each.entry)
            )
        pieces, is_full = self._wanted_of(entries)
        if not is_full:
            self._place = self._place.at(cursor.moved_to(end))
        return pieces, is_full or has_more

    def _wanted_of(self, entries: list[tuple[Position, LiveChange]]) -> tuple[list[str], bool]:
        """Return the events of these that are wanted, as many as may be sent at once."""
        pieces: list[str] = []
        size = 0
        for position, change in entries:
            self._place = self._place.at(self._place.cursor.moved_to(position))
            if "changes" in self._what.kinds and self._wants(change):
                pieces.append(event("change", change.data, str(self._place)))
                size += len(pieces[-1])
                if size > _CHUNK:
                    return pieces, True
        return pieces, False

    def _wants(self, change: LiveChange) -> bool:
        wanted = self._what.wanted
        if not wanted.matches(change.entry):
            return False
        return wanted.traits == ANY_TRAITS or (
            change.traits is not None and change.traits.fits(wanted.traits)
        )

    async def _lines(self) -> tuple[list[str], bool]:
        pieces: list[str] = []
        size = 0
        for tail in self._tails if "logs" in self._what.kinds else ():
            number = self._place.lines[tail.job_id]
            found = tail.lines.after(number, BATCH)
            if found is None:
                found = await self._live.lines(tail.job_id, number)
            for number, text in found:
                self._place.lines[tail.job_id] = number
                pieces.append(event("log", text, str(self._place)))
                size += len(text)
                if size > _CHUNK:
                    return pieces, True
            if len(found) >= BATCH:
                return pieces, True
        return pieces, False

    def _snapshots(self) -> Iterator[str]:
        if "progress" in self._what.kinds:
            for tail in self._tails:
                yield from self._latest("progress", tail.job_id, tail.progress)
        if "queues" in self._what.kinds and self._live.queues.views is not None:
            views = [
                each for each in self._live.queues.views
                if self._what.wanted.has_queue(each["service"], each["queue"])
            ]  # fmt: skip
            yield from self._latest("queues", "queues", compact(views))

    def _latest(self, name: str, about: str, data: str | None) -> Iterator[str]:
        if data is not None and self._sent.get(about) != data:
            self._sent[about] = data
            yield event(name, data)
