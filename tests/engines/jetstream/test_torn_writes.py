"""Writes of which a server without space has kept the first messages: no job waits for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Final, Unpack, cast

import pytest

from tests.engines.jetstream.manual import ServedEngine
from trellis.admin.janitor import Janitor
from trellis.admin.runtime import AdminRuntime
from trellis.core.batches import NewBatch
from trellis.core.commands import Cancel, Command, Fail, Retry
from trellis.core.job import (
    Dedupe,
    Failure,
    JobId,
    JobRecord,
    NewJob,
    Prerequisite,
    Relations,
    SessionId,
)
from trellis.core.policy import Hook, KeyPolicy, Policy
from trellis.core.states import ENDED, State
from trellis.engines.demand import Demand
from trellis.engines.jetstream.answers import Message, WriteResult, Written, torn
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Accepted, Coalesced
from trellis.errors import OutcomeUnknown
from trellis.testing import ManualClock
from trellis.testing.builders import JobParts, a_job, a_job_id, complete, fence_of
from trellis.testing.conformance.helpers import (
    a_session,
    accept_one,
    decided,
    give_up_lost,
    kinds,
    reap_lapsed,
    settle,
    the,
)

pytestmark = pytest.mark.long
ONE: Final = Policy(key=KeyPolicy("user/{id}", 1, None, "wait"))
FULL: Final = Policy(key=KeyPolicy("user/{id}", 1, 0, "reject"))
#: The writes of these tests have at most one message more.
PARTS: Final = range(1, 7)


class FullLink(Link):
    """A connection to a server whose storage is used up within a batch."""

    #: How many messages of the next batch it keeps; None: all.
    keeps: int | None = None

    async def write(self, *messages: Message) -> WriteResult:
        """Store messages, all or the first ones."""
        keeps = self.keeps
        if keeps is None or len(messages) < 2:
            return await super().write(*messages)
        self.keeps = None
        if keeps >= len(messages):
            return await super().write(*messages)
        for each in messages[:keeps]:
            assert isinstance(await super().write(each), Written)
        raise torn(messages[0].subject)


class Deployment:
    """An engine on such a server, with a janitor."""

    def __init__(
        self, engine: Engine, link: FullLink, janitor: Janitor, clock: ManualClock
    ) -> None:
        self.engine, self.clock = engine, clock
        self._link, self._janitor = link, janitor

    async def torn(self, keeps: int, write: Awaitable[object]) -> bool:
        """Make a write of which only so many messages are kept; return whether it has more."""
        self._link.keeps = keeps
        try:
            await write
        except OutcomeUnknown:
            return True
        finally:
            self._link.keeps = None
        return False

    async def look(self) -> None:
        """Let the janitor do its work after two minutes, twice."""
        for _ in range(2):
            self.clock.advance("2m")
            await self._janitor.promote()
            await self._janitor.rehint()
            await self.engine.finish_batches(100)

    async def claim(self, session: SessionId) -> list[JobRecord]:
        """Claim what can start."""
        demand = Demand("shop", ("invoice", "refund", "report"), 100)
        return list((await self.engine.claim(session, [demand], 100)).jobs)

    async def run_all(self, session: SessionId) -> list[JobId]:
        """Run all jobs that come to run; no two of the key of these tests at the same time."""
        ran: list[JobId] = []
        for _ in range(3):
            while taken := await self.claim(session):
                assert sum(each.definition.key is not None for each in taken) <= 1
                for each in taken:
                    await settle(self.engine, each, complete(each))
                    ran.append(each.definition.id)
            await self.look()
        return ran


@pytest.fixture
async def deployment(
    nats_url: str, deployed: Subjects, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[Deployment]:
    tables = SqliteEngine(tmp_path / "projection.db", clock=clock)
    await tables.open()
    made, link = (
        ServedEngine(nats_url, prefix=deployed.prefix, clock=clock),
        FullLink(nats_url.split(",")),
    )
    made._link = made._store.link = made._projection._link = link
    engine = cast("Engine", made)
    await engine.open()
    async with AdminRuntime(Link(nats_url.split(",")), deployed, tables) as runtime:
        yield Deployment(engine, link, Janitor(engine, runtime.store), clock)
    await engine.close()
    await tables.close()


def keyed(**parts: Unpack[JobParts]) -> NewJob:
    """Return a job of the one key of these tests."""
    given: JobParts = {"key": "user/1", "policy": ONE, **parts}
    return a_job(**given)


async def create_until_stored(engine: Engine, new: NewJob) -> None:
    assert isinstance((await engine.create([new]))[0], Accepted)


@pytest.mark.parametrize("is_repeated", [False, True])
@pytest.mark.parametrize("keeps", PARTS)
async def test_a_keyed_job_runs_whatever_was_kept_of_its_creation(
    deployment: Deployment, keeps: int, *, is_repeated: bool
) -> None:
    engine, new = deployment.engine, keyed()
    session = await a_session(engine, "10h")
    is_torn = await deployment.torn(keeps, engine.create([new]))
    assert is_torn == (keeps == 1)
    if is_repeated:
        await create_until_stored(engine, new)
    other = await accept_one(engine, keyed())
    assert sorted(await deployment.run_all(session)) == sorted([new.id, other.definition.id])
    assert await engine.keys("shop", "invoice") == []


@pytest.mark.parametrize("keeps", PARTS)
async def test_a_job_that_waits_behind_others_runs_whatever_was_kept_of_its_creation(
    deployment: Deployment, keeps: int
) -> None:
    engine, new = deployment.engine, keyed()
    session = await a_session(engine, "10h")
    first = await accept_one(engine, keyed())
    (taken,) = await deployment.claim(session)
    await deployment.torn(keeps, engine.create([new]))
    last = await accept_one(engine, keyed())
    assert await deployment.claim(session) == []
    await deployment.look()
    assert await deployment.claim(session) == []
    await settle(engine, taken, complete(taken))
    ran = await deployment.run_all(session)
    assert sorted(ran) == sorted([new.id, last.definition.id])
    assert first.definition.id not in ran


@pytest.mark.parametrize(
    "mark", [{"idempotency_key": "once"}, {"dedupe": Dedupe("same")}], ids=["idempotency", "dedupe"]
)
@pytest.mark.parametrize("keeps", PARTS)
async def test_a_mark_holds_whatever_was_kept_of_a_creation(
    deployment: Deployment, keeps: int, mark: JobParts
) -> None:
    engine, new = deployment.engine, keyed(**mark)
    session = await a_session(engine, "10h")
    await deployment.torn(keeps, engine.create([new]))
    again = keyed(**mark)._replace(payload=new.payload)
    await engine.create([again])
    assert len(await deployment.run_all(session)) == 1


@pytest.mark.parametrize("end", ["complete", "cancel", "fail", "lose"])
@pytest.mark.parametrize("keeps", PARTS)
async def test_a_key_is_free_whatever_was_kept_of_the_end_of_its_job(
    deployment: Deployment, keeps: int, end: str
) -> None:
    engine = deployment.engine
    session = await a_session(engine, "30s" if end == "lose" else "10h")
    record = await accept_one(engine, keyed())
    waiting = await accept_one(engine, keyed())
    if end != "cancel":  # it is cancelled while it waits, with the slot
        (record,) = await deployment.claim(session)
    if end == "lose":
        deployment.clock.advance("31s")
        await reap_lapsed(engine)
        await deployment.torn(keeps, give_up_lost(engine))
        await give_up_lost(engine)
        session = await a_session(engine, "10h")
    else:
        command: Command = Cancel() if end == "cancel" else complete(record)
        if end == "fail":
            command = Fail(fence_of(record), Failure("x", "boom"), retryable=False)
        decision = await decided(engine, record, command)
        await deployment.torn(keeps, engine.commit([decision]))
        await engine.commit([decision])
    ran = await deployment.run_all(session)
    assert waiting.definition.id in ran
    assert set(ran) <= {waiting.definition.id, record.definition.id}
    assert (await the(engine, record.definition.id)).head.state in ENDED
    assert await engine.keys("shop", "invoice") == []


@pytest.mark.parametrize("keeps", PARTS)
async def test_a_key_takes_new_jobs_whatever_was_kept_of_the_end_of_its_job(
    deployment: Deployment, keeps: int
) -> None:
    engine = deployment.engine
    session = await a_session(engine, "10h")
    await accept_one(engine, keyed(policy=FULL))
    (taken,) = await deployment.claim(session)
    decision = await decided(engine, taken, complete(taken))
    await deployment.torn(keeps, engine.commit([decision]))
    await engine.commit([decision])
    await create_until_stored(engine, keyed(policy=FULL))
    assert len(await deployment.run_all(session)) == 1


@pytest.mark.parametrize("keeps", PARTS)
async def test_a_keyed_job_starts_once_whatever_was_kept_of_its_claim(
    deployment: Deployment, keeps: int
) -> None:
    engine = deployment.engine
    session = await a_session(engine, "30s")
    record = await accept_one(engine, keyed())
    await deployment.torn(keeps, deployment.claim(session))
    deployment.clock.advance("31s")
    await reap_lapsed(engine)
    await give_up_lost(engine)
    await deployment.run_all(await a_session(engine, "10h"))
    after = await the(engine, record.definition.id)
    assert after.head.state is State.COMPLETED
    assert (await kinds(engine, after)).count("completed") == 1
    assert await engine.keys("shop", "invoice") == []


@pytest.mark.parametrize("keeps", PARTS)
async def test_a_revived_job_runs_whatever_was_kept_of_its_revival(
    deployment: Deployment, keeps: int
) -> None:
    engine = deployment.engine
    session = await a_session(engine, "10h")
    record = await accept_one(engine, keyed())
    (taken,) = await deployment.claim(session)
    failed = await settle(
        engine, taken, Fail(fence_of(taken), Failure("x", "boom"), retryable=False)
    )
    decision = await decided(engine, failed, Retry())
    await deployment.torn(keeps, engine.commit([decision]))
    await engine.commit([decision])
    assert await deployment.run_all(session) == [record.definition.id]


@pytest.mark.parametrize("keeps", PARTS)
async def test_a_job_never_starts_before_the_one_it_follows_whatever_was_kept_of_both(
    deployment: Deployment, keeps: int
) -> None:
    engine = deployment.engine
    session = await a_session(engine, "10h")
    first = a_job()
    then = a_job(type="refund", after=(Prerequisite(first.id),))
    whole = [each._replace(together=True) for each in (first, then)]
    await deployment.torn(keeps, engine.create(whole))
    for taken in await deployment.claim(session):
        assert taken.definition.id == first.id
        await settle(engine, taken, complete(taken))
    await engine.create(whole)
    await deployment.run_all(session)
    for each in (first, then):
        assert (await the(engine, each.id)).head.state is State.COMPLETED


@pytest.mark.parametrize("keeps", PARTS)
async def test_a_job_runs_whatever_was_kept_of_the_end_of_the_one_it_follows(
    deployment: Deployment, keeps: int
) -> None:
    engine = deployment.engine
    session = await a_session(engine, "10h")
    first = await accept_one(engine, a_job())
    then = keyed(type="refund", after=(Prerequisite(first.definition.id),))
    await engine.create([then])
    (taken,) = await deployment.claim(session)
    decision = await decided(engine, taken, complete(taken))
    await deployment.torn(keeps, engine.commit([decision]))
    await engine.commit([decision])
    assert await deployment.run_all(session) == [then.id]


@pytest.mark.parametrize("keeps", PARTS)
async def test_a_hook_runs_whatever_was_kept_of_the_end_of_its_job(
    deployment: Deployment, keeps: int
) -> None:
    engine, hook = deployment.engine, Hook("finished", "refund", "refunds")
    session = await a_session(engine, "10h")
    await accept_one(engine, keyed(policy=Policy(key=ONE.key, hooks=(hook,))))
    (taken,) = await deployment.claim(session)
    decision = await decided(engine, taken, complete(taken))
    await deployment.torn(keeps, engine.commit([decision]))
    await engine.commit([decision])
    assert len(await deployment.run_all(session)) == 1
    assert (await the(engine, taken.definition.id)).head.state is State.COMPLETED


def a_batch() -> NewBatch:
    return NewBatch(a_job_id(), "shop", then=a_job(type="report"))


def member_of(batch: NewBatch) -> NewJob:
    return a_job(relations=Relations(batch=batch.id))


async def ends_once(deployment: Deployment, batch: NewBatch, types: list[str]) -> None:
    """Run all jobs; see that the fan-in job runs once, after jobs of these types."""
    engine, ran = deployment.engine, list[str]()
    session = await a_session(engine, "10h")
    for _ in range(4):
        while taken := await deployment.claim(session):
            for each in taken:
                ran.append(each.definition.type)
                await settle(engine, each, complete(each))
        await deployment.look()
    assert (sorted(ran[:-1]), ran[-1]) == (types, "report")
    found = await engine.batch(batch.id)
    assert found is not None
    assert found.finished_at is not None


@pytest.mark.parametrize("is_repeated", [False, True])
@pytest.mark.parametrize("keeps", PARTS)
async def test_a_batch_waits_for_all_members_whatever_was_kept_of_a_creation(
    deployment: Deployment, keeps: int, *, is_repeated: bool
) -> None:
    engine, batch = deployment.engine, a_batch()
    await engine.open_batch(batch)
    await create_until_stored(engine, member_of(batch))
    new = member_of(batch)
    is_torn = await deployment.torn(keeps, engine.create([new]))
    if is_repeated:
        await create_until_stored(engine, new)
    await engine.seal_batch(batch.id)
    await ends_once(deployment, batch, ["invoice"] * (1 if is_torn and not is_repeated else 2))


@pytest.mark.parametrize("is_repeated", [False, True])
@pytest.mark.parametrize("keeps", PARTS)
async def test_a_batch_waits_for_no_job_that_does_not_stand_for_a_member(
    deployment: Deployment, keeps: int, *, is_repeated: bool
) -> None:
    engine, batch = deployment.engine, a_batch()
    await engine.open_batch(batch)
    await create_until_stored(engine, member_of(batch))
    same = Dedupe("same")
    existing = await accept_one(engine, a_job(type="refund", dedupe=same))
    relations = Relations(batch=batch.id)
    new = a_job(type="refund", dedupe=same, relations=relations)
    await deployment.torn(keeps, engine.create([new]))
    if is_repeated:
        (answer,) = await engine.create([new])
        assert isinstance(answer, Coalesced)
    await engine.seal_batch(batch.id)
    await ends_once(deployment, batch, ["invoice", "refund"])
    assert (await the(engine, existing.definition.id)).head.state is State.COMPLETED


@pytest.mark.parametrize("verb", ["end", "seal"])
@pytest.mark.parametrize("keeps", PARTS)
async def test_a_batch_finishes_once_whatever_was_kept_of_its_end(
    deployment: Deployment, keeps: int, verb: str
) -> None:
    engine, batch = deployment.engine, a_batch()
    await engine.open_batch(batch)
    await create_until_stored(engine, member_of(batch))
    session = await a_session(engine, "10h")
    (taken,) = await deployment.claim(session)
    decision = await decided(engine, taken, complete(taken))
    if verb == "end":
        await engine.seal_batch(batch.id)
        await deployment.torn(keeps, engine.commit([decision]))
        await engine.commit([decision])
    else:
        await engine.commit([decision])
        await deployment.torn(keeps, engine.seal_batch(batch.id))
        await engine.seal_batch(batch.id)
    await ends_once(deployment, batch, [])


@pytest.mark.parametrize("keeps", PARTS)
async def test_an_inner_batch_holds_up_the_outer_one_whatever_was_kept_of_its_opening(
    deployment: Deployment, keeps: int
) -> None:
    engine, outer = deployment.engine, a_batch()
    inner = NewBatch(a_job_id(), "shop", parent=outer.id)
    await engine.open_batch(outer)
    await deployment.torn(keeps, engine.open_batch(inner))
    await engine.open_batch(inner)
    await engine.seal_batch(outer.id)
    session = await a_session(engine, "10h")
    assert await deployment.claim(session) == []
    await engine.seal_batch(inner.id)
    await ends_once(deployment, outer, [])
