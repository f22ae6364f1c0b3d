"""The audit among the many other messages of the stream."""

from __future__ import annotations

import pytest

from trellis.core.audit import By
from trellis.core.job import JobId
from trellis.engines.audit import AuditFilter
from trellis.engines.jetstream.audit import AuditVerbs
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.operating import OperatingVerbs
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import JobName, Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.values import QueueSettings

ALL = AuditFilter()


class Verbs(AuditVerbs, OperatingVerbs):
    """Verbs that write and read the audit."""

    def __init__(self, store: Store) -> None:
        self._store = store


@pytest.fixture
def verbs(link: Link, deployed: Subjects) -> Verbs:
    return Verbs(Store(link, deployed, Time(None)))


async def pause(verbs: Verbs, *names: str) -> None:
    for name in names:
        await verbs.set_queue(QueueSettings("shop", name, paused=True), By("ann"))


async def fill(link: Link, names: Subjects, count: int) -> None:
    """Store other messages."""
    job = JobName("shop", "mail", JobId("01K0"))
    for _ in range(0, count, 1000):
        await link.write(*(Message(names.ready(job, number), b"") for number in range(1000)))


async def targets(verbs: Verbs, *, after: int | None = None, limit: int = 50) -> list[str]:
    return [each.change.target for each in await verbs.audit(ALL, after=after, limit=limit)]


async def test_entries_are_found_however_far_apart_they_are(
    verbs: Verbs, link: Link, deployed: Subjects
) -> None:
    await pause(verbs, "a", "b")
    await fill(link, deployed, 7000)
    await pause(verbs, "c")
    await fill(link, deployed, 2000)
    await pause(verbs, "d")
    await fill(link, deployed, 2000)
    assert await targets(verbs) == ["shop/d", "shop/c", "shop/b", "shop/a"]
    first = await verbs.audit(ALL, limit=1)
    assert await targets(verbs, after=first[0].number, limit=2) == ["shop/c", "shop/b"]


async def test_more_entries_than_one_read_returns_are_read_in_order(
    verbs: Verbs, link: Link, deployed: Subjects
) -> None:
    bodies = (f'{{"at":{n},"change":["queue.pause","q{n}"],"by":["ann"]}}' for n in range(700))
    await link.write(*(Message(deployed.own("audit"), body.encode()) for body in bodies))
    assert await targets(verbs, limit=1000) == [f"q{number}" for number in range(699, -1, -1)]
    assert await targets(verbs, limit=1) == ["q699"]


async def test_an_action_of_another_version_is_shown_as_it_is(
    verbs: Verbs, link: Link, deployed: Subjects
) -> None:
    body = b'{"at":5,"change":["moon.launch","apollo",null,{"a":[1]}],"by":["ann","why"]}'
    await link.write(Message(deployed.own("audit"), body))
    (entry,) = await verbs.audit(AuditFilter(action="moon"))
    assert (entry.at, entry.change[:2]) == (5, ("moon.launch", "apollo"))


async def test_an_empty_audit_has_no_pages_and_nothing_to_prune(verbs: Verbs) -> None:
    assert await verbs.audit(ALL) == []
    assert await verbs.prune_audit(0, 10) == 0
