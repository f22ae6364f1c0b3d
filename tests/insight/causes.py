"""Every cause that keeps a job from running: what `why` answers, compared with what then happens.

The suite runs on each engine (`test_causes.py` here and in `tests/engines/postgres`). A worker is
what the engine knows of one: a session, its reports, and claims within its limits. A job that is
"due" must be taken by the next claim, a job with another cause must not; when the cause is gone,
the job is due and is taken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from trellis import schedules
from trellis.control import adjust, apply
from trellis.core.commands import Adjust, Cancel, Fail, LoseLease, Snooze
from trellis.core.durations import SECOND, micros
from trellis.core.job import Failure, JobId, JobRecord, Prerequisite, SessionId
from trellis.core.limits import Limit, Override, Reset, Scope
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.engines.audit import By
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.engines.values import Begun, Note, QueueSettings, WorkerInfo
from trellis.engines.worker_report import BlockedLoop, LockWait, LostThread, WorkerReport
from trellis.insight.causes import Cause
from trellis.insight.why import explain
from trellis.testing.builders import a_declaration, a_job, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import IN_TURN, accept, accept_one, settle, the

NAME = "shop/invoice"
NOT_OPEN = SessionId(0)


@dataclass
class Worker:
    """A worker as the engine knows it."""

    engine: Engine
    session: SessionId = NOT_OPEN
    slots: int = 2
    types: tuple[str, ...] = (NAME,)
    queues: tuple[str, ...] = ()
    schema_version: int = 1
    lease: str = "30s"
    heartbeat: str = "10s"
    report: WorkerReport = field(default_factory=WorkerReport)
    held: list[JobRecord] = field(default_factory=list)

    async def start(self) -> Worker:
        versions = dict.fromkeys(self.types, self.schema_version)
        facts = {
            "types": self.types,
            "slots": self.slots,
            "queues": self.queues,
            "schema_versions": versions,
            "heartbeat": micros(self.heartbeat),
        }
        info = WorkerInfo("berlin-1", "berlin", 4242, "0.1.0", json.dumps(facts))
        self.session = (await self.engine.open_session(info, micros(self.lease))).id
        return self

    async def renew(self, report: WorkerReport | None = None) -> bool:
        """Report; return whether the worker was asked to finish."""
        self.report = report or WorkerReport(running=len(self.held))
        held = [fence_of(each) for each in self.held]
        renewed = await self.engine.renew(self.session, held, report=self.report)
        return bool(getattr(renewed, "draining", True))

    async def claim(self) -> list[JobId]:
        """Claim as a real worker with this report would."""
        free = self.slots - len(self.held)
        if free <= 0 or self.report.blocked_loop is not None or self.report.alone is not None:
            return []
        if await self.renew(self.report):
            return []
        names = [each.split("/") for each in self.types if each not in self.report.full_types]
        demands = [Demand(service, (name,), free, self.queues) for service, name in names]
        taken = (await self.engine.claim(self.session, demands, free)).jobs
        self.held += taken
        return [each.definition.id for each in taken]


async def causes(engine: Engine, job_id: JobId) -> list[Cause]:
    await engine.catch_up()
    return list((await explain(engine, await the(engine, job_id))).causes)


def _only(limit: Limit) -> Override:
    return Override(limit, frozenset({"active", "rate"}))


async def codes(engine: Engine, job_id: JobId) -> list[str]:
    return [each.code for each in await causes(engine, job_id)]


async def runs(worker: Worker, job_id: JobId) -> None:
    """See that the job is due, and that the worker takes it."""
    assert await codes(worker.engine, job_id) == ["due"]
    assert job_id in await worker.claim()


class CausesSuite:
    """Each cause, what it prevents, and the change that ends it."""

    async def test_a_due_job_is_taken(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        record = await accept_one(engine, a_job())
        await runs(worker, record.definition.id)

    async def test_no_worker_of_the_type(self, engine: Engine) -> None:
        other = await Worker(engine, types=("shop/other",)).start()
        record = await accept_one(engine, a_job())
        (cause,) = await causes(engine, record.definition.id)
        assert (cause.code, cause.command) == ("no_worker", "trellis worker your_module:service")
        assert await other.claim() == []
        await runs(await Worker(engine).start(), record.definition.id)

    async def test_workers_of_the_type_only_for_other_queues(self, engine: Engine) -> None:
        worker = await Worker(engine, queues=("slow", "night")).start()
        record = await accept_one(engine, a_job(queue="urgent"))
        job_id = record.definition.id
        (cause,) = await causes(engine, job_id)
        assert cause.code == "other_queues"
        assert cause.command == f"trellis jobs move {job_id} --queue night"
        assert await worker.claim() == []
        await adjust(engine, job_id, queue="night")
        await runs(worker, job_id)

    async def test_a_paused_queue(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        record = await accept_one(engine, a_job(queue="slow"))
        await engine.set_queue(QueueSettings("shop", "slow", paused=True))
        (cause,) = await causes(engine, record.definition.id)
        assert (cause.code, cause.command) == ("queue_paused", "trellis queues resume shop/slow")
        assert await worker.claim() == []
        await engine.set_queue(QueueSettings("shop", "slow"))
        await runs(worker, record.definition.id)

    async def test_other_jobs_that_must_end_first(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        first = await accept_one(engine, a_job())
        record = await accept_one(engine, a_job(after=(Prerequisite(first.definition.id),)))
        job_id = record.definition.id
        (cause,) = await causes(engine, job_id)
        assert (cause.code, cause.command) == ("waiting_for_jobs", f"trellis jobs graph {job_id}")
        assert cause.text == f"It waits for the end of job {first.definition.id} (pending)."
        assert await worker.claim() == [first.definition.id]
        taken = worker.held.pop()
        await settle(engine, taken, complete(taken))
        await runs(worker, job_id)

    async def test_a_limit_that_is_reached(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        for kind, name, option in (("queue", "invoices", ""), ("type", "invoice", "--type ")):
            scope = Scope(kind, "shop", name)  # type: ignore[arg-type] # one of both words
            await engine.change_limit(scope, _only(Limit(active=1)), By())
            first, record = await accept(engine, a_job(), a_job())
            assert await worker.claim() == [first.definition.id]
            (cause,) = await causes(engine, record.definition.id)
            command = f"trellis queues set {option}shop/{name} --concurrency 2"
            assert (cause.code, cause.command) == ("limit_reached", command)
            assert "may run 1 job at a time over all workers, and 1 runs" in cause.text
            assert await worker.claim() == []
            taken = worker.held.pop()
            await settle(engine, taken, complete(taken))
            await runs(worker, record.definition.id)
            taken = worker.held.pop()
            await settle(engine, taken, complete(taken))
            await engine.change_limit(scope, Reset(), By())

    async def test_a_key_whose_rate_has_no_token(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        rule = KeyPolicy("k", 2, None, "wait", rate="1/10s")
        command = "trellis queues set --per-key shop/invoice --rate 2/10s"
        first, record = await accept(engine, a_keyed_job("k", rule), a_keyed_job("k", rule))
        (cause,) = await causes(engine, record.definition.id)
        assert (cause.code, cause.command) == ("key_rate_limited", command)
        assert cause.text == "Key 'k' may start 1 job per 10s, and other jobs of it start first."
        assert await worker.claim() == [first.definition.id]
        clock.advance("3s")
        (cause,) = await causes(engine, record.definition.id)
        assert (cause.code, cause.command) == ("key_rate_limited", command)
        assert cause.text == "Key 'k' may start 1 job per 10s; the next may start in 7 s."
        assert await worker.claim() == []
        clock.advance("7s")
        await engine.promote(10)
        await runs(worker, record.definition.id)

    async def test_a_rate_of_keys_that_an_operator_set(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        worker = await Worker(engine).start()
        rule = KeyPolicy("k", 2, None, "wait")
        first, record = await accept(engine, a_keyed_job("k", rule), a_keyed_job("k", rule))
        await engine.change_limit(Scope("key", "shop", "invoice"), _only(Limit(rate="1/1h")), By())
        assert await worker.claim() == [first.definition.id]
        (cause,) = await causes(engine, record.definition.id)
        assert cause.code == "key_rate_limited"
        assert cause.text == "Key 'k' may start 1 job per 1h; the next may start in 1 h."
        clock.advance("1h")
        await engine.promote(10)
        await worker.renew()
        await runs(worker, record.definition.id)

    async def test_a_rate_without_a_token(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        scope = Scope("queue", "shop", "invoices")
        await engine.change_limit(scope, _only(Limit(rate="1/10s")), By())
        first, record = await accept(engine, a_job(), a_job())
        assert await worker.claim() == [first.definition.id]
        (cause,) = await causes(engine, record.definition.id)
        command = "trellis queues set shop/invoices --rate 2/10s"
        assert (cause.code, cause.command) == ("rate_limited", command)
        assert "may start 1 job per 10s over all workers; the next may start in 10" in cause.text
        assert await worker.claim() == []
        clock.advance("10s")
        await runs(worker, record.definition.id)

    async def test_a_payload_of_a_newer_program(self, engine: Engine) -> None:
        old = await Worker(engine).start()
        record = await accept_one(engine, a_job(schema_version=2))
        job_id = record.definition.id
        (cause,) = await causes(engine, job_id)
        assert (cause.code, cause.command) == (
            "newer_payload",
            "trellis worker your_module:service",
        )
        assert "schema version 2" in cause.text
        assert "know versions up to 1" in cause.text
        assert await old.claim() == [job_id]
        taken = old.held.pop()
        await settle(engine, taken, Snooze(fence_of(taken), 5 * SECOND))
        assert await codes(engine, job_id) == ["newer_payload", "later"]
        await apply(engine, job_id, Adjust(run_at=await engine.now()))
        await runs(await Worker(engine, schema_version=2).start(), job_id)

    async def test_a_worker_that_drains(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        record = await accept_one(engine, a_job())
        await engine.ask_drain(worker.session)
        assert await codes(engine, record.definition.id) == ["workers_draining"]
        assert await worker.claim() == []
        await runs(await Worker(engine).start(), record.definition.id)

    async def test_a_worker_that_stops(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        await worker.renew(WorkerReport(stopping=True))
        record = await accept_one(engine, a_job())
        assert await codes(engine, record.definition.id) == ["workers_draining"]

    async def test_a_later_time(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        record = await accept_one(engine, a_job(delay=90 * SECOND))
        job_id = record.definition.id
        (cause,) = await causes(engine, job_id)
        assert (cause.code, cause.command) == ("later", f"trellis jobs set {job_id} --run-at now")
        assert await worker.claim() == []
        await apply(engine, job_id, Adjust(run_at=clock.now()))
        await runs(worker, job_id)

    async def test_the_delay_before_a_retry(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        policy = Policy(retry=Retry.fixed("20s"))
        record = await accept_one(engine, a_job(policy=policy))
        await worker.claim()
        taken = worker.held.pop()
        await settle(engine, taken, Fail(fence_of(taken), Failure("exception", "boom")))
        (cause,) = await causes(engine, record.definition.id)
        assert cause.code == "backoff"
        assert "Attempt 1 of 5 failed (boom); the next starts in 20 s." in cause.text
        assert await worker.claim() == []
        clock.advance("20s")
        await runs(worker, record.definition.id)

    async def test_what_hinders_workers_now_does_not_delay_a_later_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        worker = await Worker(engine, slots=2).start()
        policy = Policy(retry=Retry.fixed("20s"))
        failing = await accept_one(engine, a_job(policy=policy))
        await worker.claim()
        taken = worker.held.pop()
        await settle(engine, taken, Fail(fence_of(taken), Failure("exception", "boom")))
        later = await accept_one(engine, a_job(delay=90 * SECOND))
        running, _ = await accept(engine, a_job(), a_job())
        await worker.claim()
        await accept_one(engine, a_job())
        blocked = BlockedLoop(clock.now(), "shop.py:41 in blocks", running.definition.id)
        for report in (
            WorkerReport(2),
            WorkerReport(2, {NAME: 2}, {NAME: 2}),
            WorkerReport(2, {NAME: 2}, blocked_loop=blocked),
        ):
            await worker.renew(report)
            assert await codes(engine, failing.definition.id) == ["backoff"]
            assert await codes(engine, later.definition.id) == ["later"]
        await engine.ask_drain(worker.session)
        assert await codes(engine, later.definition.id) == ["later", "workers_draining"]

    async def test_a_passed_deadline(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        record = await accept_one(engine, a_job(deadline_in=SECOND))
        clock.advance("2s")
        assert await codes(engine, record.definition.id) == ["deadline_passed"]
        assert await worker.claim() == []

    async def test_a_held_key(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        first, second = await accept(engine, *(a_keyed_job("k", IN_TURN) for _ in range(2)))
        assert await worker.claim() == [first.definition.id]
        (cause,) = await causes(engine, second.definition.id)
        assert (cause.code, cause.command) == (
            "key_held",
            f"trellis jobs why {first.definition.id}",
        )
        assert await worker.claim() == []
        taken = worker.held.pop()
        await settle(engine, taken, complete(taken))
        await runs(worker, second.definition.id)

    async def test_a_key_that_a_removed_job_holds(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        first, second = await accept(engine, *(a_keyed_job("k", IN_TURN) for _ in range(2)))
        assert await worker.claim() == [first.definition.id]
        await apply(engine, first.definition.id, Cancel(force=True))
        await engine.remove([first.definition.id])
        (cause,) = await causes(engine, second.definition.id)
        assert cause.text == (
            "Key 'k' is held by a job that has ended and was removed since; 1 job waits for it."
        )
        assert cause.command == "trellis keys show k"
        assert await worker.claim() == []

    async def test_busy_slots(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine, slots=1).start()
        await accept_one(engine, a_job())
        await worker.claim()
        await worker.renew()
        clock.advance("5s")
        record = await accept_one(engine, a_job())
        (cause,) = await causes(engine, record.definition.id)
        assert cause.text == (
            "The one slot of the worker that runs shop/invoice is busy (reported 5 s ago)."
        )
        assert await worker.claim() == []
        taken = worker.held.pop()
        await settle(engine, taken, complete(taken))
        await worker.renew()
        await runs(worker, record.definition.id)

    async def test_the_limit_of_the_type(self, engine: Engine) -> None:
        worker = await Worker(engine, slots=4).start()
        first, second = await accept(engine, a_job(), a_job())
        await worker.engine.claim(worker.session, [Demand("shop", ("invoice",), 1)], 1)
        await worker.renew(WorkerReport(1, {NAME: 1}, {NAME: 1}))
        (cause,) = await causes(engine, second.definition.id)
        assert cause.code == "type_full"
        assert cause.text == (
            "The limit of its type is reached: worker berlin-1 may run 1 of shop/invoice at a "
            "time (concurrency=)."
        )
        assert cause.command == "trellis jobs list type:shop/invoice state:active"
        assert await worker.claim() == []
        await apply(engine, first.definition.id, Cancel(force=True))
        await worker.renew()
        await runs(worker, second.definition.id)

    async def test_a_blocked_loop(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        culprit = await accept_one(engine, a_job())
        await worker.claim()
        blocked = BlockedLoop(clock.now(), "shop.py:41 in blocks", culprit.definition.id)
        clock.advance("6s")
        await worker.renew(WorkerReport(1, {NAME: 1}, blocked_loop=blocked))
        record = await accept_one(engine, a_job())
        (cause,) = await causes(engine, record.definition.id)
        assert cause.code == "loop_blocked"
        assert f"for 6 s by job {culprit.definition.id} at shop.py:41 in blocks" in cause.text
        assert cause.command == f"trellis jobs cancel --force {culprit.definition.id}"
        assert await worker.claim() == []
        assert await codes(engine, culprit.definition.id) == ["blocks_loop"]
        await worker.renew()
        await runs(worker, record.definition.id)

    async def test_jobs_that_come_before_it(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine, slots=1).start()
        low = await accept_one(engine, a_job())
        clock.advance("1s")
        high = await accept_one(engine, a_job(priority=4))
        (cause,) = await causes(engine, low.definition.id)
        assert cause.code == "others_first"
        assert cause.text == "1 job comes before it, by priority, then due time, then creation."
        await engine.set_aging(3600 * SECOND, By())
        (cause,) = await causes(engine, low.definition.id)
        assert cause.text == (
            "1 job comes before it, by due time, then creation, where a step of priority counts as "
            "1h of waiting."
        )
        assert await codes(engine, high.definition.id) == ["due"]
        assert await worker.claim() == [high.definition.id]
        taken = worker.held.pop()
        await settle(engine, taken, complete(taken))
        await runs(worker, low.definition.id)

    async def test_jobs_in_queues_that_its_worker_does_not_serve_do_not_come_before_it(
        self, engine: Engine
    ) -> None:
        worker = await Worker(engine, slots=1, queues=("night",)).start()
        await accept(engine, *(a_job(queue="day", priority=4) for _ in range(3)))
        record = await accept_one(engine, a_job(queue="night"))
        await runs(worker, record.definition.id)

    async def test_jobs_that_another_worker_takes_first_do_not_delay_it(
        self, engine: Engine
    ) -> None:
        await Worker(engine, slots=1, types=(NAME, "shop/mail")).start()
        record = await accept_one(engine, a_job())
        await accept(engine, *(a_job(type="mail", priority=4) for _ in range(3)))
        assert await codes(engine, record.definition.id) == ["others_first"]
        await runs(await Worker(engine, slots=1).start(), record.definition.id)

    async def test_jobs_before_it_that_one_worker_cannot_take_alone_are_shared(
        self, engine: Engine
    ) -> None:
        workers = [await Worker(engine, slots=1).start() for _ in range(2)]
        first, second, third = await accept(engine, a_job(), a_job(), a_job())
        assert await codes(engine, third.definition.id) == ["others_first"]
        assert await codes(engine, second.definition.id) == ["due"]
        assert await workers[0].claim() == [first.definition.id]
        await workers[0].renew()
        await runs(workers[1], second.definition.id)

    async def test_jobs_behind_a_limit_that_is_reached_do_not_come_before_it(
        self, engine: Engine
    ) -> None:
        worker = await Worker(engine, slots=2, types=(NAME, "shop/mail")).start()
        await engine.change_limit(Scope("type", "shop", "mail"), _only(Limit(active=1)), By())
        await accept(engine, *(a_job(type="mail", priority=4) for _ in range(3)))
        first = await accept_one(engine, a_job())
        await runs(worker, first.definition.id)
        taken = next(each for each in worker.held if each.definition.type == "invoice")
        worker.held.remove(taken)
        await settle(engine, taken, complete(taken))
        record = await accept_one(engine, a_job())
        await runs(worker, record.definition.id)
        assert len(worker.held) == 2

    async def test_jobs_before_it_that_use_up_a_limit(self, engine: Engine) -> None:
        worker = await Worker(engine, slots=9).start()
        scope = Scope("type", "shop", "invoice")
        await engine.change_limit(scope, _only(Limit(active=2)), By())
        first, second, third = await accept(engine, a_job(), a_job(), a_job())
        (cause,) = await causes(engine, third.definition.id)
        assert cause.code == "others_first"
        assert cause.text == (
            "2 jobs come before it, by priority, then due time, then creation, and type "
            "shop/invoice may start only 2 jobs now."
        )
        assert await codes(engine, second.definition.id) == ["due"]
        assert await worker.claim() == [first.definition.id, second.definition.id]
        assert await codes(engine, third.definition.id) == ["limit_reached"]

    async def test_a_waiting_lock_and_its_holder(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        first, second = await accept(engine, a_job(), a_job())
        await worker.claim()
        holder, waiter = worker.held
        assert (await engine.take_lock("ledger", worker.session, fence_of(holder).token)) is None
        waits = (LockWait(waiter.definition.id, "ledger", clock.now()),)
        clock.advance("3s")
        await worker.renew(WorkerReport(2, lock_waits=waits))
        (cause,) = await causes(engine, second.definition.id)
        assert cause.code == "lock_wait"
        assert f"for 3 s; job {first.definition.id} has held it for 3 s." in cause.text
        assert cause.command == f"trellis jobs why {first.definition.id}"
        await engine.free_lock("ledger", worker.session, fence_of(holder).token)
        (free,) = await causes(engine, second.definition.id)
        assert "the lock is free now" in free.text

    async def test_a_running_job(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        record = await accept_one(engine, a_job())
        await worker.claim()
        assert await codes(engine, record.definition.id) == ["not_begun"]
        (taken,) = worker.held
        body = Begun(clock.now())
        await engine.note([Note(taken.definition.row, 1, fence_of(taken), body)])
        assert await codes(engine, record.definition.id) == ["running"]
        await apply(engine, record.definition.id, Cancel())
        assert await codes(engine, record.definition.id) == ["cancel_asked", "running"]

    async def test_a_worker_that_was_lost(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        record = await accept_one(engine, a_job())
        await worker.claim()
        clock.advance("31s")
        assert await codes(engine, record.definition.id) == ["worker_silent"]
        later = await accept_one(engine, a_job())
        assert await codes(engine, later.definition.id) == ["no_worker"]

    async def test_a_worker_that_is_not_heard_of_before_its_lease_ends(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        worker = await Worker(engine, lease="10m").start()
        first = await accept_one(engine, a_job())
        await worker.claim()
        clock.advance("59s")
        record = await accept_one(engine, a_job())
        (cause,) = await causes(engine, record.definition.id)
        assert cause.text == (
            "It is due: a worker had a free slot when it last reported, 59 s ago."
        )
        clock.advance("1s")
        assert await codes(engine, record.definition.id) == ["no_worker"]
        (cause,) = await causes(engine, first.definition.id)
        assert cause.code == "worker_silent"
        assert cause.text.endswith(
            "another worker will take over, when the lease is over in 9 min."
        )

    async def test_a_worker_with_rare_heartbeats_is_not_silent_between_two_of_them(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        worker = await Worker(engine, lease="30m", heartbeat="10m").start()
        record = await accept_one(engine, a_job())
        clock.advance("19m")
        assert await codes(engine, record.definition.id) == ["due"]
        clock.advance("1m")
        assert await codes(engine, record.definition.id) == ["no_worker"]
        await worker.renew()
        await runs(worker, record.definition.id)

    async def test_a_job_that_runs_alone_in_its_worker(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        suspect = await accept_one(engine, a_job())
        await worker.claim()
        await worker.renew(WorkerReport(1, {NAME: 1}, alone=suspect.definition.id))
        record = await accept_one(engine, a_job())
        (cause,) = await causes(engine, record.definition.id)
        assert (cause.code, cause.command) == (
            "runs_alone",
            f"trellis jobs why {suspect.definition.id}",
        )
        (cause,) = await causes(engine, suspect.definition.id)
        assert cause.code == "not_begun"
        assert "begins when the other jobs there have ended" in cause.text
        assert await worker.claim() == []
        taken = worker.held.pop()
        await settle(engine, taken, complete(taken))
        await worker.renew()
        await runs(worker, record.definition.id)

    async def test_a_type_that_runs_apart_after_a_crash(self, engine: Engine) -> None:
        worker = await Worker(engine, slots=4).start()
        first, second = await accept(engine, a_job(), a_job())
        await engine.claim(worker.session, [Demand("shop", ("invoice",), 1)], 1)
        await worker.renew(WorkerReport(1, {NAME: 1}, {NAME: 1}, apart_types=(NAME,)))
        (cause,) = await causes(engine, second.definition.id)
        assert cause.code == "type_full"
        assert cause.text == (
            "The limit of its type is reached: worker berlin-1 may run 1 of shop/invoice at a "
            "time in handler processes, because one crashed its process."
        )
        assert await worker.claim() == []
        await apply(engine, first.definition.id, Cancel(force=True))
        await worker.renew()
        await runs(worker, second.definition.id)

    async def test_a_key_that_a_lost_job_blocks(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        rule = KeyPolicy("k", queued=None)
        policy = Policy(on_lost="block", key=rule)
        first, second = await accept(
            engine, *(a_keyed_job("k", rule, policy=policy) for _ in range(2))
        )
        await worker.claim()
        clock.advance("31s")
        await engine.reap(worker.session)
        for due in (await engine.due("lost", 10)).jobs:
            await settle(engine, due.record, LoseLease(fence_of(due.record)))
        (cause,) = await causes(engine, first.definition.id)
        assert (cause.code, cause.command) == (
            "key_blocked",
            f"trellis keys release {first.definition.id}",
        )
        assert "key_held" in await codes(engine, second.definition.id)
        assert await (await Worker(engine).start()).claim() == []

    async def test_items_that_failed(self, engine: Engine) -> None:
        worker = await Worker(engine).start()
        record = await accept_one(engine, a_job())
        await worker.claim()
        taken = worker.held.pop()
        await settle(engine, taken, complete(taken, item_errors=2))
        (cause,) = await causes(engine, record.definition.id)
        assert (cause.code, cause.command) == (
            "ended",
            f"trellis jobs retry --failed-items {record.definition.id}",
        )

    async def test_lost_threads_that_take_all_slots(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        worker = await Worker(engine, slots=2).start()
        ended = [JobId(f"01ENDED{number}") for number in range(4)]
        lost = tuple(LostThread(each, NAME, clock.now()) for each in ended)
        await worker.renew(WorkerReport(lost_threads=lost))
        record = await accept_one(engine, a_job())
        (cause,) = await causes(engine, record.definition.id)
        assert cause.code == "slots_busy"
        assert "4 more handlers run in lost threads" in cause.text
        await worker.renew(WorkerReport(lost_threads=lost[:2]))
        await runs(worker, record.definition.id)

    async def test_a_lost_thread_of_an_ended_job(self, engine: Engine, clock: ManualClock) -> None:
        worker = await Worker(engine).start()
        record = await accept_one(engine, a_job())
        await worker.claim()
        await apply(engine, record.definition.id, Cancel(force=True))
        lost = (LostThread(record.definition.id, NAME, clock.now()),)
        await worker.renew(WorkerReport(lost_threads=lost))
        (cause,) = await causes(engine, record.definition.id)
        assert "Its handler still runs in a lost thread of worker berlin-1." in cause.text

    async def test_a_job_of_a_schedule_waits_for_the_one_before(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        declared = a_declaration(overlap="queue")
        await schedules.declare_schedules(engine, "shop", [declared], lambda _: True)
        for _ in range(2):
            clock.advance("1m")
            await schedules.fire_due(engine)
        second, first = [each.job_id for each in await engine.slots("shop", "nightly")]
        assert first is not None
        assert second is not None
        worker = await Worker(engine).start()
        (cause,) = await causes(engine, second)
        assert (cause.code, cause.command) == ("key_held", f"trellis jobs why {first}")
        assert "schedule/nightly" in cause.text
        assert await worker.claim() == [first]
        taken = worker.held.pop()
        await settle(engine, taken, complete(taken))
        await runs(worker, second)
