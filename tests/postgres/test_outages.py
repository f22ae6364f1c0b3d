"""What an engine does when the server or the way to it breaks: nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.postgres.steps import fresh, opened, state_of, until_it_works, with_options
from tests.servers.databases import Databases
from tests.servers.postgres import Server
from tests.servers.proxy import Proxy
from trellis import Service, control
from trellis.core.commands import Complete
from trellis.core.spans import SECOND
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import Accepted, JobFilter
from trellis.errors import EngineUnavailable, OutcomeUnknown
from trellis.testing.builders import a_demand, a_job, a_worker, fence_of

# Plain TCP and a proxy are the same on every version; crashes are tried on both below.
pytestmark = pytest.mark.on_postgres(18)
SOON = "500ms"


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


async def test_a_half_open_connection_is_given_up_and_replaced(
    engine: PostgresEngine, proxy: Proxy
) -> None:
    await engine.create([a_job()])
    proxy.freeze()
    with pytest.raises(OutcomeUnknown, match="no answer in time"):
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
