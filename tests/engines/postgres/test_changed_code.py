"""New code decides about the jobs that old code left, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.postgres.steps import fresh
from tests.harness.servers.databases import Databases
from tests.worker.changed_code import check_that_new_code_decides


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.mark.long
async def test_new_code_decides_about_a_thousand_jobs_of_old_code(url: str) -> None:
    await check_that_new_code_decides(url)
