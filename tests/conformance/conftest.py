"""Breaks the SQLite engine before the suite runs, when the mutation test asks for it."""

from __future__ import annotations

import os

from tests.conformance.mutants import MUTANTS

_mutant = os.environ.get("TRELLIS_TEST_MUTANT")
if _mutant:
    MUTANTS[_mutant]()
