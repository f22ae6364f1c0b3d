"""The shop on each database, with a worker that was started the way its users start one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.django.project import Project, Steps, on_postgres, on_sqlite
from tests.engines.postgres.steps import fresh
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name

_STARTS = {
    "sqlite": ("-m", "tests.django.manage", "trellis"),
    "postgresql": ("-m", "trellis"),
}


@pytest.fixture(scope="module", params=_STARTS)
def project(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Databases,
) -> Iterator[Project]:
    """The shop, and a worker as soon as `step` needs one."""
    if request.param == "sqlite":
        yield on_sqlite(tmp_path_factory.mktemp("shop"), _STARTS["sqlite"])
        return
    url = fresh(postgres_server)
    yield on_postgres(url, _STARTS["postgresql"])
    postgres_server.drop(url)


@pytest.fixture(scope="module")
def step(project: Project) -> Iterator[Steps]:
    """A process of the shop that takes steps, while a worker runs."""
    with project.steps() as steps, project.worker():
        steps("make_tables")
        yield steps
