"""What the journal says of a late result is true at the place where it says it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.postgres.steps import REVIVE, during, fresh, opened
from tests.harness.servers.databases import Databases
from trellis import control
from trellis.core.commands import Complete, Fail
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobRecord
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import LateResult, Note, NoteResult
from trellis.testing.builders import a_demand, a_job, a_worker, fence_of

pytestmark = pytest.mark.on_postgres(18)
ONCE = Policy(retry=Retry.never())
_LOSE = """
    update trellis.queue set state = 'retry', availability = 'ready', version = version + 1,
      session = null, token = null, claimed_at = null
"""


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def started(engine: PostgresEngine) -> JobRecord:
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    await engine.create([a_job(policy=ONCE)])
    (taken,) = (await engine.claim(session, [a_demand()], 1)).jobs
    return taken


def late(record: JobRecord) -> Note:
    """Say that a result of an attempt before this one came late."""
    fence = fence_of(record)
    before = fence._replace(token=fence.token + 1)
    return Note(record.definition.row, record.head.claims, before, LateResult("complete", "7"))


async def told_during(engine: PostgresEngine, url: str, change: str, note: Note) -> NoteResult:
    """Note something while somebody is in the middle of a change."""
    (result,) = await during(url, change, engine.note([note]))
    return result


async def last_line(engine: PostgresEngine, record: JobRecord) -> tuple[str, str]:
    event = (await engine.journal(record.definition.id))[-1]
    return event.kind.value, event.state.value


async def test_a_change_under_way_is_waited_for_and_told(url: str) -> None:
    async with opened(url) as engine:
        taken = await started(engine)
        assert await told_during(engine, url, _LOSE, late(taken)) is NoteResult.NOTED
        assert await last_line(engine, taken) == ("staleCompletionIgnored", "retry")


async def test_so_is_the_revival_of_an_ended_job(url: str) -> None:
    async with opened(url) as engine:
        taken = await started(engine)
        burnt = Fail(fence_of(taken), Failure("exception", "it burnt"))
        await control.apply_all(engine, [(taken, burnt)], await engine.now())
        assert await told_during(engine, url, REVIVE, late(taken)) is NoteResult.NOTED
        assert await last_line(engine, taken) == ("staleCompletionIgnored", "pending")


async def test_late_results_of_ended_and_of_running_jobs_tell_what_those_are(url: str) -> None:
    async with opened(url) as engine:
        ended, running = await started(engine), await started(engine)
        done = Complete(fence_of(ended))
        await control.apply_all(engine, [(ended, done)], await engine.now())
        assert await engine.note([late(running), late(ended)]) == [NoteResult.NOTED] * 2
        assert await last_line(engine, ended) == ("staleCompletionIgnored", "completed")
        assert await last_line(engine, running) == ("staleCompletionIgnored", "active")
