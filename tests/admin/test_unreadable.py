"""Messages that this version cannot read: a user of any service may write some."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from trellis.admin.janitor import Advisories, Janitor
from trellis.admin.runtime import AdminRuntime
from trellis.core.commands import Cancel
from trellis.core.durations import SECOND
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.states import State
from trellis.engines.audit import AuditFilter
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.values import QueueSettings
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, a_keyed_job
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    give_up_lost,
    head,
    reap_lapsed,
    settle,
    start,
)

pytestmark = pytest.mark.usefixtures("runtime")


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await is_so():  # noqa: ASYNC110 - another task changes what is stored
            await asyncio.sleep(0.01)


def _written_by_mail(subjects: Subjects) -> list[str]:
    own, value = subjects.own, subjects.value
    return [
        own("marks", "mail", "send", "i", "x"), own("batch", "x"), own("left", "x"), own("audit"),
        own("keys", "mail", "send", "h", "x"), own("archiving", "mail", "r", "7"),
        own("schedules", "mail", "n", "x"), value("session", f"{77:016x}"), value("session", "x"),
        value("held", f"{77:016x}", "0"), value("held", "x", "0"), value("lock", "x"),
        f"{subjects.prefix}.jobs.mail.send.x.ready.1",
        f"{subjects.prefix}.jobs.mail.send.x.removed",
    ]  # fmt: skip


@pytest.mark.parametrize("body", [b'{"x":1}', b"x", b"{}"])
async def test_what_cannot_be_read_holds_up_no_work_about_anything_else(  # noqa: PLR0917 - fixtures
    engine: Engine,
    runtime: AdminRuntime,
    clock: ManualClock,
    link: Link,
    subjects: Subjects,
    caplog: pytest.LogCaptureFixture,
    body: bytes,
) -> None:
    await engine.set_queue(QueueSettings("shop", "other", paused=True))
    session = await a_session(engine)
    taken = await start(engine, session, a_job())
    short = Policy(retention=Retention(other=SECOND))
    late, ended, _ = await accept(
        engine, a_job(deadline_in=SECOND), a_job(policy=short), a_job(service="mail", type="send")
    )
    await settle(engine, ended, Cancel())
    for subject in _written_by_mail(subjects):
        await link.write(Message(subject, body, {"Trellis-At": "x"}))
    clock.advance("10m")

    async def is_done() -> bool:
        removed = (await engine.load([ended.definition.id])).removed
        return bool(removed) and (await head(engine, late)).state is State.EXPIRED

    janitor = Janitor(engine, runtime.store)
    running = asyncio.create_task(janitor.run())
    await _until(is_done)
    running.cancel()
    for work in (janitor.sweep, janitor.promote, janitor.compact, janitor.rehint, janitor.tidy):
        await work()
    assert await reap_lapsed(engine) == [session]
    assert [each.definition.id for each in await give_up_lost(engine)] == [taken.definition.id]
    actions = [each.change.action for each in await engine.audit(AuditFilter())]
    assert actions == ["job.cancel", "queue.pause"]
    told = [each for each in caplog.messages if "is passed over" in each]
    assert any(subjects.own("audit") in each for each in told)
    # Once by the engine, and once by the runtime.
    assert set(Counter(told).values()) <= {1, 2}


async def test_a_session_that_cannot_be_read_is_not_over(
    engine: Engine, clock: ManualClock, link: Link, subjects: Subjects
) -> None:
    session = await a_session(engine)
    taken = await start(engine, session, a_job())
    # As a newer version may write it.
    await link.write(Message(subjects.value("session", f"{session:016x}"), b'[{"new":1}]'))
    clock.advance("10m")
    assert await reap_lapsed(engine) == []
    assert await give_up_lost(engine) == []
    assert await head(engine, taken) == taken.head


async def test_a_lock_of_a_session_that_cannot_be_read_holds_up_no_other(
    engine: Engine, runtime: AdminRuntime, link: Link, subjects: Subjects
) -> None:
    strange, ended = await a_session(engine), await a_session(engine)
    assert await engine.take_lock("first", strange) is None
    assert await engine.take_lock("second", ended) is None
    await engine.close_session(ended)
    await link.write(Message(subjects.value("session", f"{strange:016x}"), b"{}"))
    assert await Janitor(engine, runtime.store).tidy() == 1
    (lock,) = await link.last_many(subjects.state, [subjects.value("lock", "*")])
    assert b'"first"' in lock.body


async def test_an_advisory_that_cannot_be_handled_holds_up_no_other(
    engine: Engine,
    runtime: AdminRuntime,
    link: Link,
    subjects: Subjects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = await accept_one(engine, a_job())
    await engine.catch_up()
    (work,) = await link.following(subjects.work, f"{subjects.prefix}.work.>", 1)
    advisories = Advisories(runtime.store, engine)
    await advisories.begin()
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{subjects.work}.shop=invoice"
    for body in (b"x", b"{}", b'{"stream_seq": %d}' % work.sequence):
        await link.ask(subject, body, 5)
    read = 0
    async with asyncio.timeout(20):
        while read < 3:
            read += await advisories.step(0.2)
    assert await link.get(subjects.work, work.sequence) is None
    assert (await head(engine, record)).state is State.PENDING
    assert len([each for each in caplog.records if each.exc_info]) == 2


async def test_a_part_that_fails_is_logged_and_the_runtime_gives_up(
    runtime: AdminRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise KeyError("x")

    runtime._start("janitor", fail())
    async with asyncio.timeout(20):
        await runtime.failed()
    assert isinstance(runtime.failure, KeyError)
    (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "The janitor has failed" in line.getMessage()
    assert line.exc_info is not None


async def test_a_key_whose_waiting_job_cannot_be_read_holds_up_no_other_key(
    engine: Engine, clock: ManualClock, link: Link, subjects: Subjects
) -> None:
    rule = KeyPolicy("user/{id}", 1, None, "wait")
    jobs = [a_keyed_job(f"user/{each}", rule, delay=9 * SECOND) for each in range(2)]
    garbled, sound = await accept(engine, *jobs)
    fence = f"{subjects.prefix}.jobs.shop.invoice.{garbled.definition.id}"
    await link.write(Message(f"{fence}.started", b"{}"))
    clock.advance("10s")
    await engine.promote(100)
    held = {each.key: list(each.holders) for each in await engine.keys("shop", "invoice")}
    assert held["user/1"] == [sound.definition.id]
