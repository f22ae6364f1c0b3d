"""The suite can fail: it catches each deliberate fault of the SQL engines, here on SQLite.

A test of the suite runs once with the fault and once without it: it must fail, then pass.
`tests/engines/postgres/test_mutants.py` does the same on PostgreSQL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path

import pytest

from tests.conformance.catches import CAUGHT_BY, Given, check_mutant, given
from tests.conformance.mutants import MUTANTS, OF_POSTGRES
from trellis.engines.sqlite import SqliteEngine
from trellis.testing import ManualClock, conformance


def test_every_mutant_has_a_test_of_the_suite_that_catches_it() -> None:
    assert CAUGHT_BY.keys() == MUTANTS.keys()
    tests = {f"{part.__name__}::{test}" for part in conformance.SUITE for test in part.declared()}
    assert set(CAUGHT_BY.values()) <= tests


@pytest.mark.long
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each not in OF_POSTGRES])
async def test_the_suite_catches_the_mutant(mutant: str, tmp_path: Path) -> None:
    numbers = count(1)

    @asynccontextmanager
    async def opening() -> AsyncIterator[Given]:
        path, clock = tmp_path / f"jobs-{next(numbers)}.db", ManualClock()
        with closing(sqlite3.connect(path)) as caller:
            async with given(lambda: SqliteEngine(str(path), clock=clock), clock, caller) as opened:
                yield opened

    await check_mutant(mutant, opening)
