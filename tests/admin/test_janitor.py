"""Deadlines without workers, and work messages that the server no longer delivers."""

from __future__ import annotations

import asyncio

import pytest

from trellis.admin.janitor import Advisories, Janitor
from trellis.admin.runtime import AdminRuntime
from trellis.core.durations import SECOND
from trellis.core.policy import Policy
from trellis.core.states import State
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.testing import ManualClock
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import a_session, accept, accept_one, head, kinds, start

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
async def advisories(
    runtime: AdminRuntime,
    link: Link,
    subjects: Subjects,
    engine: Engine,
) -> Advisories:
    advisories = Advisories(link, subjects, engine)
    await advisories.begin()
    return advisories


async def test_waiting_jobs_expire_at_their_deadline(engine: Engine, clock: ManualClock) -> None:
    late, soon = await accept(engine, a_job(deadline_in=10 * SECOND), a_job(deadline_in=SECOND))
    janitor = Janitor(engine)
    assert await janitor.sweep() == 0
    clock.advance("1s")
    assert await janitor.sweep() == 1
    assert await janitor.sweep() == 0
    assert (await head(engine, soon)).state is State.EXPIRED
    assert (await head(engine, late)).state is State.PENDING


async def test_running_jobs_expire_too_and_other_timers_are_left_to_workers(
    engine: Engine, clock: ManualClock
) -> None:
    session = await a_session(engine)
    late = await start(engine, session, a_job(deadline_in=SECOND))
    slow = await start(engine, session, a_job(policy=Policy(timeout=SECOND), type="slow"))
    clock.advance("20s")
    assert await Janitor(engine).sweep() == 1
    assert (await head(engine, late)).state is State.EXPIRED
    assert await head(engine, slow) == slow.head


async def test_two_janitors_expire_a_job_once(engine: Engine, clock: ManualClock) -> None:
    record = await accept_one(engine, a_job(deadline_in=SECOND))
    clock.advance("1s")
    await asyncio.gather(Janitor(engine).sweep(), Janitor(engine).sweep())
    assert await kinds(engine, record) == ["created", "expired"]


async def _give_up(link: Link, subjects: Subjects, engine: Engine) -> None:
    """Let the server deliver the work message of the only job once too often."""
    await engine.catch_up()
    stream, name = subjects.work, "shop=invoice"
    config = {
        "durable_name": name, "name": name, "ack_policy": "explicit", "max_deliver": 1,
        "ack_wait": 1_000_000, "filter_subject": subjects.work_of("shop", "invoice"),
    }  # fmt: skip
    await link.api(
        f"CONSUMER.CREATE.{stream}.{name}.{subjects.work_of('shop', 'invoice')}",
        {"stream_name": stream, "config": config, "action": ""},
    )
    assert len(await link.pull(stream, name, 1)) == 1
    await link.pull(stream, name, 1, 0.1)


async def _until_read(advisories: Advisories) -> None:
    async with asyncio.timeout(20):
        while not await advisories.step(0.2):
            pass


@pytest.mark.parametrize("dead_letters", [True, False])
async def test_a_job_that_the_server_gave_up_is_a_dead_letter(
    advisories: Advisories, link: Link, subjects: Subjects, engine: Engine, *, dead_letters: bool
) -> None:
    record = await accept_one(engine, a_job(policy=Policy(dead_letters=dead_letters)))
    await _give_up(link, subjects, engine)
    await _until_read(advisories)
    after = await head(engine, record)
    assert after.state is (State.DEAD if dead_letters else State.FAILED)
    assert after.error is not None
    assert after.error.code == "exhausted"
    info = await link.api(f"STREAM.INFO.{subjects.work}")
    assert info["state"]["messages"] == 0


async def test_an_advisory_about_a_job_that_runs_changes_nothing(
    advisories: Advisories, link: Link, subjects: Subjects, engine: Engine
) -> None:
    taken = await start(engine, await a_session(engine), a_job())
    (work,) = await link.following(subjects.work, f"{subjects.prefix}.work.>", 1)
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{subjects.work}.shop=invoice"
    body = b'{"stream_seq": %d, "deliveries": 5}' % work.sequence
    await link.ask(subject, body, 5)
    await _until_read(advisories)
    assert await head(engine, taken) == taken.head
