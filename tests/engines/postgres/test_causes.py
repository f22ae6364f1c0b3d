"""Every cause that keeps a job from running, on PostgreSQL."""

from __future__ import annotations

import pytest

from tests.engines.postgres.told_time import *  # noqa: F403 - fixtures are found by name
from tests.insight.causes import CausesSuite

pytestmark = pytest.mark.usefixtures("claims_from_the_beginning")


class TestCauses(CausesSuite):
    """Each cause, what it prevents, and the change that ends it."""
