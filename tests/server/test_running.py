"""The server process: connections of clients that are gone, and very many of them."""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.server.serving import request, serving
from tests.worker.faulty import eventually
from trellis import Service, connect
from trellis.server import create_app
from trellis.server.limits import Limits
from trellis.server.running import configure, listen

STREAMS = 1200
REFUSED = 300


@pytest.mark.skipif(sys.platform != "linux", reason="the option is one of Linux")
def test_the_kernel_ends_a_connection_whose_client_is_gone_without_a_word() -> None:
    config = configure(create_app("memory://"), "127.0.0.1", 0)
    with listen(config) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            longest = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    # A heartbeat that is not acknowledged for this time ends the stream.
    assert longest == 60_000


@pytest.mark.long
async def test_thousands_of_streams_get_every_change_and_those_above_the_limit_a_429(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 3 * (STREAMS + REFUSED)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(needed, hard)), hard))
    service = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")

    @service.job
    async def bill(number: int) -> int:
        return number

    async with service, connect(service.url) as jobs:
        token = (await jobs.tokens.create(["admin.stream"])).text
        limits = Limits(streams=STREAMS, streams_per_token=STREAMS, rate=0)
        with serving(service.url, limits) as running:
            async with AsyncExitStack() as stack:
                statuses = []
                for _ in range(STREAMS + REFUSED):
                    answer = await stack.enter_async_context(
                        request(running.port, "/api/v1/stream", Authorization=f"Bearer {token}")
                    )
                    statuses.append(answer.status)
                    if answer.status == 200:
                        stack.push_async_callback(_until_change, answer.reader)
                assert (statuses.count(200), statuses.count(429)) == (STREAMS, REFUSED)
                await bill.create(1)
            await eventually(lambda: not running.app.state.open_streams)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _until_change(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(60):
        await reader.readuntil(b"event: change")
