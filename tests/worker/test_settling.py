"""Storing outcomes: nothing is dropped, and one bad outcome does not take others with it."""

from __future__ import annotations

from tests.worker.faulty import FaultyEngine, eventually
from tests.worker.test_leases import create, record, service_of, worker
from trellis import ActiveJob
from trellis.core.states import State


async def test_one_outcome_that_cannot_be_stored_fails_alone() -> None:
    async def echo(number: int) -> int:
        return number

    service = service_of(echo)
    engine = FaultyEngine()
    engine.disliked = "7"
    ids = [await create(engine, service.find("echo"), number) for number in range(20)]
    async with worker(engine, service) as supervisor:
        await eventually(lambda: supervisor.settled == 20)
    records = [await record(engine, job_id) for job_id in ids]
    assert [each.head.state for each in records].count(State.COMPLETED) == 19
    offender = records[7].head
    assert offender.state is State.FAILED
    assert offender.error is not None
    assert offender.error.code == "unstorable"
    assert "cannot store 7" in offender.error.message


async def test_notes_wait_for_the_engine_and_settlements_wait_for_notes() -> None:
    engine = FaultyEngine()

    async def talk(job: ActiveJob[int]) -> None:
        engine.down = True
        job.log.info("said while the engine was away")

    service = service_of(talk)
    job_id = await create(engine, service.find("talk"), 1)
    async with worker(engine, service) as supervisor:
        await eventually(lambda: engine.down)
        engine.down = False
        await eventually(lambda: supervisor.settled == 1)
    assert [line.message for line in await engine.logs(job_id)] == [
        "said while the engine was away"
    ]
