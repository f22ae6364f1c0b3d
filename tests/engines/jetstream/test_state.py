"""States that several processes change, and what is left of their old versions."""

from __future__ import annotations

import asyncio

import pytest

from trellis.core.audit import By, Change
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.operating import OperatingVerbs
from trellis.engines.jetstream.state import Followed, decided, latest
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.jetstream.upkeep import Upkeep
from trellis.engines.operating import Drain
from trellis.engines.values import QueueSettings
from trellis.engines.wire import codec_of

NUMBER = codec_of(int)


@pytest.fixture
def store(link: Link, deployed: Subjects) -> Store:
    return Store(link, deployed, Time(None))


def audit_of(store: Store) -> str:
    return store.subjects.own("audit")


async def count_up(store: Store, name: str) -> int:
    """Add one to a number, and leave an entry in the audit."""
    subject = store.subjects.own("number", name)

    async def add(draft: Draft) -> int:
        number: int = (await draft.value(subject, NUMBER) or 0) + 1
        draft.put(subject, number)
        draft.record(Change("queue.pause", str(number)), By())
        return number

    return await decided(store, add)


async def test_of_changes_at_once_each_is_decided_on_the_one_before(store: Store) -> None:
    numbers = await asyncio.gather(*(count_up(store, "a") for _ in range(10)))
    assert sorted(numbers) == list(range(1, 11))


async def test_a_refused_change_leaves_no_entry_in_the_audit(store: Store) -> None:
    await asyncio.gather(*(count_up(store, "a") for _ in range(10)))
    assert (await store.subjects_of(audit_of(store))) == {audit_of(store): 10}


async def test_the_last_version_of_each_state_is_listed_in_order_of_writing(store: Store) -> None:
    for name in "abca":
        await count_up(store, name)
    found = await latest(store, store.subjects.own("number", "*"), NUMBER)
    assert [(each.subject[-1], each.value) for each in found] == [("b", 1), ("c", 1), ("a", 2)]


async def test_a_look_at_states_has_what_matters_now(store: Store) -> None:
    def is_odd(number: int) -> bool:
        return number % 2 == 1

    followed = Followed(store, store.subjects.own("number", "*"), NUMBER, is_odd)
    assert await followed.look() == []
    for name in "abca":
        await count_up(store, name)
    assert [(each.subject[-1], each.value) for each in await followed.look()] == [
        ("b", 1),
        ("c", 1),
    ]
    await count_up(store, "a")
    await count_up(store, "b")
    await store.put(store.subjects.own("number", "c"), NUMBER, None, None)
    assert [(each.subject[-1], each.value) for each in await followed.look()] == [("a", 3)]
    assert [each.subject[-1] for each in await followed.look()] == ["a"]
    await store.link.api(f"STREAM.PURGE.{store.subjects.jobs}")
    assert await followed.look() == []


async def test_a_look_at_states_finds_those_of_a_stream_that_was_made_again(
    store: Store,
) -> None:
    followed = Followed(store, store.subjects.own("number", "*"), NUMBER, bool)
    for name in "ab":
        await count_up(store, name)
    assert len(await followed.look()) == 2
    await store.link.api(f"STREAM.DELETE.{store.subjects.jobs}")
    await topology.migrate(store.link, store.subjects, 1, dry_run=False)
    await count_up(store, "c")
    assert [each.subject[-1] for each in await followed.look()] == ["c"]
    await store.link.api(f"STREAM.DELETE.{store.subjects.jobs}")
    await topology.migrate(store.link, store.subjects, 1, dry_run=False)
    for name in "defg":  # it has grown past the place since
        await count_up(store, name)
    followed._all_again = 0.0
    assert [each.subject[-1] for each in await followed.look()] == list("defg")


async def test_compacting_leaves_last_versions_the_audit_and_the_history_of_the_drain(
    store: Store,
) -> None:
    verbs = OperatingVerbs()
    verbs._store = store
    for _ in range(3):
        await count_up(store, "a")
    await verbs.set_queue(QueueSettings("shop", "mails", paused=True))
    await verbs.set_queue(QueueSettings("shop", "mails"))
    for on in (True, False):
        await verbs.set_drain(Drain(on, "ann"))
    upkeep = Upkeep(store)
    assert await upkeep.compact(100) == 2
    assert await upkeep.compact(100) == 0
    assert await count_up(store, "a") == 4
    assert await verbs.queue_settings() == [QueueSettings("shop", "mails")]
    assert [each.drain.on for each in await verbs.drain_changes()] == [False, True]
    assert (await store.subjects_of(audit_of(store)))[audit_of(store)] == 8


async def test_many_subjects_are_listed(store: Store) -> None:
    count = 3000
    for start in range(0, count, 500):
        names = (store.subjects.own("number", str(start + each)) for each in range(500))
        await store.link.write(*(Message(name, b"1") for name in names))
    assert len(await store.subjects_of(store.subjects.own("number", "*"))) == count
