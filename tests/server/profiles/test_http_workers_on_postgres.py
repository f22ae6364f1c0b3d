"""The same tests of workers that only speak HTTP, on PostgreSQL."""

from __future__ import annotations

import pytest

from tests.engines.postgres.told_time import *  # noqa: F403 - fixtures are found by name
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from tests.server.profiles.test_http_workers import *  # noqa: F403 - the tests themselves

pytestmark = [pytest.mark.long, pytest.mark.on_postgres(18)]
