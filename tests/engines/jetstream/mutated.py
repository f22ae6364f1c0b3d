"""A plugin of pytest that breaks the engine for a whole run: by the mutant in a variable."""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.engines.jetstream.mutants import MUTANTS

VARIABLE: Final = "TRELLIS_TEST_MUTANT"


def pytest_configure() -> None:
    """Break it before any test is imported; it stays broken until the process ends."""
    MUTANTS[os.environ[VARIABLE]].mutate(pytest.MonkeyPatch())
