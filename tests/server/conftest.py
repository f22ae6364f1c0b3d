"""A store, its HTTP API and tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from tests.harness.shop import guarded_server, shop  # noqa: F401 - fixtures are found by name
from trellis import Service
from trellis.engines.sqlite import SqliteEngine
from trellis.operations.operator import Operator
from trellis.server import create_app

BASE = "http://127.0.0.1:8321"


class Api:
    """The API as a caller with certain scopes sees it."""

    def __init__(self, app: FastAPI, engine: SqliteEngine, service: Service) -> None:
        self.app, self.engine, self.service = app, engine, service
        self.operator = Operator(engine)

    async def token(self, *scopes: str) -> str:
        """Return a token with these scopes."""
        return (await self.operator.tokens.create(scopes, name="test")).text

    async def send(
        self,
        method: str,
        path: str,
        *scopes: str,
        token: str | None = None,
        **options: Any,  # noqa: ANN401 - httpx's
    ) -> httpx.Response:
        """Send a request, with a token of these scopes if any are given."""
        if scopes:
            token = await self.token(*scopes)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= options.pop("headers", {})
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url=BASE, headers=headers
        ) as client:
            return await client.request(method, path, **options)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """An API over a file with one service."""
    path = tmp_path / "jobs.db"
    service = Service("shop", f"sqlite:///{path}")

    @service.job
    async def invoice(number: int) -> int:
        return number

    engine = SqliteEngine(path)
    await engine.open()
    app = create_app(engine=engine)
    async with service, app.router.lifespan_context(app):
        await invoice.create(7)
        yield Api(app, engine, service)
    await engine.close()
