"""Three nodes: the parts of the suite in which replicas and leaders matter, and races of writers.

`make test-cluster` runs the whole suite on three nodes.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.engines.jetstream.test_conformance import (  # noqa: F401 - the fixtures of the suite
    another,
    caller,
    engine,
    engine_name,
    tables,
)
from tests.harness.servers.nats import NatsCluster
from trellis.engines.jetstream.link import Expect, Link, Message, Outdated, Written
from trellis.engines.jetstream.subjects import JobName, Subjects
from trellis.testing.builders import a_job
from trellis.testing.conformance.claim import TestClaim
from trellis.testing.conformance.commit import TestCommit, TestConflicts
from trellis.testing.conformance.create import TestCreate
from trellis.testing.conformance.dedupe import TestDedupe
from trellis.testing.conformance.durability import TestSharedStore
from trellis.testing.conformance.fences import TestFences
from trellis.testing.conformance.late_results import TestLostReplies
from trellis.testing.conformance.leases import TestReap, TestRenewal
from trellis.testing.conformance.locks import TestLocks
from trellis.testing.conformance.queues import TestQueues
from trellis.testing.conformance.slots import TestSlots

__all__ = [
    "TestClaim", "TestCommit", "TestConflicts", "TestCreate", "TestDedupe", "TestFences",
    "TestLocks", "TestLostReplies", "TestQueues", "TestReap", "TestRenewal", "TestSharedStore",
    "TestSlots",
]  # fmt: skip

pytestmark = pytest.mark.long
_ROUNDS = 100


@pytest.fixture(scope="module")
def nats_nodes() -> int:
    return 3


@pytest.fixture(scope="module")
def nats_url(nats_three: NatsCluster) -> str:
    return nats_three.url


async def test_one_of_a_batch_and_a_single_write_about_a_job_is_stored(
    nats_three: NatsCluster, deployed: Subjects
) -> None:
    """The later events of a job in a batch have no expectation: the first one guards them."""
    links = [Link([url]) for url in nats_three.urls]
    for link in links:
        await link.open()
    job, last = JobName("shop", "invoice", a_job().id), 0
    over = deployed.fence(job)

    def event(kind: str, expect: int | None) -> Message:
        expected = None if expect is None else Expect(expect, over)
        return Message(deployed.event(job, kind), b"{}", {}, expected)

    for _ in range(_ROUNDS):
        answers = await asyncio.gather(
            links[0].write(event("started", last), event("failed", None)),
            links[1].write(event("cancelled", last)),
            links[2].write(event("expired", last), event("retried", None)),
        )
        (stored,) = [each for each in answers if isinstance(each, Written)]
        assert all(isinstance(each, Outdated) for each in answers if each is not stored)
        newest = await links[0].last(deployed.jobs, over)
        assert newest is not None
        assert newest.sequence == stored.sequence
        last = stored.sequence
    for link in links:
        await link.close()
