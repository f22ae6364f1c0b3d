"""Batches whose rows other programs have changed, on SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from trellis.engines.sqlite import SqliteEngine
from trellis.testing.conformance.batches import fan_ins, opened, status

_FINISH = """
    update trellis_batch_member set finished_at = 1, state = 'completed', succeeded = 1
    where batch = ?
"""


async def test_a_complete_batch_is_found_behind_many_that_wait(
    engine: SqliteEngine, path: Path
) -> None:
    batches = [(await opened(engine, 1))[0] for _ in range(4)]
    for batch in batches:
        await engine.seal_batch(batch.id)
    assert await engine.finish_batches(2) == 0
    last = (await status(engine, batches[-1])).batch.row
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(_FINISH, (last,))
    assert await engine.finish_batches(2) == 1
    assert (await status(engine, batches[-1])).batch.state == "finished"
    assert len(await fan_ins(engine)) == 1
