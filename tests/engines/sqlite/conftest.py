"""A SQLite engine on a file of its own, as most of these tests need one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from trellis.engines.sql.statements import load_migrations
from trellis.engines.sqlite import SqliteEngine, schema


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(path)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return what makes this process the next version of Trellis, with one more migration."""

    def upgrade() -> int:
        known = load_migrations("trellis.engines.sqlite")
        version = known[-1][0] + 1
        script = "alter table trellis_session add column mood text not null default 'fine';\n"
        monkeypatch.setattr(schema, "load_migrations", lambda _: (*known, (version, script)))
        return version

    return upgrade
