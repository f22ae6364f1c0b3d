"""A handler waits for a lock while its worker's lease lapses, as in a long pause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.worker.faulty import eventually
from tests.worker.stopped import LOCK, got, shop
from trellis import State
from trellis.core.durations import SECOND
from trellis.core.job import JobId
from trellis.engines.values import WorkerInfo


async def see_lapsed_wait_end(
    kind: str, path: str, lapse: Callable[[], None]
) -> tuple[list[str], list[Any] | None]:
    """Let every lease lapse while a handler waits; return the job's journal and what it got.

    `lapse` ends all leases without ending a session: the worker may go on after its next renewal.
    """
    async with shop, shop.worker(lease="1h") as worker:
        engine = await shop.connection.engine()
        other = await engine.open_session(WorkerInfo("other", "nowhere", 1), 3600 * SECOND)
        assert await engine.take_lock(LOCK, other.id) is None
        ref = await shop.find(f"{kind}-lock").create(path)
        await eventually(Path(f"{path}.begun").exists)

        def has_ended() -> bool:
            lapse()  # again, because the worker renews its lease when it starts
            return got(path) is not None

        await eventually(has_ended)

        async def is_over() -> bool:
            worker._keeper.wake()  # what no handler works on is handed back
            return (await ref.status()).state not in (State.ACTIVE, State.RETRY)

        await eventually(is_over)
        journal = await engine.journal(JobId(ref.id))
        return [str(event.kind) for event in journal], got(path)
