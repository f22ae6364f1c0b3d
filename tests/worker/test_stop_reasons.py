"""Why a handler is stopped decides how its attempt ends, however the handler notices the stop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.worker.faulty import eventually
from tests.worker.stopped import KINDS, LOCK, WAYS, got, shop
from trellis import ActiveJob, Cancelled, JobCancelled, Service, State, Stopped, control
from trellis.client.requests import new_job
from trellis.core.commands import Cancel, Expire, LoseLease
from trellis.core.durations import SECOND
from trellis.core.job import JobId, JobRecord
from trellis.engines.port import Engine
from trellis.engines.values import WorkerInfo
from trellis.testing.builders import fence_of
from trellis.worker.supervisor import Supervisor

_HOUR = 3600 * SECOND

Stopping = Callable[[Engine, Supervisor, JobRecord], Awaitable[None]]


class Reason(NamedTuple):
    """A way to stop a handler, and what must come of it."""

    stop: Stopping
    #: How the job ends: its state, its attempts that count, its error's code, its journal's end.
    state: State
    attempt: int
    error: str | None
    journal: list[str]
    #: What the handler gets: the exception, `job.cancelled`, `job.stopping`.
    got: list[Any]


async def shut_down(engine: Engine, worker: Supervisor, job: JobRecord) -> None:
    await worker.stop()


async def lose_lease(engine: Engine, worker: Supervisor, job: JobRecord) -> None:
    await control.apply(engine, job.definition.id, LoseLease(fence_of(job)))
    worker._keeper.wake()


async def time_out(engine: Engine, worker: Supervisor, job: JobRecord) -> None:
    (attempt,) = worker._attempts.running.values()
    await eventually(lambda: attempt.started_at is not None)
    attempt.timeout_at = 0.0


async def ask_cancel(engine: Engine, worker: Supervisor, job: JobRecord) -> None:
    await control.apply(engine, job.definition.id, Cancel())
    worker._keeper.wake()


async def force_cancel(engine: Engine, worker: Supervisor, job: JobRecord) -> None:
    await control.apply(engine, job.definition.id, Cancel(force=True))
    worker._keeper.wake()


async def expire(engine: Engine, worker: Supervisor, job: JobRecord) -> None:
    deadline = job.definition.deadline_at
    assert deadline is not None
    (result,) = await control.apply_all(engine, [(job, Expire())], deadline)
    assert isinstance(result, control.Applied)
    worker._keeper.wake()


CANCELLED = ["Cancelled", True, False]
STOPPED = ["Stopped", False, True]
REASONS = {
    "shutdown": Reason(shut_down, State.RETRY, 0, None, ["retry"], STOPPED),
    "lost lease": Reason(lose_lease, State.RETRY, 1, "lease_lost", ["retry"], STOPPED),
    "timeout": Reason(time_out, State.RETRY, 1, "timeout", ["retry"], STOPPED),
    "requested cancel": Reason(
        ask_cancel, State.CANCELLED, 1, None, ["cancelRequested", "cancelled"], CANCELLED
    ),
    "forced cancel": Reason(force_cancel, State.CANCELLED, 1, None, ["cancelled"], CANCELLED),
    "expiry": Reason(expire, State.EXPIRED, 1, None, ["expired"], STOPPED),
}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    shop.connection.point_at(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with shop:
        yield await shop.connection.engine()


async def load(engine: Engine, job_id: JobId) -> JobRecord:
    (record,) = (await engine.load([job_id])).records
    assert record is not None
    return record


async def running(engine: Engine, job_type: str, path: str) -> JobRecord:
    """Create a job whose lock another session has; wait until its handler has begun."""
    other = await engine.open_session(WorkerInfo("other", "nowhere", 1), _HOUR)
    assert await engine.take_lock(LOCK, other.id) is None
    new = new_job(shop.find(job_type).job_type, path, deadline="1h")
    await engine.create([new])
    await eventually(Path(f"{path}.begun").exists)
    return await load(engine, new.id)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
async def test_the_reason_of_a_stop_decides_how_the_attempt_ends(
    engine: Engine, tmp_path: Path, reason: Reason, kind: str, way: str
) -> None:
    path = str(tmp_path / "job")
    async with shop.worker(grace="10ms") as worker:
        job = await running(engine, f"{kind}-{way}", path)
        await reason.stop(engine, worker, job)
        await eventually(lambda: not worker._attempts.running)
        await worker._settler.flush()
        # A wait for a lock may find its attempt over before the worker knows why.
        also = [STOPPED] if (reason.stop, way) == (force_cancel, "lock") else []
        # A process may be killed before its handler can report anything.
        is_certain = kind != "process" or reason is REASONS["requested cancel"]
        await eventually(lambda: got(path) is not None or not is_certain)
        assert got(path) in (reason.got, *also, None)
        head = (await load(engine, job.definition.id)).head
        kinds = [event.kind for event in await engine.journal(job.definition.id)]
        assert kinds == ["created", "started", *reason.journal]
        error = None if head.error is None else head.error.code
        assert (head.state, head.attempt, error) == (reason.state, reason.attempt, reason.error)


async def test_a_handler_may_cancel_its_job_or_hand_it_back_without_being_asked() -> None:
    attic = Service("attic", "memory://")
    begun: list[int] = []

    @attic.job
    async def give_up() -> None:
        raise Cancelled("nothing to do")

    @attic.job
    async def hand_back(job: ActiveJob[None]) -> int:
        begun.append(job.attempt)
        if len(begun) == 1:
            raise Stopped
        return job.attempt

    async with attic, attic.worker():
        with pytest.raises(JobCancelled):
            await (await give_up.create()).wait("20s")
        assert await (await hand_back.create()).wait("20s") == 1
    assert begun == [1, 1]
