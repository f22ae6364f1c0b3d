"""The audit: each change by an operator leaves one entry; everything else leaves none."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import pytest

from trellis.control import apply, apply_all, clone, retry_failed_members
from trellis.core.commands import (
    Adjust,
    Cancel,
    Dismiss,
    Expire,
    Fail,
    OperatorCommand,
    ReleaseKey,
    Replay,
    RetryItems,
)
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND
from trellis.core.events import JsonValue
from trellis.core.job import Failure, JobRecord, SessionId
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.operating import Drain
from trellis.engines.port import Engine
from trellis.engines.values import Conflict, QueueSettings
from trellis.errors import AdmissionError, CommandRejected
from trellis.testing.builders import QUEUE, SERVICE, a_job, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.batches import end, opened, status
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    claim,
    decided,
    give_up_lost,
    ids,
    reap_lapsed,
    settle,
    settle_overdue,
    start,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom")
ANN = By("ann", "because")
ALL = AuditFilter()
_ONCE = Policy(retry=Retry.never())


async def entries(engine: Engine, where: AuditFilter = ALL) -> list[tuple[Change, By]]:
    """Return the audit, oldest first, without numbers and times."""
    return [(each.change, each.by) for each in reversed(await engine.audit(where))]


async def actions(engine: Engine) -> list[str]:
    """Return the actions of the audit, oldest first."""
    return [change.action for change, _ in await entries(engine)]


async def _ended(engine: Engine, *, dead: bool = False) -> JobRecord:
    taken = await start(engine, await a_session(engine), a_job(policy=_ONCE))
    return await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=dead))


async def _blocked(engine: Engine, clock: ManualClock) -> JobRecord:
    policy = Policy(on_lost="block", retry=Retry.fixed(0), key=IN_TURN)
    await start(engine, await a_session(engine), a_keyed_job("user/7", IN_TURN, policy=policy))
    clock.advance("30s")
    await reap_lapsed(engine)
    return (await give_up_lost(engine))[0]


class TestAuditOfJobs(EngineSuite):
    """Commands of operators are recorded in the transaction that stores them."""

    async def test_a_cancel_leaves_one_entry(self, engine: Engine, clock: ManualClock) -> None:
        record = await accept_one(engine, a_job())
        await settle(engine, record, Cancel("because", actor="ann"))
        change = Change(
            "job.cancel", record.definition.id, {"state": "pending"}, {"state": "cancelled"}
        )
        (entry,) = await engine.audit(AuditFilter())
        assert (entry.at, entry.change, entry.by) == (clock.now(), change, ANN)

    async def test_a_cancel_of_a_running_job_is_a_request(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        asked = await settle(engine, taken, Cancel(actor="ann"))
        await settle(engine, asked, Cancel(actor="bob", force=True))
        job_id = taken.definition.id
        first, second = await entries(engine)
        assert first == (
            Change("job.cancel", job_id, {"cancel_requested": False}, {"cancel_requested": True}),
            By("ann"),
        )
        assert second == (
            Change(
                "job.cancel",
                job_id,
                {"state": "active", "cancel_requested": True},
                {"state": "cancelled", "cancel_requested": False},
            ),
            By("bob"),
        )

    async def test_an_adjustment_names_what_was_and_what_is(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job(priority=1))
        later = clock.now() + SECOND
        command = Adjust("other", 3, later, 9, "ann", "because")
        await settle(engine, record, command)
        before: dict[str, JsonValue] = {
            "queue": QUEUE,
            "priority": 1,
            "run_at": record.head.run_at,
            "attempts": record.definition.policy.retry.attempts,
        }
        after: dict[str, JsonValue] = {
            "queue": "other",
            "priority": 3,
            "run_at": later,
            "attempts": 9,
        }
        expected = Change("job.set", record.definition.id, before, after)
        assert await entries(engine) == [(expected, ANN)]

    @pytest.mark.parametrize(
        ("dead", "command", "action", "after"),
        [
            (False, RetryJob("ann", "because"), "job.retry", "pending"),
            (False, RetryItems("ann", "because"), "job.retry_items", "pending"),
            (True, Replay("ann", "because"), "job.replay", "pending"),
            (True, Dismiss("ann", "because"), "job.dismiss", "dismissed"),
        ],
    )
    async def test_a_change_of_an_ended_job_leaves_one_entry(
        self,
        engine: Engine,
        dead: bool,  # noqa: FBT001 - a parameter
        command: OperatorCommand,
        action: str,
        after: str,
    ) -> None:
        ended = await _ended(engine, dead=dead)
        await settle(engine, ended, command)
        ((change, by),) = await entries(engine)
        assert (change.action, change.target, by) == (action, ended.definition.id, ANN)
        assert change.before["state"] == ended.head.state  # type: ignore[index,call-overload]
        assert change.after["state"] == after  # type: ignore[index,call-overload]

    async def test_the_journal_has_the_reason_too(self, engine: Engine) -> None:
        ended = await _ended(engine)
        await settle(engine, ended, RetryJob("ann", "because"))
        assert (await engine.journal(ended.definition.id))[-1].data == ANN._asdict()

    async def test_the_release_of_a_key_leaves_one_entry(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        blocked = await _blocked(engine, clock)
        assert await entries(engine) == []
        await settle(engine, blocked, ReleaseKey("fail", "ann", reason="because"))
        change = Change(
            "key.release", blocked.definition.id, {"state": "active"}, {"state": "failed"}
        )
        assert await entries(engine) == [(change, ANN)]

    async def test_the_system_leaves_none(self, engine: Engine, clock: ManualClock) -> None:
        session = await a_session(engine)
        done, failed, asked, lost = [
            await start(engine, session, a_job(policy=Policy(cancel_grace=SECOND)))
            for _ in range(4)
        ]
        await settle(engine, done, complete(done))
        await settle(engine, failed, Fail(fence_of(failed), BOOM))
        await settle(engine, asked, Cancel())  # the only change by an operator
        clock.advance("2s")
        assert [each.definition.id for each in await settle_overdue(engine)] == ids([asked])
        expiring = await accept_one(engine, a_job(deadline_at=clock.now() + SECOND))
        clock.advance("30s")
        await settle(engine, expiring, Expire())
        await reap_lapsed(engine)
        assert ids(await give_up_lost(engine)) == ids([lost])
        assert await actions(engine) == ["job.cancel"]

    async def test_a_refused_command_leaves_none(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        for command in (RetryJob(), Replay(), Dismiss(), ReleaseKey()):
            with pytest.raises(CommandRejected):
                await apply(engine, record.definition.id, command)
        assert await entries(engine) == []

    async def test_a_conflict_leaves_none_and_the_next_try_one(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        late = await decided(engine, record, Adjust(priority=2, actor="bob"))
        now = await engine.now()
        await settle(engine, record, Adjust(priority=1, actor="ann"))
        (answer,) = await engine.commit([late])
        assert isinstance(answer, Conflict)
        assert [by.actor for _, by in await entries(engine)] == ["ann"]
        await apply_all(engine, [(record, Adjust(priority=2, actor="bob"))], now)
        assert [by.actor for _, by in await entries(engine)] == ["ann", "bob"]

    async def test_a_repeated_cancel_leaves_one(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        command = await decided(engine, record, Cancel())
        await engine.commit([command])
        await engine.commit([command])  # as after a lost reply
        await apply(engine, record.definition.id, Cancel())
        assert await actions(engine) == ["job.cancel"]

    async def test_many_changes_together_leave_one_each(self, engine: Engine) -> None:
        session = await a_session(engine)
        running = await start(engine, session, a_job())
        done = await start(engine, session, a_job())
        dead = await _ended(engine, dead=True)
        waiting = await accept(engine, *(a_job() for _ in range(12)))
        keyed = await accept_one(engine, a_keyed_job("user/7", IN_TURN))
        gone = await accept_one(engine, a_job())
        await settle(engine, gone, Cancel(actor="before"))
        transitions = [
            *[await decided(engine, each, Cancel(actor="ann")) for each in waiting],
            await decided(engine, gone, Cancel(actor="ann")),
            await decided(engine, running, Cancel(actor="ann", force=True)),
            await decided(engine, keyed, Cancel(actor="ann")),
            await decided(engine, done, complete(done)),
            await decided(engine, dead, Replay("ann")),
        ]
        answers = await engine.commit(transitions)
        assert [isinstance(each, Conflict) for each in answers].count(True) == 1
        found = await entries(engine, AuditFilter(actor="ann"))
        changed = ids([*waiting, running, keyed, dead])
        assert sorted(change.target for change, _ in found) == sorted(changed)

    async def test_successes_beside_an_operators_change_are_not_recorded(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        done = [await start(engine, session, a_job()) for _ in range(3)]
        waiting = await accept_one(engine, a_job())
        transitions = [
            *[await decided(engine, each, complete(each)) for each in done],
            await decided(engine, waiting, Cancel()),
        ]
        await engine.commit(transitions)
        assert await actions(engine) == ["job.cancel"]

    async def test_a_clone_leaves_one_entry_and_a_plain_job_none(self, engine: Engine) -> None:
        old = await accept_one(engine, a_job())
        new_id = await clone(engine, old.definition.id, ANN)
        change = Change("job.clone", old.definition.id, None, {"clone": new_id})
        assert await entries(engine) == [(change, ANN)]

    async def test_a_job_that_is_not_stored_leaves_none(self, engine: Engine) -> None:
        busy = await accept_one(engine, a_keyed_job("user/7", KeyPolicy("user/{id}")))
        with pytest.raises(AdmissionError):
            await clone(engine, busy.definition.id, ANN)
        new = a_job()
        await engine.create([new], ANN)
        await engine.create([new], ANN)  # as after a lost reply
        assert await actions(engine) == ["job.create"]

    async def test_a_deletion_leaves_one_entry(self, engine: Engine) -> None:
        ended, live = await _ended(engine), await accept_one(engine, a_job())
        wanted = ids([ended, live, ended])
        assert await engine.remove(wanted, ANN) == ["removed", "live", "missing"]
        assert await engine.remove(wanted, ANN) == ["missing", "live", "missing"]
        change = Change("job.delete", ended.definition.id, {"state": "failed"})
        assert await entries(engine) == [(change, ANN)]

    async def test_retention_leaves_none(self, engine: Engine, clock: ManualClock) -> None:
        policy = Policy(retention=Retention(completed=SECOND))
        taken = await start(engine, await a_session(engine), a_job(policy=policy))
        await settle(engine, taken, complete(taken))
        clock.advance("2s")
        assert await engine.prune(10) == 1
        assert await entries(engine) == []


class TestAuditOfQueuesAndWorkers(EngineSuite):
    """Settings and requests of operators are recorded where they change something."""

    async def test_settings_of_a_queue_leave_one_entry_each(self, engine: Engine) -> None:
        paused = QueueSettings(SERVICE, QUEUE, paused=True)
        both = paused._replace(draining=True)
        for each in (paused, paused, both, QueueSettings(SERVICE, QUEUE)):
            await engine.set_queue(each, ANN)
        name = f"{SERVICE}/{QUEUE}"
        assert await entries(engine) == [
            (Change("queue.pause", name, {"paused": False}, {"paused": True}), ANN),
            (Change("queue.drain", name, {"draining": False}, {"draining": True}), ANN),
            (
                Change(
                    "queue.resume",
                    name,
                    {"paused": True, "draining": True},
                    {"paused": False, "draining": False},
                ),
                ANN,
            ),
        ]

    async def test_the_drain_of_all_queues_leaves_one_entry_each(self, engine: Engine) -> None:
        for on in (True, False):
            await engine.set_drain(Drain(on, *ANN))
        assert await entries(engine) == [
            (Change("drain.on", "*", {"on": False}, {"on": True}), ANN),
            (Change("drain.off", "*", {"on": True}, {"on": False}), ANN),
        ]

    async def test_the_drain_of_a_worker_leaves_one_entry(self, engine: Engine) -> None:
        session, ended = await a_session(engine), await a_session(engine)
        await engine.close_session(ended)
        assert await engine.ask_drain(session, ANN)
        assert await engine.ask_drain(session, ANN)
        assert not await engine.ask_drain(ended, ANN)
        assert not await engine.ask_drain(SessionId(1), ANN)
        change = Change("worker.drain", f"{session:016x}", None, {"name": "worker-1"})
        assert await entries(engine) == [(change, ANN)]

    async def test_texts_that_an_engine_cannot_store_are_replaced(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        await settle(engine, record, Cancel("a\0b \N{GRINNING FACE}", actor="an\0n"))
        paused = QueueSettings(SERVICE, QUEUE, paused=True)
        await engine.set_queue(paused, By("ann", "a\0b\ud800c"))
        assert [by for _, by in await entries(engine)] == [
            By("an\ufffdn", "a\ufffdb \N{GRINNING FACE}"),
            By("ann", "a\ufffdb\ufffdc"),
        ]


class TestAuditOfBatches(EngineSuite):
    """What operators do to a batch leaves entries for the batch or for its members."""

    async def test_a_seal_by_an_operator_leaves_one_entry_and_by_the_creator_none(
        self, engine: Engine
    ) -> None:
        forgotten, _ = await opened(engine, 1)
        await engine.seal_batch(forgotten.id, ANN)
        await engine.seal_batch(forgotten.id, ANN)
        sealed, _ = await opened(engine, 1)
        await engine.seal_batch(sealed.id)
        change = Change("batch.seal", forgotten.id, {"state": "open"}, {"state": "sealed"})
        assert await entries(engine) == [(change, ANN)]

    async def test_a_retry_of_failed_members_leaves_one_entry_per_member(
        self, engine: Engine
    ) -> None:
        new, (failed, dead, *_) = await opened(engine, 4)
        taken = await claim(engine, await a_session(engine))
        for member, state in zip(taken, (State.FAILED, State.DEAD, State.COMPLETED), strict=False):
            await end(engine, member, state)
        assert (await status(engine, new)).counts[State.COMPLETED] == 1
        assert await retry_failed_members(engine, new.id, ANN) == len([failed, dead])
        assert [(change[:2], by) for change, by in await entries(engine)] == [
            (("job.retry", failed.definition.id), ANN),
            (("job.replay", dead.definition.id), ANN),
        ]


class TestAuditList(EngineSuite):
    """The audit is read by its parts and page by page, the latest first."""

    async def _fill(self, engine: Engine, clock: ManualClock) -> list[JobRecord]:
        records = await accept(engine, *(a_job() for _ in range(3)))
        for record, actor in zip(records, ("ann", "bob", "ann"), strict=True):
            await settle(engine, record, Cancel(actor=actor))
            clock.advance("1s")
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True), By("ann"))
        return records

    async def test_every_part_of_a_filter_must_match(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        began = clock.now()
        records = await self._fill(engine, clock)
        first, second, third = ids(records)
        for where, expected in (
            (AuditFilter(actor="ann"), [first, third, f"{SERVICE}/{QUEUE}"]),
            (AuditFilter(action="job"), [first, second, third]),
            (AuditFilter(action="job.cancel"), [first, second, third]),
            (AuditFilter(action="job.can"), []),
            (AuditFilter(action="queue", actor="bob"), []),
            (AuditFilter(target=second), [second]),
            (AuditFilter(since=began + SECOND, until=began + 2 * SECOND), [second]),
        ):
            assert [change.target for change, _ in await entries(engine, where)] == expected

    async def test_pages_go_back_in_time(self, engine: Engine, clock: ManualClock) -> None:
        await self._fill(engine, clock)
        first = await engine.audit(AuditFilter(), limit=3)
        rest = await engine.audit(AuditFilter(), after=first[-1].number, limit=3)
        numbers = [entry.number for entry in (*first, *rest)]
        assert (len(numbers), numbers) == (4, sorted(numbers, reverse=True))
        assert first[0].change.action == "queue.pause"

    async def test_old_entries_are_removed_page_by_page(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        assert await engine.prune_audit(SECOND, 10) == 0
        records = await self._fill(engine, clock)
        # The entries are 3, 2, 1 and 0 seconds old.
        assert await engine.prune_audit(SECOND, 1) == 1
        assert await engine.prune_audit(SECOND, 10) == 1
        assert await engine.prune_audit(SECOND, 10) == 0
        left = [ids(records)[2], f"{SERVICE}/{QUEUE}"]
        assert [change.target for change, _ in await entries(engine)] == left
        last, *_ = rest = await engine.audit(AuditFilter())
        clock.advance("2s")
        assert await engine.prune_audit(SECOND, 10) == len(rest)
        await engine.set_queue(QueueSettings(SERVICE, QUEUE))
        (entry,) = await engine.audit(AuditFilter())
        assert entry.number > last.number
