"""States of the engine: decided and written again until no other write comes between.

`decided` runs a verb on drafts. `latest` lists states, `Followed` those that matter to a verb which
looks often. Old versions stay in the stream of the jobs until `Upkeep` removes them.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Got, Written
from trellis.engines.jetstream.store import Store
from trellis.engines.wire import Codec
from trellis.errors import EngineUnavailable

T = TypeVar("T")
#: Seconds after which a verb gives up to write.
_PATIENCE: Final = 20.0
#: More versions than a state ever has whose history is read.
_VERSIONS: Final = 1_000_000
#: How many messages are read at once, and after how many seconds all states are read again.
_PAGE: Final = 1000
_AFRESH: Final = 600.0


async def decided(store: Store, verb: Callable[[Draft], Awaitable[T]]) -> T:
    """Let a verb decide and stage on a new draft, and store that; again while it is outdated."""
    end = time.monotonic() + _PATIENCE
    while True:
        draft = Draft(store)
        answer = await verb(draft)
        if isinstance(await draft.write(), Written):
            return answer
        if time.monotonic() > end:
            raise EngineUnavailable(
                f"Other writes changed the same state for {_PATIENCE:.0f} s. Nothing was stored; "
                "try again later."
            )
        await asyncio.sleep(random.uniform(0, 0.01))  # noqa: S311 - no secret


class Listed(NamedTuple):
    """A state that is there, and the sequence that the next write of it expects."""

    subject: str
    value: Any
    sequence: int


async def latest(store: Store, subject: str, codec: Codec) -> list[Listed]:
    """Return the last value of each subject that a filter matches, in order of writing."""
    found = await store.values([subject], codec)
    return [Listed(name, value.value, value.sequence) for name, value in found]


class Followed:
    """The states of a filter that matter to a verb, as this process has read the stream.

    The first look reads all of them, each further one what was written since: a look costs what has
    changed, and not what there is. It says where to look, and decides nothing.
    """

    def __init__(
        self, store: Store, subject: str, codec: Codec, matters: Callable[[Any], bool]
    ) -> None:
        self._store, self._subject, self._codec, self._matters = store, subject, codec, matters
        self._found: dict[str, Listed] = {}
        #: The sequence from which the next look reads, and when that is the first one again.
        self._next = 1
        self._all_again = 0.0
        self._lock = asyncio.Lock()

    async def look(self) -> list[Listed]:
        """Return the states that matter, in order of writing."""
        async with self._lock:
            link, stream = self._store.link, self._store.stream_of(self._subject)
            newest = await link.last(stream, self._subject)
            end = 0 if newest is None else newest.sequence
            if time.monotonic() >= self._all_again or (
                end < self._next - 1 and await self._is_other(stream)
            ):
                self._found = {}
                # Of the stream of the jobs, which has old versions, only the last ones.
                for got in await link.last_many(stream, [self._subject]):
                    self._take(got)
                self._next, self._all_again = end + 1, time.monotonic() + _AFRESH
            while self._next <= end:
                page = await link.following(stream, self._subject, self._next, _PAGE, end=end)
                for got in page:
                    self._take(got)
                self._next = page[-1].sequence + 1 if len(page) == _PAGE else end + 1
            return sorted(self._found.values(), key=lambda each: each.sequence)

    async def _is_other(self, stream: str) -> bool:
        """Return whether a stream ends before what was read: it was made again."""
        newest = await self._store.link.last(stream, ">")
        return newest is None or newest.sequence < self._next - 1

    def forget(self, subject: str) -> None:
        """Leave a state out until it is written again: it was deleted."""
        self._found.pop(subject, None)

    def _take(self, got: Got) -> None:
        value = None
        with self._store.passing_over():
            value = self._store.parse(got, self._codec)
        if value is not None and self._matters(value):
            self._found[got.subject] = Listed(got.subject, value, got.sequence)
        else:
            self._found.pop(got.subject, None)


async def history(store: Store, subject: str, codec: Codec) -> list[Any]:
    """Return every version of a state in the stream of the jobs, the oldest first."""
    found = await store.link.following(store.stream_of(subject), subject, 1, _VERSIONS)
    return [codec.decode(json.loads(got.body)) for got in found if got.body]


async def purge(store: Store, subject: str, **bound: int) -> None:
    """Delete messages of a filter: those below `seq`, or all but the last ones (`keep`)."""
    stream = store.stream_of(subject)
    await store.link.api(f"STREAM.PURGE.{stream}", {"filter": subject, **bound})
