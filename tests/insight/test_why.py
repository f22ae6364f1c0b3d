"""Why a job does not run: each cause, in words, with the command that helps."""

from __future__ import annotations

import json
from dataclasses import replace

from trellis import control
from trellis.core.commands import Cancel, Fail, LoseLease, Snooze
from trellis.core.commands import Retry as RetryCommand
from trellis.core.durations import SECOND, micros
from trellis.core.job import Failure, JobRecord, NewJob, Prerequisite, SessionId
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import Begun, Note, QueueSettings, WorkerInfo
from trellis.insight.why import Why, explain
from trellis.testing.builders import a_job, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import IN_TURN, accept_one, claim_one, settle, start, the

BOOM = Failure("exception", "ValueError: boom.\nand more")


async def a_worker(engine: MemoryEngine, slots: int = 2, *types: str) -> SessionId:
    names = types or ("shop/invoice",)
    details = json.dumps({"types": names, "slots": slots})
    info = WorkerInfo("berlin-1", "berlin", 4242, "0.1.0", details)
    return (await engine.open_session(info, micros("30s"))).id


async def why(engine: MemoryEngine, record: JobRecord) -> Why:
    return await explain(engine, await the(engine, record.definition.id))


async def codes(engine: MemoryEngine, record: JobRecord) -> list[str]:
    return [cause.code for cause in (await why(engine, record)).causes]


async def test_a_due_job_starts_at_any_moment(engine: MemoryEngine) -> None:
    await a_worker(engine)
    record = await accept_one(engine, a_job())
    assert await codes(engine, record) == ["due"]


async def test_without_a_worker_the_command_that_starts_one_is_named(engine: MemoryEngine) -> None:
    await a_worker(engine, 2, "shop/other")
    record = await accept_one(engine, a_job())
    (cause,) = (await why(engine, record)).causes
    assert cause.text == "No live worker runs shop/invoice."
    assert cause.command == "trellis worker your_module:service"


async def test_a_worker_that_drains_is_no_help(engine: MemoryEngine) -> None:
    await engine.ask_drain(await a_worker(engine))
    record = await accept_one(engine, a_job())
    assert await codes(engine, record) == ["workers_draining"]


async def test_busy_slots_are_counted_with_those_who_wait_before(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    session = await a_worker(engine, 1)
    await start(engine, session, a_job())
    await accept_one(engine, a_job())
    clock.advance("1s")
    record = await accept_one(engine, a_job())
    assert (await why(engine, record)).text == (
        "The one slot of the worker that runs shop/invoice is busy (reported 1 s ago). "
        "1 job comes before it, by priority, then due time, then creation."
    )


async def test_a_paused_queue_comes_before_everything_else(engine: MemoryEngine) -> None:
    await engine.set_queue(QueueSettings("shop", "invoices", paused=True))
    record = await accept_one(engine, a_job(delay=micros("90s")))
    found = await why(engine, record)
    assert [cause.code for cause in found.causes] == ["queue_paused", "later", "no_worker"]
    assert found.causes[0].command == "trellis queues resume shop/invoices"
    assert "It starts in 1 min 30 s at the earliest." in found.text


async def test_a_backoff_names_what_failed(engine: MemoryEngine) -> None:
    session = await a_worker(engine)
    record = await start(engine, session, a_job(policy=Policy(retry=Retry.fixed("1m"))))
    await settle(engine, record, Fail(fence_of(record), BOOM))
    found = await why(engine, record)
    assert found.text == "Attempt 1 of 5 failed (ValueError: boom); the next starts in 1 min."
    assert found.causes[0].code == "backoff"


async def test_a_snoozed_job_waits_without_having_failed(engine: MemoryEngine) -> None:
    record = await start(engine, await a_worker(engine), a_job())
    await settle(engine, record, Snooze(fence_of(record), 60 * SECOND))
    assert await codes(engine, record) == ["later"]


async def test_a_held_key_names_its_holder(engine: MemoryEngine, clock: ManualClock) -> None:
    session = await a_worker(engine)
    holder = await start(engine, session, a_keyed_job("eu", IN_TURN))
    record = await accept_one(engine, a_keyed_job("eu", IN_TURN))
    clock.advance("3m")
    await engine.renew(session, [fence_of(holder)])
    (cause,) = (await why(engine, record)).causes
    assert cause.text == (
        f"Key 'eu' is held by job {holder.definition.id}, which has run for 3 min; "
        "1 job waits for it."
    )
    assert cause.command == f"trellis jobs why {holder.definition.id}"


async def test_a_waiting_job_that_has_its_key_does_not_blame_it(engine: MemoryEngine) -> None:
    await a_worker(engine)
    record = await accept_one(engine, a_keyed_job("eu", IN_TURN))
    await accept_one(engine, a_keyed_job("eu", IN_TURN))
    assert await codes(engine, record) == ["due"]


def _blocking() -> NewJob:
    new = a_keyed_job("eu", KeyPolicy("{id}"))
    return new._replace(policy=replace(new.policy, on_lost="block"))


async def test_a_blocked_key_asks_for_a_decision(engine: MemoryEngine, clock: ManualClock) -> None:
    record = await start(engine, await a_worker(engine), _blocking())
    await settle(engine, record, LoseLease(fence_of(record)))
    (cause,) = (await why(engine, record)).causes
    assert (cause.code, cause.command) == (
        "key_blocked",
        f"trellis keys release {record.definition.id}",
    )


async def test_a_running_job_says_where_and_for_how_long(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    session = await a_worker(engine)
    record = await start(engine, session, a_job())
    assert await codes(engine, record) == ["not_begun"]
    body = Begun(clock.now())
    await engine.note([Note(record.definition.row, record.head.claims, fence_of(record), body)])
    clock.advance("20s")
    assert (await why(engine, record)).text == (
        "It runs: attempt 1 of 5, for 20 s in worker berlin-1 (pid 4242)."
    )
    clock.advance("40s")
    (cause,) = (await why(engine, record)).causes
    assert cause.code == "worker_silent"
    assert "last renewed its lease 1 min" in cause.text


async def test_a_cancel_that_is_not_heeded_names_force(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    record = await start(engine, await a_worker(engine), a_job())
    await settle(engine, record, Cancel())
    clock.advance("5s")
    first = (await why(engine, record)).causes[0]
    assert first.text.startswith("It was asked to stop 5 s ago")
    assert first.command == f"trellis jobs cancel --force {record.definition.id}"


async def test_a_passed_deadline_is_reported(engine: MemoryEngine, clock: ManualClock) -> None:
    await a_worker(engine)
    record = await accept_one(engine, a_job(deadline_in=SECOND))
    clock.advance("3s")
    assert (await codes(engine, record))[0] == "deadline_passed"


async def test_an_ended_job_says_how_and_what_to_do(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    session = await a_worker(engine)
    for policy, retryable, state, command in (
        (Policy(retry=Retry.never()), True, State.DEAD, "trellis dlq replay"),
        (Policy(), False, State.FAILED, "trellis jobs retry"),
    ):
        record = await start(engine, session, a_job(policy=policy))
        await settle(engine, record, Fail(fence_of(record), BOOM, retryable=retryable))
        clock.advance("3m")
        (cause,) = (await why(engine, record)).causes
        assert cause.text == f"It has ended: {state} 3 min ago: ValueError: boom."
        assert cause.command == f"{command} {record.definition.id}"


async def test_a_cancelled_job_says_by_whom_and_why(engine: MemoryEngine) -> None:
    waiting = await accept_one(engine, a_job())
    await control.cancel(engine, waiting.definition.id, "wrong month.", actor="ann")
    assert (await why(engine, waiting)).text.endswith("under 1 s ago by ann: wrong month.")
    running = await start(engine, await a_worker(engine), a_job())
    asked = await settle(engine, running, Cancel("wrong year", actor="bob"))
    await settle(engine, asked, Fail(fence_of(running), BOOM))
    assert (await why(engine, running)).text.endswith("under 1 s ago by bob: wrong year.")


async def test_a_job_that_cancels_itself_in_a_later_run_blames_nothing(
    engine: MemoryEngine,
) -> None:
    session = await a_worker(engine)
    record = await start(engine, session, a_job())
    failed = await settle(engine, record, Fail(fence_of(record), BOOM, retryable=False))
    await settle(engine, failed, RetryCommand(actor="ann", reason="again"))
    taken = await claim_one(engine, session)
    await settle(engine, taken, Fail(fence_of(taken), BOOM, cancelled=True))
    assert (await why(engine, record)).text.startswith("It has ended: cancelled under 1 s ago")
    assert "ann" not in (await why(engine, record)).text


async def test_a_job_that_was_to_follow_a_success_names_the_job_that_failed(
    engine: MemoryEngine,
) -> None:
    first = (await accept_one(engine, a_job())).definition.id
    second = await accept_one(engine, a_job(after=(Prerequisite(first, "success"),)))
    await control.cancel(engine, first)
    assert (await why(engine, second)).text == (
        "It has ended: cancelled under 1 s ago by workflow: It was to follow the success of job "
        f"{first}, which is now cancelled."
    )


async def test_a_completed_job_needs_nothing(engine: MemoryEngine) -> None:
    session = await a_worker(engine)
    await accept_one(engine, a_job())
    record = await claim_one(engine, session)
    await settle(engine, record, complete(record))
    (cause,) = (await why(engine, record)).causes
    assert (cause.code, cause.command) == ("ended", None)
