"""Every cause that keeps a job from running, on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.engines.postgres.steps import fresh
from tests.engines.postgres.told_time import *  # noqa: F403 - fixtures are found by name
from tests.harness.servers.databases import Databases
from tests.insight.causes import CausesSuite
from tests.insight.real_causes import RealCausesSuite
from trellis import Service

pytestmark = pytest.mark.usefixtures("claims_from_the_beginning")


class TestCauses(CausesSuite):
    """Each cause, what it prevents, and the change that ends it."""


@pytest.fixture
def real_time(postgres_server: Databases) -> Iterator[str]:
    """A database with the clock of its server."""
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
async def service(real_time: str) -> AsyncIterator[Service]:
    async with Service("shop", real_time) as service:
        yield service


class TestRealCauses(RealCausesSuite):
    """The main causes with real workers."""
