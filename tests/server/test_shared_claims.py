"""Claims of many workers: what is found is one worker's, that there is nothing is for all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from trellis.core.durations import SECOND
from trellis.core.job import SessionId
from trellis.engines.demand import Demand
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import Claimed
from trellis.server.shared_claims import SharedClaims
from trellis.testing.builders import a_demand, a_job, a_worker

MANY = 20


class CountedClaims(MemoryEngine):
    """Counts claims, and lets each begin only when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.gate = asyncio.Semaphore(0)

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Wait for the gate, then claim."""
        self.begun += 1
        await self.gate.acquire()
        return await super().claim(session, demands, limit)


async def opened() -> tuple[CountedClaims, SessionId]:
    """Return an engine with a session."""
    engine = CountedClaims()
    await engine.open()
    return engine, (await engine.open_session(a_worker(), 60 * SECOND)).id


async def settled() -> None:
    """Let every task run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_empty_claim_answers_all_that_arrived_before_it_began() -> None:
    engine, session = await opened()
    claims = SharedClaims(engine)
    demands = [a_demand(a_job().type)]
    first = asyncio.create_task(claims.claim(session, demands, 10))
    await settled()
    others = [asyncio.create_task(claims.claim(session, demands, 10)) for _ in range(MANY)]
    await settled()
    engine.gate.release()  # it began before the others arrived
    assert (await first).jobs == ()
    await settled()
    assert (engine.begun, [each for each in others if each.done()]) == (2, [])
    engine.gate.release()
    assert {each.jobs for each in await asyncio.gather(*others)} == {()}
    assert engine.begun == 2
    await engine.close()


async def test_jobs_are_claimed_once_and_by_each_claim_for_itself() -> None:
    engine, session = await opened()
    claims = SharedClaims(engine)
    jobs = [a_job() for _ in range(3)]
    await engine.create(jobs)
    demands = [a_demand(jobs[0].type)]
    tasks = [asyncio.create_task(claims.claim(session, demands, 1)) for _ in range(MANY)]
    await settled()
    for _ in range(MANY):
        engine.gate.release()
    found = await asyncio.gather(*tasks)
    claimed = [record.definition.id for each in found for record in each.jobs]
    assert sorted(claimed) == sorted(new.id for new in jobs)
    assert engine.begun == len(jobs) + 1
    await engine.close()


async def test_a_claim_that_takes_no_limited_jobs_answers_no_other() -> None:
    engine, session = await opened()
    claims = SharedClaims(engine)
    for _ in range(3):
        engine.gate.release()
    demands = [a_demand(a_job().type)._replace(free=0)]
    await asyncio.gather(*(claims.claim(session, demands, 1) for _ in range(3)))
    assert engine.begun == 3
    await engine.close()


async def test_a_claim_for_other_types_is_not_held_up() -> None:
    engine, session = await opened()
    claims = SharedClaims(engine)
    held = asyncio.create_task(claims.claim(session, [a_demand("one")], 1))
    await settled()
    other = asyncio.create_task(claims.claim(session, [a_demand("two")], 1))
    await settled()
    assert engine.begun == 2
    for _ in range(2):
        engine.gate.release()
    await asyncio.gather(held, other)
    await engine.close()
