"""States of the engine: decided and written again until no other write comes between.

`decided` runs a verb on drafts. `latest` lists states; it waits until the answering replica has the
newest of them. Old versions of states stay in the stream of the jobs until `compact` removes them.
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
#: Seconds after which a verb gives up to write, or a replica to have what the leader has.
_PATIENCE: Final = 20.0
#: More versions than a state ever has whose history is read.
_VERSIONS: Final = 1_000_000


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


async def until_current(read: Callable[[], Awaitable[list[Got]]], newest: Got | None) -> list[Got]:
    """Return what a replica has, once it has the newest message that the leader told of."""
    end = time.monotonic() + _PATIENCE
    while True:
        found = await read()
        if newest is None or any(each.sequence >= newest.sequence for each in found):
            return found
        if time.monotonic() > end:
            raise EngineUnavailable(
                f"A replica of {newest.subject} has lagged behind for {_PATIENCE:.0f} s."
            )
        await asyncio.sleep(random.uniform(0.005, 0.02))  # noqa: S311


class Listed(NamedTuple):
    """A state that is there, and the sequence that the next write of it expects."""

    subject: str
    value: Any
    sequence: int


async def latest(store: Store, subject: str, codec: Codec) -> list[Listed]:
    """Return the last value of each subject that a filter matches, in order of writing."""
    stream = store.stream_of(subject)
    newest = await store.link.last(stream, subject)
    if newest is None:
        return []
    found = await until_current(lambda: store.link.last_many(stream, [subject]), newest)
    return [
        Listed(got.subject, codec.decode(json.loads(got.body)), got.sequence)
        for got in found
        if got.body  # an empty one deletes the value
    ]


async def history(store: Store, subject: str, codec: Codec) -> list[Any]:
    """Return every version of a state in the stream of the jobs, the oldest first."""
    stream = store.stream_of(subject)
    newest = await store.link.last(stream, subject)
    if newest is None:
        return []
    found = await until_current(lambda: store.link.following(stream, subject, 1, _VERSIONS), newest)
    return [codec.decode(json.loads(got.body)) for got in found if got.body]


async def subjects_of(store: Store, subject: str) -> dict[str, int]:
    """Return the subjects that a filter matches, with the number of messages of each."""
    found: dict[str, int] = {}
    verb = f"STREAM.INFO.{store.stream_of(subject)}"
    while True:
        wanted = {"subjects_filter": subject, "offset": len(found)}
        answer = await store.link.api(verb, wanted)
        page: dict[str, int] = answer["state"].get("subjects") or {}
        found |= page
        if not page or len(found) >= answer.get("total", 0):
            return found


async def purge(store: Store, subject: str, **bound: int) -> None:
    """Delete messages of a filter: those below `seq`, or all but the last ones (`keep`)."""
    stream = store.stream_of(subject)
    await store.link.api(f"STREAM.PURGE.{stream}", {"filter": subject, **bound})


async def compact(store: Store) -> int:
    """Delete all but the last version of each state in the stream of the jobs; return how many.

    The entries of the audit and the changes of the drain stay.
    """
    kept = {store.subjects.own("audit"), store.subjects.own("setting", "drain")}
    counts = await subjects_of(store, store.subjects.own(">"))
    old = {name: count - 1 for name, count in counts.items() if count > 1 and name not in kept}
    for name in old:
        await purge(store, name, keep=1)
    return sum(old.values())
