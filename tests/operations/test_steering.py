"""What an operator can do, to one job and to many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trellis import KeyBusy, Operator, State
from trellis.core.commands import Fail, LoseLease
from trellis.core.durations import micros
from trellis.core.job import Failure, JobId, JobRecord
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.engines.port import Engine
from trellis.engines.values import Demand, WorkerInfo
from trellis.errors import (
    AmbiguousId,
    CommandRejected,
    ConfigurationError,
    KeyNotFound,
    WorkerNotFound,
)
from trellis.testing.builders import a_demand, a_job, a_job_id, a_keyed_job, complete, fence_of
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    claim,
    settle,
    start,
)

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


async def test_one_job_is_cancelled_retried_replayed_dismissed(
    jobs: Operator, engine: Engine
) -> None:
    waiting = await accept_one(engine, a_job())
    assert (await jobs.cancel(waiting.definition.id, "no need")).state is State.CANCELLED
    (failed,) = await ended(engine, State.FAILED)
    assert (await jobs.retry(failed)).state is State.PENDING
    first, second = await ended(engine, State.DEAD, 2)
    assert (await jobs.replay(first)).state is State.PENDING
    assert (await jobs.dismiss(second)).state is State.DISMISSED
    assert (await jobs.journal(second))[-1].data["actor"] == "ann"


async def test_what_the_lifecycle_does_not_allow_is_refused(jobs: Operator, engine: Engine) -> None:
    record = await accept_one(engine, a_job())
    for verb in (jobs.retry, jobs.replay, jobs.dismiss):
        with pytest.raises(CommandRejected, match="not possible for a job that is pending"):
            await verb(record.definition.id)
    with pytest.raises(CommandRejected, match=r"is pending\. Cancel it before deleting it"):
        await jobs.delete(record.definition.id)


async def test_a_refusal_names_the_command_that_fits(jobs: Operator, engine: Engine) -> None:
    (dead,) = await ended(engine, State.DEAD)
    (failed,) = await ended(engine, State.FAILED)
    running = (await start(engine, await a_session(engine), a_job())).definition.id
    stopped = (await accept_one(engine, a_job())).definition.id
    await jobs.cancel(stopped)
    done = await start(engine, await a_session(engine), a_job())
    completed = (await settle(engine, done, complete(done))).definition.id
    for verb, job_id, words in (
        (jobs.retry, dead, f"trellis dlq replay {dead}"),
        (jobs.retry, running, f"trellis jobs wait {running}, or stop it with: trellis jobs cancel"),
        (jobs.retry, stopped, f"trellis jobs clone {stopped}"),
        (jobs.replay, failed, f"trellis jobs retry {failed}"),
        (jobs.cancel, dead, f"trellis dlq dismiss {dead}"),
        (jobs.cancel, completed, "has ended already, so there is nothing to stop"),
        (jobs.dismiss, running, f"trellis jobs cancel {running}"),
    ):
        with pytest.raises(CommandRejected, match=words):
            await verb(job_id)


async def test_asking_a_running_job_to_stop_twice_is_fine(jobs: Operator, engine: Engine) -> None:
    record = await start(engine, await a_session(engine), a_job())
    assert (await jobs.cancel(record.definition.id)).cancel_asked
    assert (await jobs.cancel(record.definition.id)).cancel_asked
    assert (await jobs.find().cancel()).done == 1
    forced = await jobs.cancel(record.definition.id, force=True)
    assert forced.state is State.CANCELLED


async def test_a_clone_is_a_new_job_linked_to_the_old(jobs: Operator, engine: Engine) -> None:
    record = await accept_one(engine, a_job(payload="[1]"))
    clone = await jobs.clone(record.definition.id)
    assert (clone.clone_of, clone.payload, clone.state) == (
        record.definition.id,
        [1],
        State.PENDING,
    )


async def test_a_bulk_verb_reaches_everything_that_fits_and_nothing_else(
    jobs: Operator, engine: Engine
) -> None:
    failed = await ended(engine, State.FAILED, 450)
    dead = await ended(engine, State.DEAD)
    heard: list[int] = []
    tally = await jobs.find(service="shop").retry(progress=heard.append)
    assert (tally.done, tally.refused, tally.missing) == (450, 0, 0)
    assert sorted(tally.ids) == sorted(failed)
    assert heard == [200, 400, 450]
    assert await jobs.count() == {"pending": 450, "dead": 1}
    assert (await jobs.find().replay()).ids == dead


async def test_a_bulk_verb_counts_what_was_refused_and_why(jobs: Operator, engine: Engine) -> None:
    (failed,) = await ended(engine, State.FAILED)
    (dead,) = await ended(engine, State.DEAD)
    tally = await jobs.find(state=["failed", "dead"]).retry()
    assert (tally.done, tally.refused, tally.total) == (1, 1, 2)
    back = f"Bring it back with: trellis dlq replay {dead}"
    assert tally.refusals == [
        (
            dead,
            f"Retry is not possible for a job that is dead. {back}",
        )
    ]
    assert (await jobs.get(failed)).state is State.PENDING


async def test_jobs_are_picked_by_their_ids(jobs: Operator, engine: Engine) -> None:
    waiting = await accept_one(engine, a_job(id=JobId("01JCAAAAAAAAAAAAAAAAAAAAAA")))
    (failed,) = await ended(engine, State.FAILED)
    picked = await jobs.pick(["01jca", failed.lower(), a_job_id(), waiting.definition.id])
    assert await picked.count() == 3
    assert [job.id async for job in picked] == [waiting.definition.id, failed]
    tally = await picked.cancel()
    assert (tally.done, tally.refused, tally.missing) == (1, 1, 1)


async def test_a_key_that_is_taken_refuses_a_retry_but_not_the_others(
    jobs: Operator, engine: Engine
) -> None:
    policy = KeyPolicy("{id}", active=1, queued=0)
    session = await a_session(engine)
    record = await start(engine, session, a_keyed_job("eu", policy))
    await settle(engine, record, Fail(fence_of(record), BOOM, retryable=False))
    holder = await accept_one(engine, a_keyed_job("eu", policy))
    tally = await jobs.find().retry()
    assert tally.refused == 1
    assert holder.definition.id in tally.refusals[0][1]
    with pytest.raises(KeyBusy):
        await jobs.retry(record.definition.id)
    assert (await jobs.find(state="failed").clone()).refused == 1


async def test_bulk_clone_and_delete(jobs: Operator, engine: Engine) -> None:
    await ended(engine, State.FAILED, 3)
    cloned = await jobs.find(state="failed").clone()
    assert (cloned.done, len(set(cloned.ids))) == (3, 3)
    assert await jobs.count() == {"failed": 3, "pending": 3}
    everything = await jobs.pick(
        [*cloned.ids, *[job.id async for job in jobs.find(state="failed")]]
    )
    tally = await everything.delete()
    assert (tally.done, tally.refused) == (3, 3)
    assert "cancel it first" in tally.refusals[0][1]
    assert await jobs.count() == {"pending": 3}


async def _blocked(engine: Engine, key: str, name: str = "invoice") -> JobRecord:
    new = a_keyed_job(key, KeyPolicy("{id}"), type=name)
    new = new._replace(policy=replace(new.policy, on_lost="block"))
    record = await start(engine, await a_session(engine), new)
    return await settle(engine, record, LoseLease(fence_of(record)))


async def test_keys_are_listed_and_a_blocked_one_released(jobs: Operator, engine: Engine) -> None:
    record = await _blocked(engine, "eu")
    holder, _ = await accept(engine, *(a_keyed_job("us", IN_TURN, type="other") for _ in range(2)))
    eu, us = await jobs.keys()
    assert (eu.key, eu.blocked, eu.holders) == ("eu", True, (record.definition.id,))
    assert (us.key, us.waiting) == ("us", 1)
    assert await jobs.keys(service="shop", type="other") == [us]
    with pytest.raises(CommandRejected, match=f"trellis jobs cancel {holder.definition.id}"):
        await jobs.release_key("us")
    with pytest.raises(KeyNotFound, match="See them with: trellis keys"):
        await jobs.release_key("asia")
    assert (await jobs.release_key("eu")).state is State.RETRY


async def test_a_key_blocked_in_two_types_needs_the_job(jobs: Operator, engine: Engine) -> None:
    record = await _blocked(engine, "eu")
    await _blocked(engine, "eu", "other")
    with pytest.raises(AmbiguousId, match=record.definition.id):
        await jobs.release_key("eu")
    assert (await jobs.release_key(record.definition.id, "fail")).state is State.FAILED


async def test_queues_are_paused_resumed_and_drained(jobs: Operator, engine: Engine) -> None:
    await accept_one(engine, a_job())
    paused = await jobs.pause("shop/invoices")
    assert (paused.paused, paused.draining, paused.waiting, paused.active) == (True, False, 1, 0)
    assert await claim(engine, await a_session(engine)) == []
    drained = await jobs.drain_queue("shop/invoices")
    assert (drained.paused, drained.draining) == (True, True)
    assert await jobs.queues() == [drained]
    open_again = await jobs.resume("shop/invoices")
    assert (open_again.paused, open_again.draining) == (False, False)
    assert (await jobs.pause("shop/letters")).waiting == 0
    with pytest.raises(ConfigurationError, match="There is no queue 'invoice' here"):
        await jobs.pause("invoice")


async def test_a_queue_goes_by_its_short_name_while_one_service_has_it(
    jobs: Operator, engine: Engine
) -> None:
    await accept_one(engine, a_job())
    assert (await jobs.pause("invoices")).service == "shop"
    await accept_one(engine, a_job(service="depot"))
    with pytest.raises(AmbiguousId, match="depot/invoices, shop/invoices"):
        await jobs.resume("invoices")


async def test_a_queue_whose_jobs_have_all_ended_is_listed(jobs: Operator, engine: Engine) -> None:
    record = await accept_one(engine, a_job())
    await jobs.cancel(record.definition.id)
    (idle,) = await jobs.queues()
    assert (idle.queue, idle.waiting, idle.active) == ("invoices", 0, 0)


async def test_workers_are_listed_and_asked_to_go(jobs: Operator, engine: Engine) -> None:
    details = '{"types":["shop/invoice"],"slots":3}'
    info = WorkerInfo("berlin", "host-1", 42, "0.1.0", details)
    session = await engine.open_session(info, micros("30s"))
    other = await engine.open_session(info._replace(name="paris"), micros("30s"))
    await engine.close_session(other.id)
    (worker,) = await jobs.workers()
    assert (worker.name, worker.state, worker.slots) == ("berlin", "live", 3)
    assert worker.types == ("shop/invoice",)
    assert len(await jobs.workers(ended=True)) == 2
    assert (await jobs.drain(f"{session.id:016x}"[:6])).state == "draining"
    assert (await jobs.drain("berlin")).state == "draining"
    assert [each.state for each in await jobs.workers()] == ["draining"]
    for nobody in ("paris", "zz", ""):
        with pytest.raises(WorkerNotFound, match="See them with: trellis workers"):
            await jobs.drain(nobody)


async def test_two_workers_of_one_name_are_told_apart_by_their_ids(
    jobs: Operator, engine: Engine
) -> None:
    await a_session(engine)
    await a_session(engine)
    with pytest.raises(WorkerNotFound, match="stands for several workers"):
        await jobs.drain("worker-1")


async def test_locks_are_listed(jobs: Operator, engine: Engine) -> None:
    session = await a_session(engine)
    assert await engine.take_lock("nightly", session) is None
    (lock,) = await jobs.locks()
    assert (lock.name, lock.worker, lock.job_id) == ("nightly", "worker-1", None)
