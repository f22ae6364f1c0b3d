"""Requests that arrive at the same time with one token share a read of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from trellis import connect
from trellis.core.durations import Instant
from trellis.engines import make_engine
from trellis.engines.instrumented import Call, instrumented
from trellis.engines.port import Engine
from trellis.engines.tokens import TokenRecord
from trellis.operations.operator import Operator
from trellis.server.token_reads import TokenReads


@asynccontextmanager
async def stored_at(folder: Path) -> AsyncIterator[Operator]:
    url = f"sqlite:///{folder}/jobs.db"
    await make_engine(url).migrate()
    async with connect(url) as jobs:
        yield jobs


async def test_requests_at_the_same_time_share_a_read(tmp_path: Path) -> None:
    calls: list[str] = []

    def observe(call: Call) -> None:
        calls.append(call.verb)

    async with stored_at(tmp_path) as jobs:
        token = await jobs.tokens.create(["admin.read"])
        reads = TokenReads(instrumented(jobs.engine, observe))
        found = await asyncio.gather(*(reads.find(token.text) for _ in range(50)))
        assert {each.id for each in found if each} == {token.token.id}
        assert calls.count("token") == 1


async def test_a_request_uses_no_read_that_began_before_it(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async with stored_at(tmp_path) as jobs:

        class SlowEngine:
            async def token(self, token_id: str) -> TokenRecord | None:
                record = await jobs.engine.token(token_id)
                begun.set()
                await go_on.wait()
                return record

            async def now(self) -> Instant:
                return await jobs.engine.now()

        token = await jobs.tokens.create(["admin.read"])
        reads = TokenReads(cast("Engine", SlowEngine()))
        early = asyncio.ensure_future(reads.find(token.text))
        await begun.wait()
        await jobs.tokens.revoke(token.token.id)
        late = asyncio.ensure_future(reads.find(token.text))
        await asyncio.sleep(0)
        go_on.set()
        assert await early is not None
        assert await late is None
