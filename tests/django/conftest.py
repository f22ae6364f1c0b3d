"""The shop on each database, with a worker that was started the way its users start one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.django.project import Project, Steps, on_postgres, on_sqlite
from tests.servers.databases import Databases
from tests.servers.fixtures import *  # noqa: F403 - fixtures are found by name


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def project(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Databases,
) -> Iterator[Project]:
    """The shop on a database with our tables."""
    url = None
    if request.param == "sqlite":
        shop = on_sqlite(tmp_path_factory.mktemp("shop"))
    else:
        url = postgres_server.new_database()
        shop = on_postgres(url)
    migrated = shop.manage("trellis", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    yield shop
    if url is not None:
        postgres_server.drop(url)


@pytest.fixture(scope="module")
def step(project: Project) -> Iterator[Steps]:
    """A process of the shop; its tables are there."""
    with project.steps() as steps:
        steps("make_tables")
        yield steps


@pytest.fixture(scope="module")
def worker(project: Project) -> Iterator[None]:
    """A worker of the shop."""
    is_sqlite = len(project.settings["databases"]) == 1
    program = ("-m", "tests.django.manage", "trellis") if is_sqlite else ("-m", "trellis.cli")
    with project.worker(*program):
        yield
