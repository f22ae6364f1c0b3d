"""What an engine does when the server or the way to it breaks: nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.engines.postgres.steps import (
    PATIENCE,
    fresh,
    opened,
    state_of,
    until_it_works,
    with_options,
)
from tests.harness.servers.databases import Databases
from tests.harness.servers.postgres import Server
from tests.harness.servers.proxy import Proxy
from trellis import JobRef, PerKey, Retry, Service, control
from trellis.core.commands import Complete, Fail
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobId
from trellis.core.policy import KeyPolicy, Policy
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import Accepted, JobFilter
from trellis.errors import EngineUnavailable, OutcomeUnknown
from trellis.testing.builders import a_demand, a_job, a_keyed_job, a_worker, fence_of

# Plain TCP and a proxy are the same on every version; crashes are tried on both below.
pytestmark = pytest.mark.on_postgres(18)
SOON = "500ms"
SOON_AGAIN = Retry.fixed("10ms")


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def engine(proxy: Proxy) -> AsyncIterator[PostgresEngine]:
    """An engine behind the proxy, which gives a statement up after half a second."""
    async with opened(with_options(proxy.url, statement_timeout=SOON)) as engine:
        yield engine


async def test_a_connection_that_breaks_between_calls_is_opened_again(
    engine: PostgresEngine, proxy: Proxy
) -> None:
    assert await engine.create([first := a_job()]) == [Accepted(first.id)]
    proxy.drop()
    second = a_job()
    assert await until_it_works(lambda: engine.create([second])) == [Accepted(second.id)]


async def test_a_server_that_cannot_be_reached_is_said_to_be_away_with_nothing_stored(
    engine: PostgresEngine, proxy: Proxy, url: str
) -> None:
    proxy.refuse()
    proxy.drop()
    with pytest.raises((EngineUnavailable, OutcomeUnknown)):
        await engine.create([a_job()])
    with pytest.raises(EngineUnavailable, match="Nothing was stored"):
        await engine.create([lost := a_job()])
    proxy.accept()
    assert await state_of(engine, lost.id) is None


async def test_a_lost_reply_to_a_create_is_an_unknown_outcome_and_a_repeat_makes_no_second_job(
    engine: PostgresEngine, proxy: Proxy
) -> None:
    new = a_job()
    await engine.create([a_job()])  # what a first create needs is there now
    loss = proxy.lose_next_reply(to="insert into trellis.job")
    with pytest.raises(OutcomeUnknown, match="same ids is safe"):
        await engine.create([new])
    await asyncio.to_thread(loss.wait)
    assert await until_it_works(lambda: engine.create([new])) == [Accepted(new.id)]
    assert (await engine.count(JobFilter(), "state")).groups == {"pending": 2}


async def test_a_service_repeats_a_create_whose_reply_was_lost_by_itself(proxy: Proxy) -> None:
    async with Service("shop", proxy.url) as shop:
        greet = shop.declare("greet", payload=str, result=str)
        await greet.create("first")
        loss = proxy.lose_next_reply(to="insert into trellis.job")
        ref = await greet.create("second")
        assert loss.happened
        engine = await shop.connection.engine()
        assert (await engine.count(JobFilter(), "state")).groups == {"pending": 2}
        assert (await ref.status()).state == "pending"


async def test_a_settlement_whose_reply_was_lost_counts_as_stored(
    engine: PostgresEngine, proxy: Proxy
) -> None:
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    await engine.create([a_job()])
    (taken,) = (await engine.claim(session, [a_demand()], 1)).jobs
    done = Complete(fence_of(taken), "7")
    proxy.lose_next_reply(to="delete from trellis.queue")
    with pytest.raises(OutcomeUnknown):
        await control.apply_all(engine, [(taken, done)], await engine.now())
    now = await until_it_works(engine.now)
    (result,) = await until_it_works(lambda: control.apply_all(engine, [(taken, done)], now))
    assert isinstance(result, control.Applied)
    kinds = [event.kind.value for event in await engine.journal(taken.definition.id)]
    assert kinds == ["created", "started", "completed"]


async def test_jobs_of_a_claim_whose_reply_was_lost_are_named_by_the_next_renewal(
    engine: PostgresEngine, proxy: Proxy
) -> None:
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    await engine.create([new := a_job()])
    loss = proxy.lose_next_reply(to="for update of q skip locked")
    with pytest.raises(OutcomeUnknown):
        await engine.claim(session, [a_demand()], 1)
    await asyncio.to_thread(loss.wait)
    renewed = await until_it_works(lambda: engine.renew(session, ()))
    assert [record.definition.id for record in renewed.unknown] == [new.id]  # type: ignore[union-attr]


async def test_a_read_without_an_answer_is_not_said_to_have_stored_something(
    engine: PostgresEngine, proxy: Proxy
) -> None:
    await engine.find(JobFilter())
    proxy.freeze()
    for read in (engine.find(JobFilter()), engine.load([a_job().id])):
        with pytest.raises(EngineUnavailable, match="Nothing of this call was stored"):
            await read
    proxy.thaw(forget=True)


async def test_a_half_open_connection_is_given_up_and_replaced(
    engine: PostgresEngine, proxy: Proxy
) -> None:
    await engine.create([a_job()])
    proxy.freeze()
    with pytest.raises(OutcomeUnknown, match=r"did not answer within 0\.5 s"):
        await engine.create([a_job()])
    proxy.thaw(forget=True)
    new = a_job()
    assert await until_it_works(lambda: engine.create([new])) == [Accepted(new.id)]


async def test_hints_are_heard_again_after_the_connection_broke(
    engine: PostgresEngine, proxy: Proxy, url: str
) -> None:
    hints = engine.watch(["ready"])
    heard = asyncio.ensure_future(anext(hints))
    async with opened(url) as other:
        await until_it_works(engine.now)
        await other.create([a_job()])
        assert await asyncio.wait_for(heard, 30) == "ready"
        proxy.drop()
        await until_it_works(engine.now)
        assert await asyncio.wait_for(anext(hints), 30) == "ready"  # whatever was missed
        again = asyncio.ensure_future(anext(hints))
        async with asyncio.timeout(30):
            while not again.done():
                await other.create([a_job()])
                await asyncio.wait({again}, timeout=0.3)
        assert again.result() == "ready"


async def test_many_jobs_whose_reply_was_lost_are_created_once(proxy: Proxy) -> None:
    async with Service("shop", proxy.url) as shop:
        greet = shop.declare("greet", payload=str, result=str)
        await greet.create("first")
        loss = proxy.lose_next_reply(to="insert into trellis.job")
        refs = await greet.create_many([f"{number}" for number in range(300)])
        assert loss.happened
        assert len({ref.id for ref in refs}) == 300
        engine = await shop.connection.engine()
        assert (await engine.count(JobFilter(), "state")).groups == {"pending": 301}


@pytest.mark.parametrize("is_keyed", [False, True])
async def test_a_retry_whose_reply_was_lost_counts_once(
    engine: PostgresEngine, proxy: Proxy, *, is_keyed: bool
) -> None:
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    later = Policy(retry=Retry.fixed(3600 * SECOND))
    new = a_keyed_job("k", KeyPolicy("k"), policy=later) if is_keyed else a_job(policy=later)
    await engine.create([new])
    (taken,) = (await engine.claim(session, [a_demand()], 1)).jobs
    burnt = Fail(fence_of(taken), Failure("exception", "it burnt"))
    # A keyed job is settled in a transaction of several statements, others in one statement.
    statement = "commit" if is_keyed else "update trellis.queue"
    loss = proxy.lose_next_reply(to=statement, whole=is_keyed)
    with pytest.raises(OutcomeUnknown):
        await control.apply_all(engine, [(taken, burnt)], await engine.now())
    await asyncio.to_thread(loss.wait)
    now = await until_it_works(engine.now)
    (result,) = await until_it_works(lambda: control.apply_all(engine, [(taken, burnt)], now))
    assert isinstance(result, control.Applied)
    kinds = [event.kind.value for event in await engine.journal(taken.definition.id)]
    assert kinds == ["created", "started", "retry"]


class Shop:
    """A worker process's worth of a service, with handlers that end when they are let."""

    def __init__(self, url: str) -> None:
        self.began: list[str] = []
        self.stopped: list[str] = []
        self.may_end = asyncio.Event()
        self.service = Service("shop", url)
        self.service.job(retry=SOON_AGAIN)(self.plain)
        self.service.job(retry=SOON_AGAIN, per_key=PerKey.in_turn("one"))(self.keyed)

    async def plain(self, name: str) -> str:
        return await self._work("plain", name)

    async def keyed(self, name: str) -> str:
        return await self._work("keyed", name)

    async def _work(self, kind: str, name: str) -> str:
        self.began.append(kind)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.stopped.append(kind)
            raise
        return name


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - what is waited for happens elsewhere
            await asyncio.sleep(0.02)


async def told(engine: PostgresEngine, ref: JobRef[str]) -> list[str]:
    return [event.kind.value for event in await engine.journal(JobId(ref.id))]


async def test_an_outage_of_the_server_longer_than_the_lease_starts_nothing_twice(
    own_postgres: Server,
) -> None:
    url = await asyncio.to_thread(lambda: fresh(own_postgres))
    one, two = Shop(url), Shop(url)
    async with one.service, one.service.worker(lease="1s", poll="50ms"), opened(url) as engine:
        ref = await one.service.find("plain").create("me")
        await eventually(lambda: one.began == ["plain"])
        async with two.service, two.service.worker(lease="1s", poll="50ms"):
            await asyncio.to_thread(own_postgres.kill_postmaster)
            await asyncio.sleep(1.2)  # this is the outage
            await asyncio.to_thread(own_postgres.start)
            back = await until_it_works(engine.now)
            # Everybody is heard again for more than a lease: whoever was to be given up, was.
            while min(each.renewed_at for each in await engine.sessions()) < back + 2 * SECOND:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            one.may_end.set()
            assert await ref.wait("30s") == "me"
        assert await told(engine, ref) == ["created", "started", "completed"]
        assert (one.began, two.began) == (["plain"], [])


async def test_a_worker_cut_off_for_longer_than_its_lease_loses_its_jobs_once(
    url: str, proxy: Proxy
) -> None:
    lost, rival = Shop(with_options(proxy.url, statement_timeout=SOON)), Shop(url)
    rival.may_end.set()
    async with lost.service, lost.service.worker(lease="1s", poll="50ms"), opened(url) as engine:
        plain = await lost.service.find("plain").create("me")
        keyed = await lost.service.find("keyed").create("me")
        await eventually(lambda: sorted(lost.began) == ["keyed", "plain"])
        async with rival.service, rival.service.worker(lease="1s", poll="50ms"):
            proxy.freeze()
            for name, ref in (("plain", plain), ("keyed", keyed)):
                await rival.service.find(name).ref(ref.id).wait("30s")
            assert lost.stopped == ["keyed"]  # by itself: nobody can tell it anything
            lost.may_end.set()
            proxy.thaw(forget=True)
            late = "staleCompletionIgnored"
            async with asyncio.timeout(PATIENCE):
                while late not in await told(engine, plain):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        once_more = ["created", "started", "retry", "started", "completed"]
        assert await told(engine, plain) == [*once_more, late]
        assert [each for each in await told(engine, keyed) if each != late] == once_more
        assert sorted(rival.began) == ["keyed", "plain"]


@pytest.mark.on_postgres(16, 18)
@pytest.mark.parametrize("how", ["restart", "immediate", "kill"])
async def test_what_was_acknowledged_survives_and_work_goes_on(
    own_postgres: Server, how: str
) -> None:
    url = await asyncio.to_thread(lambda: fresh(own_postgres))
    async with opened(url) as engine:
        session = (await engine.open_session(a_worker(), 3600 * SECOND)).id
        jobs = [a_job() for _ in range(20)]
        await engine.create(jobs)
        taken = (await engine.claim(session, [a_demand()], 5)).jobs
        await control.apply_all(
            engine, [(each, Complete(fence_of(each))) for each in taken[:2]], await engine.now()
        )
        if how == "kill":
            await asyncio.to_thread(own_postgres.kill_postmaster)
        else:
            await asyncio.to_thread(own_postgres.stop, "fast" if how == "restart" else "immediate")
        with pytest.raises((EngineUnavailable, OutcomeUnknown)):
            await engine.create([a_job()])
        await asyncio.to_thread(own_postgres.start)
        await until_it_works(engine.now)
        counted = (await engine.count(JobFilter(), "state")).groups
        assert counted == {"pending": 15, "active": 3, "completed": 2}
        rest = [(each, Complete(fence_of(each))) for each in taken[2:]]
        results = await until_it_works(
            lambda: control.apply_all(engine, rest, taken[0].head.run_at)
        )
        assert all(isinstance(result, control.Applied) for result in results)
        more = await until_it_works(lambda: engine.claim(session, [a_demand()], 100))
        assert len(more.jobs) == 15


@pytest.mark.long
async def test_connections_that_fall_silent_delay_the_next_job_by_less_than_a_lease(
    url: str, proxy: Proxy
) -> None:
    silent, direct = Shop(proxy.url), Shop(url)
    async with silent.service, silent.service.worker(lease="6s"), opened(url) as engine:
        running = await silent.service.find("plain").create("me")
        await eventually(lambda: silent.began == ["plain"])
        proxy.mute()
        async with direct.service:
            following = await direct.service.find("plain").create("you")
        await eventually(lambda: silent.began == ["plain", "plain"])
        silent.may_end.set()
        async with asyncio.timeout(PATIENCE):
            while "completed" not in await told(engine, following):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        created, *_, completed = await engine.journal(JobId(following.id))
        assert completed.at - created.at < 6 * SECOND
        assert await running.wait("30s") == "me"
        assert await told(engine, running) == ["created", "started", "completed"]
