"""Three servers of which some are down: every job is stored, and none twice."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import cast

import pytest

from tests.harness.servers.nats import NatsCluster, NatsServer
from trellis.cli.app import run
from trellis.core.job import JobId, JobRecord, NewJob
from trellis.core.states import State
from trellis.engines import make_engine
from trellis.engines.jetstream import JetStreamEngine, health, topology
from trellis.engines.jetstream.link import Link, Message, WriteResult
from trellis.engines.jetstream.message import name_of
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, Conflict, CreateResult
from trellis.errors import EngineError, EngineUnavailable, OutcomeUnknown
from trellis.testing.builders import a_demand, a_job, complete
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    decided,
    give_up_lost,
    head,
    journal,
    kinds,
    settle,
    start,
    the,
)

pytestmark = pytest.mark.long


async def _created(engine: Engine, new: NewJob) -> CreateResult:
    """Create a job as a client does: again with the same id while the outcome is not known."""
    async with asyncio.timeout(60):
        while True:
            try:
                (answer,) = await engine.create([new])
            except (EngineUnavailable, OutcomeUnknown):
                continue
            return answer


async def test_a_write_without_quorum_is_stored_once_when_the_servers_are_back(
    nats_three: NatsCluster,
) -> None:
    nats_three.start()
    made = JetStreamEngine(nats_three.url)
    await made.migrate()
    await made.open()
    engine = cast("Engine", made)
    session = await a_session(engine, "10m")
    before = await accept_one(engine, a_job())
    running = await start(engine, session, a_job(type="refund"))
    for node in nats_three.nodes[1:]:
        await asyncio.to_thread(node.kill)
    new = [a_job(type="other") for _ in range(3)]
    creations = [asyncio.create_task(_created(engine, each)) for each in new]
    found = await health.describe(made._link, made._subjects)
    assert any("JOBS" in each for each in found.warnings), found.warnings
    assert not any(each.done() for each in creations)
    await asyncio.to_thread(nats_three.start)
    assert [type(each) for each in await asyncio.gather(*creations)] == [Accepted] * 3
    for each in new:
        record = (await engine.load([each.id])).records[0]
        assert record is not None
        assert len(await journal(engine, record)) == 1
    assert (await head(engine, before)).state is State.PENDING
    done = await settle(engine, running, complete(running))
    assert done.head.state is State.COMPLETED
    await engine.close()


async def test_a_killed_leader_costs_no_job(nats_three: NatsCluster) -> None:
    nats_three.start()
    made = JetStreamEngine(nats_three.url)
    await made.migrate()
    await made.open()
    engine = cast("Engine", made)
    leader = (await made._link.api("STREAM.INFO.JOBS"))["cluster"]["leader"]
    new = [a_job(type="other") for _ in range(20)]
    creations = [asyncio.create_task(_created(engine, each)) for each in new]
    await asyncio.to_thread(nats_three.node(leader).kill)
    assert all(isinstance(each, Accepted) for each in await asyncio.gather(*creations))
    for each in new:
        record = (await engine.load([each.id])).records[0]
        assert record is not None
        assert len(await journal(engine, record)) == 1
    await asyncio.to_thread(nats_three.start)
    await engine.close()


async def test_streams_of_one_server_grow_to_three_with_their_jobs(
    nats_three: NatsCluster, subjects: Subjects, capfd: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(nats_three.start)
    url = f"{nats_three.url}?prefix={subjects.prefix}&replicas="
    assert await asyncio.to_thread(run, ("migrate", "--url", f"{url}1")) == 0
    made = cast("JetStreamEngine", make_engine(f"{url}1"))
    await made.open()
    engine = cast("Engine", made)
    assert (await engine.health()).facts["replicas"] == 1
    session = await a_session(engine, "10m")
    running = await start(engine, session, a_job())
    done = await start(engine, session, a_job())
    done = await settle(engine, done, complete(done))
    waiting = await accept(engine, *(a_job() for _ in range(20)))
    records = [running, done, *waiting]
    journals = [await journal(engine, each) for each in records]
    first = (await made._link.api(f"STREAM.INFO.{subjects.jobs}"))["cluster"]["leader"]

    assert await asyncio.to_thread(run, ("migrate", "--url", f"{url}3")) == 0
    assert "was put in order" in capfd.readouterr().out
    assert await topology.differences(made._link, subjects, 3) == []
    await _until_whole(made._link, subjects)
    # The server that had everything is gone, with all that it has stored.
    await asyncio.to_thread(nats_three.node(first).kill)
    shutil.rmtree(nats_three.node(first).folder / "data")
    async with asyncio.timeout(60):
        while (found := await _loaded(engine, records)) is None:
            pass
    assert list(found) == records
    assert [await journal(engine, each) for each in records] == journals
    taken: dict[JobId, JobRecord] = {}
    async with asyncio.timeout(60):
        while len(taken) < len(waiting):
            with suppress(EngineUnavailable, OutcomeUnknown):
                taken |= {each.definition.id: each for each in await claim(engine, session)}
    assert taken.keys() == {each.definition.id for each in waiting}
    for each in (running, *taken.values()):
        after = await settle(engine, each, complete(each))
        assert [event.kind.value for event in await journal(engine, after)] == [
            "created", "started", "completed",
        ]  # fmt: skip
    await asyncio.to_thread(nats_three.start)
    await _until_whole(made._link, subjects)
    await engine.close()


async def _loaded(
    engine: Engine, records: Sequence[JobRecord]
) -> Sequence[JobRecord | None] | None:
    """Return jobs as they are now; None: no server answers while a leader is chosen."""
    try:
        return (await engine.load([each.definition.id for each in records])).records
    except EngineUnavailable:
        return None


async def _until_whole(link: Link, subjects: Subjects) -> None:
    """Wait until each stream is on three servers that have all of it."""
    streams = [each.stream for each in topology.parts(subjects, 3) if each.consumer is None]
    streams.remove(subjects.stream("JOBS_ADVISORIES"))  # has one replica: losing it costs nothing
    async with asyncio.timeout(60):
        while not all([await _is_whole(link, stream) for stream in streams]):
            pass


async def _is_whole(link: Link, stream: str) -> bool:
    cluster = (await link.api(f"STREAM.INFO.{stream}", wait=60))["cluster"]
    replicas = cluster.get("replicas") or []
    are_current = len(replicas) == 2 and all(each.get("current") for each in replicas)
    return are_current and "desired" not in cluster


# -- writes without an answer --------------------------------------------------------------------


class SiegedLink(Link):
    """A connection that kills two of three servers when two messages are to be sent, then sends."""

    def __init__(self, cluster: NatsCluster, node: NatsServer) -> None:
        super().__init__([node.url])
        self._others = [each for each in cluster.nodes if each is not node]
        self._gate = asyncio.Barrier(2)
        self.is_on = False

    async def write_each(self, messages: Sequence[Message]) -> list[WriteResult | EngineError]:
        """Store messages once the others are killed."""
        if self.is_on:
            node = self._others[await self._gate.wait()]
            await asyncio.to_thread(node.kill)
            await self._gate.wait()
        return await super().write_each(messages)


async def test_a_start_and_an_end_without_an_answer_are_stored_later_and_count_once(
    nats_three: NatsCluster, subjects: Subjects
) -> None:
    await asyncio.to_thread(nats_three.start)
    first = JetStreamEngine(nats_three.url, prefix=subjects.prefix)
    await first.migrate()
    await first.open()
    info = await first._link.api(f"STREAM.INFO.{subjects.jobs}")
    leader = nats_three.node(info["cluster"]["leader"])
    await first.close()
    made, link = JetStreamEngine(leader.url, prefix=subjects.prefix), SiegedLink(nats_three, leader)
    made._link = made._store.link = link
    link.check_silence = partial(topology.refuse_moved, link, subjects, 5.0)
    await made.open()
    engine = cast("Engine", made)
    session = await a_session(engine, "10m")
    running = await start(engine, session, a_job())
    waiting = await accept_one(engine, a_job(type="refund"))
    await engine.catch_up()
    settlement = await decided(engine, running, complete(running))
    link.is_on = True
    claiming = engine.claim(session, [a_demand("refund")], 1)
    answers = await asyncio.gather(engine.commit([settlement]), claiming, return_exceptions=True)
    assert [type(each) for each in answers] == [OutcomeUnknown, OutcomeUnknown]
    link.is_on = False
    # The leader has both, one other server is enough, and nobody asks for them again.
    other = next(node for node in nats_three.nodes if node is not leader)
    await asyncio.to_thread(other.start)
    stored = [subjects.fence(name_of(each.definition)) for each in (running, waiting)]
    async with asyncio.timeout(90):
        while [await _kinds(link, subjects, each) for each in stored] != [
            ["created", "started", "completed"],
            ["created", "started"],
        ]:
            pass
    await asyncio.to_thread(nats_three.start)
    await _until_whole(link, subjects)
    (again,) = await engine.commit([settlement])
    assert again == Conflict(await the(engine, running.definition.id))
    assert await claim(engine, session, a_demand("refund")) == []
    await engine.close_session(session)
    (given_up,) = await give_up_lost(engine)
    assert given_up.definition.id == waiting.definition.id
    assert await kinds(engine, given_up) == ["created", "started", "retry"]
    assert await kinds(engine, running) == ["created", "started", "completed"]
    await engine.close()


async def _kinds(link: Link, subjects: Subjects, job: str) -> list[str]:
    """Return the events of a job that are stored; none if no server answers."""
    try:
        found = await link.following(subjects.jobs, job, 1)
    except EngineUnavailable:
        return []
    return [got.subject.rpartition(".")[2] for got in found]
