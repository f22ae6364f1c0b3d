"""A NATS server for the tests of this folder; each test has a deployment of its own on it.

With TRELLIS_TEST_NATS_NODES=3, as in `make test-cluster`, it is a cluster of three nodes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client

from tests.engines.jetstream.manual import ManualEngine
from tests.harness.servers.nats import nats_cluster
from tests.harness.servers.nats_fixtures import nats, nats_three, own_nats
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.access import denial_in
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.replies import Connection
from trellis.engines.jetstream.subjects import Subjects
from trellis.testing import ManualClock

__all__ = ["nats", "nats_three", "own_nats"]


@pytest.fixture(scope="session")
def nats_nodes() -> int:
    """How many nodes the server of this run has."""
    return int(os.environ.get("TRELLIS_TEST_NATS_NODES", "1"))


@pytest.fixture(scope="session")
def nats_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nats_nodes: int
) -> Iterator[str]:
    """Where the server of this run is."""
    if nats_nodes == 1:
        yield request.getfixturevalue("nats").url
        return
    with nats_cluster(tmp_path_factory.mktemp("nats-cluster")) as cluster:
        yield cluster.url


@pytest.fixture
def subjects() -> Subjects:
    """The names of a deployment of this test alone."""
    return Subjects("t" + secrets.token_hex(6))


@pytest.fixture
async def link(nats_url: str) -> AsyncIterator[Link]:
    """A connection."""
    link = Link(nats_url.split(","))
    await link.open()
    yield link
    await link.close()


@asynccontextmanager
async def deploy(link: Link, subjects: Subjects, replicas: int = 1) -> AsyncIterator[Subjects]:
    """Make the streams of a deployment, and delete them at the end."""
    await topology.migrate(link, subjects, replicas, dry_run=False)
    yield subjects
    for part in reversed(topology.parts(subjects, replicas)):
        if part.consumer is None:
            await link.api(f"STREAM.DELETE.{part.stream}")


@pytest.fixture
async def deployed(link: Link, subjects: Subjects, nats_nodes: int) -> AsyncIterator[Subjects]:
    """The names of a deployment whose streams are there."""
    async with deploy(link, subjects, nats_nodes):
        yield subjects


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


class Used:
    """The subjects that all connections of this process use, and what the server denied."""

    def __init__(self) -> None:
        self.published: set[str] = set()
        self.subscribed: set[str] = set()
        self.denied: set[str] = set()


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Used:
    found = Used()
    publish, subscribe, error = Client.publish, Client.subscribe, Client._process_err
    send = Connection.send

    async def publishing(self: Client, subject: str, *given: Any, **named: Any) -> None:  # noqa: ANN401
        found.published.add(subject)
        await publish(self, subject, *given, **named)

    async def sending(self: Connection, subject: str, *given: Any) -> None:  # noqa: ANN401
        found.published.add(subject)
        await send(self, subject, *given)

    async def subscribing(self: Client, subject: str, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        found.subscribed.add(subject)
        return await subscribe(self, subject, *given, **named)

    async def hearing(self: Client, text: str) -> None:
        denial = denial_in(text)
        if denial is not None:
            found.denied.add(denial.subject)
        await error(self, text)

    monkeypatch.setattr(Client, "publish", publishing)
    monkeypatch.setattr(Connection, "send", sending)
    monkeypatch.setattr(Client, "subscribe", subscribing)
    monkeypatch.setattr(Client, "_process_err", hearing)
    return found


def matches(granted: str, subject: str) -> bool:
    """Return whether a subject, or all of a filter, is within what is granted."""
    wanted, found = granted.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(found) > place
        if place >= len(found) or found[place] == ">" or token not in {"*", found[place]}:
            return False
    return len(wanted) == len(found)
