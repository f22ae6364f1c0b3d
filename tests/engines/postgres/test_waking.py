"""A worker that hardly ever polls is woken for everything: new jobs, and those whose time came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.engines.postgres.steps import fresh, with_options
from tests.harness.servers.databases import Databases
from trellis import Retry, Service

pytestmark = pytest.mark.on_postgres(18)
_GUESTS = {"Ada": "0s", "Grace": "200ms"}


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def test_delayed_jobs_and_retries_run_in_time_however_seldom_a_worker_polls(url: str) -> None:
    shop, elsewhere = Service("shop", url), Service("shop", url)
    tried: list[str] = []

    @shop.job(retry=Retry.fixed("300ms", attempts=2))
    async def greet(name: str) -> str:
        tried.append(name)
        if tried.count(name) == 1 and name == "unlucky":
            raise ValueError(name)
        return f"Hello, {name}!"

    declared = elsewhere.declare("greet", payload=str, result=str)
    async with shop, elsewhere, shop.worker(poll="1h"):
        # One that ran proves that the worker listens and, having nothing else, sleeps.
        assert await (await declared.create("first")).wait("30s") == "Hello, first!"
        refs = [
            await declared.create("later", delay="400ms"),
            await declared.create("unlucky"),
            await greet.create("much later", delay="2s"),
        ]
        await asyncio.gather(*(ref.wait("30s") for ref in refs))
    assert sorted(tried) == ["first", "later", "much later", "unlucky", "unlucky"]


async def test_a_worker_that_only_polls_finds_its_jobs(url: str) -> None:
    shop = Service("shop", with_options(url, wake="poll"))

    @shop.job
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    async with shop, shop.worker(poll="50ms"):
        refs = [await greet.create(name, delay=delay) for name, delay in _GUESTS.items()]
        answers = await asyncio.gather(*(ref.wait("30s") for ref in refs))
    assert answers == ["Hello, Ada!", "Hello, Grace!"]
