"""Limits of claims that several processes make at once, and attempts that are not counted yet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.commands import Cancel
from trellis.core.durations import SECOND
from trellis.core.limits import Limit, Override, Scope
from trellis.engines.audit import By
from trellis.engines.jetstream.answers import WriteResult
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.limits import LimitTable
from trellis.engines.jetstream.link import Link, Message, Outdated, Written
from trellis.engines.values import Claimed
from trellis.errors import CapabilityMissing, EngineUnavailable
from trellis.testing import ManualClock
from trellis.testing.builders import (
    QUEUE,
    SERVICE,
    TYPE,
    a_demand,
    a_job,
    a_worker,
    complete,
    fence_of,
)
from trellis.testing.conformance.helpers import accept, decided

QUEUE_SCOPE = Scope("queue", SERVICE, QUEUE)
LANE = (SERVICE, QUEUE, TYPE)


async def limit(engine: ManualEngine, active: int | None, scope: Scope = QUEUE_SCOPE) -> None:
    parts = frozenset({"active"})
    await engine.change_limit(scope, Override(Limit(active=active), parts), By())  # type: ignore[arg-type]


async def claim(engine: ManualEngine, number: int = 10) -> Claimed:
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    return await engine.claim(session, [a_demand()], number)


def table_of(engine: ManualEngine) -> LimitTable:
    return engine._limits


async def running(engine: ManualEngine) -> int:
    (status,) = await engine.limits()
    return status.running


async def test_claims_at_once_never_start_more_than_the_limit(engine: ManualEngine) -> None:
    await accept(engine, *(a_job() for _ in range(20)))
    await limit(engine, 3)
    await engine.catch_up()
    taken = await asyncio.gather(*(claim(engine) for _ in range(6)))
    assert sum(len(each.jobs) for each in taken) == await running(engine) == 3


async def test_of_two_claims_that_read_the_same_room_one_is_stored(engine: ManualEngine) -> None:
    first, second = await accept(engine, a_job(), a_job())
    await limit(engine, 1)
    table = table_of(engine)
    in_force = await table.in_force([SERVICE])
    drafts = []
    for record in (first, second):
        draft = Draft(engine._store)
        budget = await table.budget(draft, in_force, [LANE], [a_demand()])
        assert budget is not None
        assert budget.room(LANE) == 1
        budget.take(LANE)
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        fenced = record._replace(head=record.head._replace(fence=(session, 7)))  # type: ignore[arg-type]
        await table.start(draft, in_force, budget, [fenced])
        drafts.append(draft)
    answers = [await draft.write() for draft in drafts]
    assert [type(each) for each in answers] == [Written, Outdated]


async def test_what_runs_already_counts_when_a_scope_gets_its_first_limit(
    engine: ManualEngine,
) -> None:
    await accept(engine, *(a_job() for _ in range(4)))
    jobs = (await claim(engine, 2)).jobs
    await limit(engine, 3)
    assert len((await claim(engine)).jobs) == 1
    await limit(engine, None)
    await limit(engine, 3)
    assert (await claim(engine)).jobs == ()
    await engine.commit([await decided(engine, jobs[0], complete(jobs[0]))])
    assert len((await claim(engine)).jobs) == 1


async def test_what_started_while_the_limit_was_stored_is_counted_by_the_next_upkeep(
    engine: ManualEngine, clock: ManualClock
) -> None:
    await accept(engine, *(a_job() for _ in range(3)))
    (missed,) = (await claim(engine, 1)).jobs
    await limit(engine, 1)
    subject = engine._subjects.own("used", *QUEUE_SCOPE)
    await forget_counted(engine, subject)
    assert await table_of(engine).count_again() == 1
    assert await table_of(engine).count_again() == 0
    assert (await claim(engine)).jobs == ()
    await engine.commit([await decided(engine, missed, complete(missed))])
    assert len((await claim(engine)).jobs) == 1
    await forget_counted(engine, subject)
    clock.advance("2m")
    assert await table_of(engine).count_again() == 0, "no claim is under way for so long"


async def forget_counted(engine: ManualEngine, subject: str) -> None:
    """Leave the state as a claim does that did not know the limit."""
    got = await engine._link.last(engine._subjects.jobs, subject)
    assert got is not None
    table = table_of(engine)
    in_force = await table.in_force([SERVICE])
    draft = Draft(engine._store)
    used = await table._used(draft, next(iter(in_force)))
    draft.put(subject, used._replace(counted=()))
    await draft.write()


async def test_an_attempt_that_was_marked_and_not_ended_still_counts(engine: ManualEngine) -> None:
    await accept(engine, a_job(), a_job())
    await limit(engine, 1)
    (taken,) = (await claim(engine)).jobs
    draft = Draft(engine._store)
    await table_of(engine).linger(draft, taken.definition, fence_of(taken), until=1)
    await draft.write()
    assert await table_of(engine).end_overdue() == 0
    assert (await claim(engine)).jobs == ()
    await engine.commit([await decided(engine, taken, Cancel(force=True))])


async def test_a_limit_of_keys_is_refused(engine: ManualEngine) -> None:
    keys = Scope("key", SERVICE, TYPE)
    await engine.declare_limits([(keys, Limit())])
    with pytest.raises(CapabilityMissing, match="Nothing was stored"):
        await engine.declare_limits([(QUEUE_SCOPE, Limit(active=1)), (keys, Limit(rate="1/1s"))])
    assert await engine.limits() == []


class LeaderlessLink(Link):
    """Answers no requests of one kind once a job has started: as if a stream had no leader."""

    def __init__(self, servers: list[str], unanswered: str) -> None:
        super().__init__(servers)
        self._unanswered, self._has_started = unanswered, False

    async def write(self, *messages: Message) -> WriteResult:
        answer = await super().write(*messages)
        self._has_started |= any(each.subject.endswith(".started") for each in messages)
        return answer

    async def api(
        self, verb: str, body: Mapping[str, Any] | None = None, *, wait: float = 20.0
    ) -> dict[str, Any]:
        if self._has_started and verb.startswith(self._unanswered):
            raise EngineUnavailable("no leader")
        return await super().api(verb, body, wait=wait)


@pytest.mark.parametrize("unanswered", ["CONSUMER.INFO", "STREAM.MSG.GET"])
async def test_a_claim_returns_what_has_started_if_its_limits_cannot_be_read_again(
    engine: ManualEngine, nats_url: str, unanswered: str
) -> None:
    await accept(engine, *(a_job() for _ in range(3)))
    parts = frozenset({"rate"})
    await engine.change_limit(QUEUE_SCOPE, Override(Limit(rate="1/1s"), parts), By())  # type: ignore[arg-type]
    await engine.close()
    engine._link = engine._store.link = LeaderlessLink([nats_url], unanswered)
    await engine.open()
    claimed = await claim(engine)
    assert [each.head.attempt for each in claimed.jobs] == [1]
    assert claimed.next_at is None
