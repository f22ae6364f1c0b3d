"""Who decides about the end of a job sees that somebody else has just brought it back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres.steps import REVIVE, during, fresh, opened
from tests.servers.databases import Databases
from trellis import control
from trellis.core.commands import Command, Dismiss, Fail, Replay
from trellis.core.job import Failure
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.core.spans import SECOND
from trellis.engines.values import Conflict
from trellis.testing.builders import a_demand, a_job, a_worker, fence_of

pytestmark = pytest.mark.on_postgres(16, 18)


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.mark.parametrize("command", [Dismiss(), Replay()])
async def test_a_decision_that_waited_for_a_revival_is_refused(url: str, command: Command) -> None:
    async with opened(url) as engine:
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        await engine.create([a_job(policy=Policy(retry=Retry.never()))])
        (taken,) = (await engine.claim(session, [a_demand()], 1)).jobs
        burnt = Fail(fence_of(taken), Failure("exception", "it burnt"))
        await control.apply_all(engine, [(taken, burnt)], await engine.now())
        (dead,) = (await engine.load([taken.definition.id])).records
        assert dead is not None
        decision = decide(dead, command, await engine.now())
        assert isinstance(decision, Transition)
        (answer,) = await during(url, REVIVE, engine.commit([decision]))
        (now,) = (await engine.load([taken.definition.id])).records
        assert answer == Conflict(now)
        assert now is not None
        assert now.head.state == "pending"
