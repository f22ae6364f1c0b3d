"""The servers keep what they acknowledged over a kill, a node can be lost, users are told apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats as client
import pytest

from tests.harness.servers.nats import NatsCluster, NatsServer, nats_server
from tests.harness.servers.nats_fixtures import *  # noqa: F403 - fixtures, listed there

USERS = """
authorization { users: [
  { user: "ann", password: "a", permissions: { publish: ["ann.>", "$JS.API.>"] } },
  { user: "root", password: "r" }
] }
"""


@asynccontextmanager
async def connected(*urls: str, **options: object) -> AsyncIterator[Any]:
    """Connect, and disconnect afterwards."""
    found = await client.connect(list(urls), allow_reconnect=False, **options)
    try:
        yield found
    finally:
        await found.close()


async def until_stored(found: Any, subject: str, body: bytes) -> None:  # noqa: ANN401
    """Publish until the rest of the nodes have chosen a leader for the stream."""
    async with asyncio.timeout(60):
        while True:
            with suppress(client.errors.Error, TimeoutError):
                await found.jetstream(timeout=2).publish(subject, body)
                return
            await asyncio.sleep(0.05)


async def test_a_killed_server_comes_back_at_its_address_with_what_it_stored(
    own_nats: NatsServer,
) -> None:
    before = own_nats.url
    async with connected(before) as found:
        await found.jetstream().add_stream(name="S", subjects=["s"])
        await found.jetstream().publish("s", b"kept")
    own_nats.kill()
    own_nats.start().wait()
    assert own_nats.url == before
    async with connected(own_nats.url) as found:
        assert (await found.jetstream().get_msg("S", 1)).data == b"kept"


@pytest.mark.long
async def test_two_of_three_nodes_carry_on(nats_three: NatsCluster) -> None:
    async with connected(*nats_three.urls) as found:
        info = await found.jetstream().add_stream(name="S", subjects=["s"], num_replicas=3)
        leader = nats_three.node(info.cluster.leader)
    leader.kill()
    others = [node for node in nats_three.nodes if node is not leader]
    async with connected(*(node.url for node in others)) as found:
        await until_stored(found, "s", b"kept")
    nats_three.start()
    assert leader.pid is not None


async def test_users_may_do_what_the_configuration_says(tmp_path: Path) -> None:
    with nats_server(tmp_path, USERS) as server:
        async with connected(server.url_of("root", "r")) as found:
            await found.jetstream().add_stream(name="S", subjects=["ann.>", "bob.>"])
        refused: list[Exception] = []

        async def remember(error: Exception) -> None:
            refused.append(error)

        async with connected(server.url_of("ann", "a"), error_cb=remember) as found:
            await found.jetstream().publish("ann.x", b"")
            await found.publish("bob.x", b"")
            while not refused:
                await found.flush()
        assert "ermissions" in str(refused[0])


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Parse error"), nats_server(tmp_path, "nonsense: {"):
        pass
