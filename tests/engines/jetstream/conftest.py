"""A NATS server for the tests of this folder; each test has a deployment of its own on it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.engines.jetstream.manual import ManualEngine
from tests.harness.servers.nats_fixtures import *  # noqa: F403 - fixtures, listed there
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.testing import ManualClock


@pytest.fixture
def subjects() -> Subjects:
    """The names of a deployment of this test alone."""
    return Subjects("t" + secrets.token_hex(6))


@pytest.fixture
async def link(nats_url: str) -> AsyncIterator[Link]:
    """A connection."""
    link = Link([nats_url])
    await link.open()
    yield link
    await link.close()


@pytest.fixture
async def deployed(link: Link, subjects: Subjects) -> AsyncIterator[Subjects]:
    """The names of a deployment whose streams are there."""
    await topology.migrate(link, subjects, 1, dry_run=False)
    yield subjects
    for part in reversed(topology.parts(subjects, 1)):
        if part.consumer is None:
            await link.api(f"STREAM.DELETE.{part.stream}")


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the engines of a test."""
    return ManualClock()


@pytest.fixture
async def engine(
    nats_url: str, deployed: Subjects, clock: ManualClock
) -> AsyncIterator[ManualEngine]:
    """An engine."""
    engine = ManualEngine(nats_url, prefix=deployed.prefix, clock=clock)
    await engine.open()
    yield engine
    await engine.close()
