"""Steps that the tests of operations share."""

from __future__ import annotations

from trellis import State
from trellis.core.commands import Fail
from trellis.core.job import Failure
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.testing.builders import a_demand, a_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept, claim, settle

BOOM = Failure("exception", "ValueError: boom")


async def ended(engine: Engine, state: State, count: int = 1) -> list[str]:
    """Make jobs that have failed or are dead; return their ids."""
    policy = Policy(retry=Retry.never())
    await accept(engine, *(a_job(policy=policy, type=state.value) for _ in range(count)))
    taken = await claim(engine, await a_session(engine), _demand(state.value), limit=count)
    for record in taken:
        await settle(engine, record, Fail(fence_of(record), BOOM, retryable=state is State.DEAD))
    return [record.definition.id for record in taken]


def _demand(name: str) -> Demand:
    return a_demand(name, limit=1000)
