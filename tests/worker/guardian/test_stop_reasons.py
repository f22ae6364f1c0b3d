"""A stop that is no cancel never cancels a job, however its handler notices the stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.worker import stopped
from tests.worker.guardian.conftest import GRACE, Shop, Worker, wait_until
from trellis import Service
from trellis.core.durations import SECOND
from trellis.engines.values import WorkerInfo

TYPES = [f"{kind}-{way}" for kind in stopped.KINDS for way in stopped.WAYS]


def hold_lock(shop: Shop) -> None:
    """Have another session keep the lock for which handlers wait."""

    async def hold() -> None:
        async with Service("shop", shop.url) as service:
            engine = await service.connection.engine()
            other = await engine.open_session(WorkerInfo("other", "nowhere", 1), 3600 * SECOND)
            assert await engine.take_lock(stopped.LOCK, other.id) is None

    asyncio.run(hold())


def begin_all(shop: Shop) -> dict[str, str]:
    """Create one job of each type and wait until all their handlers have begun."""
    jobs = {name: shop.create(name, str(shop.folder / name)) for name in TYPES}
    for name in TYPES:
        wait_until((shop.folder / f"{name}.begun").exists)
    return jobs


def work(shop: Shop) -> Worker:
    """Start a worker for these handlers, with their lock taken."""
    (shop.folder / "stopped.py").write_text(Path(stopped.__file__).read_text())
    hold_lock(shop)
    return shop.worker("stopped:shop", f"--grace={GRACE}s")


def test_a_worker_that_shuts_down_hands_back_what_notices_the_stop(shop: Shop) -> None:
    worker = work(shop)
    jobs = begin_all(shop)
    worker.signal()
    assert worker.wait_for_exit() == 0
    seen = {name: shop.kinds(job_id) for name, job_id in jobs.items()}
    assert seen == {name: ["created", "started", "retry"] for name in TYPES}
    assert [shop.record(job_id).head.attempt for job_id in jobs.values()] == [0] * len(TYPES)


def test_a_worker_that_shuts_down_fails_them_where_the_type_says_so(shop: Shop) -> None:
    (shop.folder / stopped.FAIL_AT_SHUTDOWN).touch()
    worker = work(shop)
    names = [name for name in TYPES if not name.endswith("lock")]
    jobs = begin_all(shop)
    worker.signal()
    assert worker.wait_for_exit() == 0
    assert {shop.record(jobs[name]).head.state for name in names} == {"failed"}
