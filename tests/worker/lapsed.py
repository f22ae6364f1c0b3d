"""A handler waits for a lock while its worker's lease lapses, as in a long pause."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.worker.faulty import eventually
from tests.worker.stopped import LOCK, got, shop
from trellis import State
from trellis.core.durations import SECOND
from trellis.core.job import Fence, JobId
from trellis.engines.values import LockHolder, WorkerInfo
from trellis.worker.locks import LockService


class Observed:
    """The worker's lock service; counts how often an attempt is named as the holder it waits for.

    That is the engine's answer to an attempt whose lease has lapsed.
    """

    def __init__(self, locks: LockService) -> None:
        self._locks = locks
        self.lapsed = 0

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        request = self._locks.take(fence, name)
        request.add_done_callback(lambda done: self._count(done, fence))
        return request

    def free(self, fence: Fence, name: str) -> Future[bool]:
        return self._locks.free(fence, name)

    def _count(self, done: Future[LockHolder | None], fence: Fence) -> None:
        holder = done.result()
        self.lapsed += holder is not None and (holder.session, holder.token) == fence


async def see_lapsed_wait_go_on(
    kind: str, path: str, lapse: Callable[[], None]
) -> tuple[list[str], list[Any] | None]:
    """Let every lease lapse while a handler waits; return the job's journal and what it got.

    `lapse` ends all leases without ending a session: the worker may go on after its next renewal.
    """
    async with shop, shop.worker(lease="1h") as worker:
        environment = worker._environment
        assert environment.locks is not None
        environment.locks = observed = Observed(environment.locks)
        engine = await shop.connection.engine()
        other = await engine.open_session(WorkerInfo("other", "nowhere", 1), 3600 * SECOND)
        assert await engine.take_lock(LOCK, other.id) is None
        ref = await shop.find(f"{kind}-lock").create(path)
        await eventually(Path(f"{path}.begun").exists)
        # The worker renews its lease when it starts; after that, only when it is woken.
        await eventually(lambda: worker._status.lease_renewed > 0)
        lapse()
        await eventually(lambda: observed.lapsed > 1)

        async def is_completed() -> bool:
            worker._keeper.wake()  # renews the lease
            return (await ref.status()).state is State.COMPLETED

        await eventually(is_completed)
        journal = await engine.journal(JobId(ref.id))
        return [str(event.kind) for event in journal], got(path)
