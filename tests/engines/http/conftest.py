"""Servers for the tests of this folder; each test serves an engine of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.app_server import AppServer
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from tests.harness.shop import guarded_server, shop  # noqa: F401 - fixtures are found by name


@pytest.fixture(scope="session")
def app_server() -> Iterator[AppServer]:
    """A server that lets every caller do everything."""
    server = AppServer(no_auth=True)
    yield server
    server.close()
