"""Removal by an operator: ended jobs are removed and recorded; live ones are refused."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.admission import Reason
from trellis.core.commands import (
    Cancel,
    Command,
    Complete,
    Dismiss,
    Expire,
    Fail,
    LoseLease,
    Skip,
    Snooze,
)
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND
from trellis.core.job import JobRecord
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.core.states import ENDED, State
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Counts,
    Item,
    JobFilter,
    LogLine,
    Note,
    Progress,
    Rejected,
)
from trellis.testing.builders import (
    SERVICE,
    TYPE,
    a_job,
    a_job_id,
    a_keyed_job,
    complete,
    fence_of,
)
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept_one,
    claim,
    claim_one,
    holders,
    ids,
    renew,
    settle,
    start,
    the,
    were_removed,
)
from trellis.testing.conformance.retention import BOOM
from trellis.testing.conformance.suite import EngineSuite

ONCE = Policy(retry=Retry.never())
STRICT = Policy(retry=Retry.never(), on_lost="stale")


async def _settle_all(engine: Engine, record: JobRecord, *commands: Command) -> JobRecord:
    for command in commands:
        record = await settle(engine, record, command)
    return record


async def _one_of_each_ended(engine: Engine, clock: ManualClock) -> list[JobRecord]:
    """Return one job in every ended state."""
    session = await a_session(engine, "1h")
    done, partly, failed, dead, dismissed = [
        await start(engine, session, a_job(policy=ONCE)) for _ in range(5)
    ]
    lost = await start(engine, session, a_job(policy=STRICT))
    late = await accept_one(engine, a_job(deadline_in=SECOND))
    clock.advance("1s")
    return [
        await settle(engine, done, complete(done)),
        await settle(engine, partly, Complete(fence_of(partly), item_errors=1)),
        await settle(engine, failed, Fail(fence_of(failed), BOOM, retryable=False)),
        await settle(engine, dead, Fail(fence_of(dead), BOOM)),
        await _settle_all(engine, dismissed, Fail(fence_of(dismissed), BOOM), Dismiss()),
        await settle(engine, lost, LoseLease(fence_of(lost))),
        await settle(engine, late, Expire()),
        await settle(engine, await accept_one(engine, a_job()), Cancel()),
        await settle(engine, await accept_one(engine, a_job()), Skip(a_job_id())),
    ]


class TestRemoval(EngineSuite):
    """Ended jobs can be removed at any time, and only those."""

    async def test_a_job_in_any_ended_state_is_removed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        ended = await _one_of_each_ended(engine, clock)
        assert {record.head.state for record in ended} == ENDED
        assert await engine.remove(ids(ended)) == ["removed"] * len(ended)
        assert (await engine.load(ids(ended))).records == (None,) * len(ended)
        assert await were_removed(engine, *ids(ended)) == [True] * len(ended)

    async def test_a_live_job_is_refused_and_left_as_it_is(self, engine: Engine) -> None:
        session = await a_session(engine)
        running = await start(engine, session, a_job())
        snoozed = await start(engine, session, a_job())
        snoozed = await settle(engine, snoozed, Snooze(fence_of(snoozed), SECOND))
        waiting = await accept_one(engine, a_job())
        later = await accept_one(engine, a_job(delay=SECOND))
        first = await accept_one(engine, a_keyed_job("user/7", IN_TURN))
        second = await accept_one(engine, a_keyed_job("user/7", IN_TURN))
        live = [running, snoozed, waiting, later, first, second]
        assert await engine.remove(ids(live)) == ["live"] * len(live)
        assert list((await engine.load(ids(live))).records) == live
        assert await were_removed(engine, *ids(live)) == [False] * len(live)
        await settle(engine, running, complete(running))

    async def test_answers_come_in_the_order_asked_and_a_job_is_removed_once(
        self, engine: Engine
    ) -> None:
        done = await settle(engine, await accept_one(engine, a_job()), Cancel())
        waiting = await accept_one(engine, a_job())
        asked = [a_job_id(), *ids([done, waiting, done])]
        assert await engine.remove(asked) == ["missing", "removed", "live", "missing"]
        assert await engine.remove(ids([done])) == ["missing"]
        assert await engine.remove([]) == []

    async def test_nothing_of_a_removed_job_is_left(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(idempotency_key="k", policy=ONCE))
        row, fence = taken.definition.row, fence_of(taken)
        bodies = (LogLine("info", "x"), Progress(1), Item("a", "failed"))
        await engine.note([Note(row, 1, fence, body) for body in bodies])
        failed = await settle(engine, taken, Fail(fence, BOOM, retryable=False))
        await settle(engine, failed, RetryJob())
        again = await claim_one(engine, session)
        await settle(engine, again, complete(again))
        (gone,) = ids([taken])
        assert len(await engine.outcomes(gone)) == 2  # noqa: PLR2004 - one per generation
        assert await engine.remove([gone]) == ["removed"]
        assert await engine.journal(gone) == []
        assert await engine.outcomes(gone) == []
        assert await engine.logs(gone) == []
        assert await engine.items(gone) == []
        assert await engine.activity(gone) is None
        assert await engine.count(JobFilter(), "state") == Counts(clock.now(), {})
        assert await engine.prune(100) == 0

    async def test_a_removed_job_frees_its_idempotency_key_and_its_id(self, engine: Engine) -> None:
        new = a_job(idempotency_key="k")
        await settle(engine, await accept_one(engine, new), Cancel())
        other = a_job(idempotency_key="k", payload='{"order":8}')
        refused = Rejected(Reason.IDEMPOTENCY_MISMATCH, new.id)
        assert await engine.create([other]) == [refused]
        assert await engine.remove([new.id]) == ["removed"]
        assert await engine.create([other, new._replace(idempotency_key=None)]) == [
            Accepted(other.id),
            Accepted(new.id),
        ]

    async def test_a_revived_job_is_live_again(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job(policy=ONCE))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        revived = await settle(engine, failed, RetryJob())
        assert await engine.remove(ids([revived])) == ["live"]
        assert await the(engine, revived.definition.id) == revived

    async def test_others_of_the_key_go_on_when_one_is_removed(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_keyed_job("user/7", IN_TURN))
        second = await accept_one(engine, a_keyed_job("user/7", IN_TURN))
        await settle(engine, first, complete(first))
        assert await engine.remove(ids([first])) == ["removed"]
        assert ids(await claim(engine, session)) == ids([second])

    async def test_a_slot_whose_handler_may_still_run_outlives_its_removed_job(
        self, engine: Engine
    ) -> None:
        rule = KeyPolicy("user/{id}", 1, None, "wait")
        session = await a_session(engine)
        first = await start(engine, session, a_keyed_job("user/7", rule))
        second = await accept_one(engine, a_keyed_job("user/7", rule))
        ended = await settle(engine, first, Cancel(force=True))
        assert ended.head.state is State.CANCELLED
        assert await engine.remove(ids([first])) == ["removed"]
        assert await claim(engine, session) == []
        await renew(engine, session, stopped=(fence_of(first),))
        assert ids(await claim(engine, session)) == ids([second])
        assert await holders(engine, "user/7") == ids([second])

    async def test_a_key_that_only_a_removed_job_used_is_not_listed(self, engine: Engine) -> None:
        """Its slot lingers, and another job of the key ended before."""
        rule = KeyPolicy("user/{id}", 1, None, "wait")
        session = await a_session(engine)
        first = await start(engine, session, a_keyed_job("user/7", rule))
        second = await accept_one(engine, a_keyed_job("user/7", rule))
        for each in (first, second):
            await settle(engine, each, Cancel(force=True))
        assert await holders(engine, "user/7") == ids([first])
        assert await engine.remove(ids([first])) == ["removed"]
        assert await engine.keys(SERVICE, TYPE) == []
