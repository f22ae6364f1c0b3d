"""Every verb means the same at both doors: a program's reference and an operator's tools."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trellis import ActiveJob, JobRef, Operator, Retry, Service, State
from trellis.errors import CommandRejected, ConfigurationError, ConflictPersists, JobNotFound

UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture(params=["memory", "sqlite"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    async with Service("shop", url) as service:
        yield service


class Door:
    """The verbs, through a reference or through an operator."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name

    async def apply(
        self,
        verb: str,
        job_id: str,
        **options: Any,  # noqa: ANN401 - those of the verb
    ) -> tuple[State, bool]:
        """Return the job's state, and whether its handler was asked to stop."""
        if self._name == "reference":
            ref: JobRef[str] = self._service.find("work").ref(job_id)
            seen = await getattr(ref, verb)(**options)
        else:
            operator = Operator(await self._service.connection.engine())
            seen = await getattr(operator, verb)(job_id, **options)
        return seen.state, seen.cancel_asked


@pytest.fixture(params=["reference", "operator"])
def door(request: pytest.FixtureRequest, service: Service) -> Door:
    return Door(service, request.param)


async def events_of(ref: JobRef[str]) -> list[str]:
    return [event.kind async for event in ref.events()]


async def test_cancelling_a_cancelled_job_again_changes_nothing(
    service: Service, door: Door
) -> None:
    ref = await service.declare("work", result=str).create()
    for _ in range(2):
        assert await door.apply("cancel", ref.id) == (State.CANCELLED, False)
        assert await door.apply("cancel", ref.id, force=True) == (State.CANCELLED, False)
    assert await events_of(ref) == ["created", "cancelled"]


async def test_asking_a_running_handler_to_stop_again_changes_nothing(
    service: Service, door: Door
) -> None:
    started, over = asyncio.Event(), asyncio.Event()

    @service.job
    async def work(job: ActiveJob[None]) -> str:
        started.set()
        await over.wait()
        return "done"

    ref = await work.create()
    async with service.worker():
        await started.wait()
        for _ in range(2):
            assert await door.apply("cancel", ref.id) == (State.ACTIVE, True)
        assert await events_of(ref) == ["created", "started", "cancelRequested"]
        assert await door.apply("cancel", ref.id, force=True) == (State.CANCELLED, False)
        over.set()


async def test_a_job_that_ended_otherwise_cannot_be_cancelled(service: Service, door: Door) -> None:
    @service.job
    async def work(job: ActiveJob[None]) -> str:
        return "done"

    ref = await work.create()
    async with service.worker():
        await ref.wait("20s")
    for force in (False, True):
        with pytest.raises(CommandRejected, match=r"completed.*It has ended already") as refusal:
            await door.apply("cancel", ref.id, force=force)
        assert refusal.value.job_id == ref.id


async def test_a_live_job_is_adjusted_and_an_ended_one_is_not(service: Service, door: Door) -> None:
    ref = await service.declare("work", result=str).create()
    later = datetime(2100, 1, 1, tzinfo=UTC)
    new = {"queue": "slow", "priority": 3, "run_at": later, "attempts": 9}
    assert await door.apply("adjust", ref.id, **new, reason="load") == (State.PENDING, False)
    seen = await ref.status()
    assert (seen.queue, seen.priority, seen.run_at, seen.max_attempts) == tuple(new.values())
    assert await events_of(ref) == ["created", "adjusted"]
    with pytest.raises(ConfigurationError, match="Nothing to change was given"):
        await door.apply("adjust", ref.id)
    await ref.cancel()
    with pytest.raises(CommandRejected, match=f"cancelled.*trellis jobs clone {ref.id}"):
        await door.apply("adjust", ref.id, priority=1)


async def test_a_verb_that_does_not_fit_is_refused_with_the_command_that_does(
    service: Service, door: Door
) -> None:
    ref = await service.declare("work", result=str).create()
    for verb in ("retry", "replay"):
        with pytest.raises(CommandRejected, match=f"pending.*trellis jobs why {ref.id}"):
            await door.apply(verb, ref.id)
    with pytest.raises(CommandRejected, match=f"pending.*trellis jobs cancel {ref.id}"):
        await door.apply("dismiss", ref.id)


async def test_a_job_that_is_not_there_is_reported_in_the_same_words(
    service: Service, door: Door
) -> None:
    service.declare("work", result=str)
    for verb in ("cancel", "retry", "replay", "dismiss", "clone"):
        with pytest.raises(
            JobNotFound, match=rf"^There is no job {UNKNOWN}\. It was never created"
        ):
            await door.apply(verb, UNKNOWN)


async def test_a_bulk_cancel_counts_cancelled_jobs_as_done(service: Service) -> None:
    refs = await service.declare("work", result=str).create_many([None] * 3)
    operator = Operator(await service.connection.engine())
    await refs[0].cancel()
    tally = await (await operator.pick([ref.id for ref in refs])).cancel()
    assert (tally.done, tally.refused, tally.missing) == (3, 0, 0)
    assert await events_of(refs[0]) == ["created", "cancelled"]


async def test_the_times_of_a_journal_never_go_back_in_a_storm_of_cancels(
    service: Service, door: Door
) -> None:
    dice = random.Random(7)

    @service.job(retry=Retry.fixed("1ms", attempts=3))
    async def work(number: int) -> str:
        if number % 2:
            raise ValueError("again")
        return "done"

    async def cancel(ref: JobRef[str]) -> None:
        for _ in range(dice.randrange(20)):
            await asyncio.sleep(0)
        with suppress(CommandRejected, ConflictPersists):
            await door.apply("cancel", ref.id, force=dice.random() < 0.5)

    refs = await work.create_many(list(range(200)))
    async with service.worker():
        await asyncio.gather(*map(cancel, refs))
    for ref in refs:
        times = [event.at async for event in ref.events()]
        assert times == sorted(times)
