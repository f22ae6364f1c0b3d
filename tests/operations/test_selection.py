"""Selections: read, counted, paged, and changed by one verb for all."""

from __future__ import annotations

import pytest

from tests.operations.steps import BOOM, ended
from trellis import CommandRejected, KeyBusy, Operator, State
from trellis.core.commands import Fail
from trellis.core.job import JobId
from trellis.core.policy import KeyPolicy
from trellis.engines.port import Engine
from trellis.engines.values import Item, Note
from trellis.insight.views import ItemView
from trellis.testing.builders import a_job, a_job_id, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import a_session, accept, accept_one, settle, start


async def test_a_filter_is_iterated_over_counted_and_paged(jobs: Operator, engine: Engine) -> None:
    made = await accept(engine, *(a_job(type=name) for name in ("a", "b") * 150))
    wanted = [each.definition.id for each in reversed(made) if each.definition.type == "a"]
    found = jobs.find(type="a", state="pending")
    assert [job.id async for job in found] == wanted
    assert await found.count() == 150
    first = await found.page(limit=100)
    second = await found.page(after=first.next_after, limit=100)
    assert [job.id for job in (*first.jobs, *second.jobs)] == wanted
    assert second.next_after is None
    assert await jobs.count() == {"pending": 300}
    assert await jobs.count("type", type="b") == {"shop/b": 150}


async def test_a_span_means_the_same_moment_on_every_page(
    jobs: Operator, engine: Engine, clock: ManualClock
) -> None:
    await accept_one(engine, a_job())
    found = jobs.find(since="1m")
    assert await found.count() == 1
    clock.advance("2m")
    assert await found.count() == 1
    assert await jobs.find(since="1m").count() == 0


async def test_a_bulk_verb_reaches_everything_that_fits_and_nothing_else(
    jobs: Operator, engine: Engine
) -> None:
    failed = await ended(engine, State.FAILED, 450)
    dead = await ended(engine, State.DEAD)
    reported: list[int] = []
    tally = await jobs.find(service="shop").retry(progress=reported.append)
    assert (tally.done, tally.refused, tally.missing) == (450, 0, 0)
    assert sorted(tally.ids) == sorted(failed)
    assert reported == [200, 400, 450]
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


async def test_failed_items_of_many_jobs_are_run_again_and_the_rest_is_left_out(
    jobs: Operator, engine: Engine
) -> None:
    session = await a_session(engine)
    without_items = await ended(engine, State.FAILED)
    partly = await start(engine, session, a_job())
    item = Note(partly.definition.row, 1, fence_of(partly), Item("a", "failed", "404"))
    await engine.note([item])
    await settle(engine, partly, complete(partly, item_errors=1))
    done = await start(engine, session, a_job())
    await settle(engine, done, complete(done))
    assert await jobs.find(service="shop").meant_for("retry items").count() == 1
    tally = await jobs.find(service="shop").retry(failed_items=True)
    assert (tally.ids, tally.refused) == ([partly.definition.id], 0)
    tally = await (await jobs.pick(without_items)).retry(failed_items=True)
    assert [(job_id, "reported no items" in why) for job_id, why in tally.refusals] == [
        (without_items[0], True)
    ]
    assert (await jobs.get(partly.definition.id)).state is State.PENDING
    assert await jobs.items(partly.definition.id) == [ItemView("a", "failed", "404", "", 1)]
    tally = await (await jobs.pick([a_job_id()])).retry(failed_items=True)
    assert (tally.done, tally.missing) == (0, 1)
    with pytest.raises(CommandRejected, match="has reported no items"):
        await jobs.retry(without_items[0], failed_items=True)
