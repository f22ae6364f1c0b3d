"""An operator at each engine, whose clock the test moves."""

from __future__ import annotations

import pytest

from tests.harness.embedded_engines import *  # noqa: F403 - fixtures are found by name
from trellis import Operator
from trellis.engines.port import Engine


@pytest.fixture
def jobs(engine: Engine) -> Operator:
    return Operator(engine, actor="ann")
