"""Locks outside of handlers, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.postgres.steps import fresh, with_options
from tests.harness.servers.databases import Databases
from trellis import LockBusy, Operator, Service
from trellis.engines.postgres import PostgresEngine


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def test_programs_exclude_each_other_and_are_not_workers(url: str) -> None:
    async with Service("shop", url) as service, Service("shop", url) as other:
        async with service.lock("edition", 7):
            with pytest.raises(LockBusy, match=r"process .* has held it since"):
                async with other.lock("edition", 7, wait=0):
                    pytest.fail("it is held")
            engine = await service.connection.engine()
            operator = Operator(engine, actor="test")
            assert [lock.name for lock in await operator.locks()] == ["edition/7"]
            assert await operator.workers(ended=True) == []
        async with other.lock("edition", 7, wait=0):
            pass


async def test_a_lock_does_not_shorten_the_calls_of_its_program(url: str) -> None:
    async with Service("shop", with_options(url, statement_timeout="300s")) as service:
        engine = await service.connection.engine()
        assert isinstance(engine, PostgresEngine)
        async with service.lock("edition", 7):
            pass
        assert {link._address.statement_timeout for link in engine._links} == {300.0}
