"""A pause past the lease costs a job that waits for a lock nothing if its lease is renewed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.engines.postgres.steps import fresh
from tests.harness.servers.databases import Databases
from tests.worker.lapsed import see_lapsed_wait_go_on
from tests.worker.stopped import KINDS, shop

pytestmark = pytest.mark.on_postgres(18)


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    shop.connection.point_at(url)
    yield url
    postgres_server.drop(url)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_whose_lease_lapses_while_it_waits_for_a_lock_goes_on_after_a_renewal(
    url: str, tmp_path: Path, kind: str
) -> None:
    def lapse() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("update trellis.session set lease_until = 0")

    journal, got = await see_lapsed_wait_go_on(kind, str(tmp_path / "job"), lapse)
    assert journal == ["created", "started", "completed"]
    assert got is None
