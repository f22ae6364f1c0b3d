"""A TCP proxy that loses replies: the request arrives, the answer never does."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from typing import Self

from tests.harness.servers.loops import LoopThread


class LossyProxy:
    """Stands before a port on 127.0.0.1; forwards all, until `lose_every` is set."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._thread = LoopThread("lossy-proxy")
        self._replies = 0
        #: Cut the connection instead of delivering each such reply; 0: deliver all.
        self.lose_every = 0
        #: How many replies were lost.
        self.lost = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._server = self._thread.run(asyncio.start_server(self._serve, "127.0.0.1", 0))

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._close())
        self._thread.stop()

    async def _close(self) -> None:
        self._server.close()
        for each in self._serving:
            each.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0.01)  # so that the transports that were aborted are closed

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with closing(writer), suppress(OSError, asyncio.CancelledError):
            replies, requests = await asyncio.open_connection("127.0.0.1", self._upstream)
            with closing(requests):
                ways = [
                    asyncio.ensure_future(self._forward(reader, requests)),
                    asyncio.ensure_future(self._forward(replies, writer, may_lose=True)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    for side in (writer, requests):
                        side.transport.abort()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        may_lose: bool = False,
    ) -> None:
        while data := await reader.read(1 << 16):
            self._replies += may_lose
            if may_lose and self.lose_every and self._replies % self.lose_every == 0:
                self.lost += 1
                return
            writer.write(data)
            await writer.drain()
