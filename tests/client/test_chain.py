"""Chains: each job follows the one before and takes its result."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from trellis import (
    ChainRef,
    ConfigurationError,
    Draining,
    Fail,
    Fair,
    Job,
    JobFailed,
    PerKey,
    Service,
    State,
)
from trellis.core.job import JobId, Relations
from trellis.engines.values import JobFilter, QueueSettings


@dataclass
class Order:
    number: int


@dataclass
class Total:
    cents: int


class Shop:
    """Three jobs in a row."""

    def __init__(self, service: Service) -> None:
        @service.job
        async def price(order: Order) -> Total:
            if order.number < 0:
                raise Fail("There is no such order.")
            return Total(order.number * 100)

        @service.job
        def add_tax(total: Total) -> Total:
            return Total(total.cents * 6 // 5)

        @service.job
        async def tell(total: Total) -> str:
            return f"{total.cents / 100:.2f}"

        @service.job
        async def tidy() -> int:
            return 7

        self.price, self.add_tax, self.tell, self.tidy = price, add_tax, tell, tidy


async def states(ref: ChainRef[str]) -> list[State]:
    return [(await each.status()).state for each in ref.refs]


async def test_results_are_handed_on_from_job_to_job(service: Service) -> None:
    shop = Shop(service)
    async with service.worker():
        ref = await (shop.price | shop.add_tax | shop.tell).create(Order(10))
        assert await ref.wait("10s") == "12.00"
    views = [await each.status() for each in ref.refs]
    assert [view.payload for view in views] == [{"number": 10}, {"cents": 1000}, {"cents": 1200}]
    assert ref.id == views[-1].id


async def test_a_job_without_payload_may_end_a_chain(service: Service) -> None:
    shop = Shop(service)
    async with service.worker():
        assert await (await (shop.price | shop.tidy).create(Order(1))).wait("10s") == 7


async def test_a_failure_cancels_the_rest_and_is_what_wait_raises(service: Service) -> None:
    shop = Shop(service)
    ref = await (shop.price | shop.add_tax | shop.tell).create(Order(-1))
    async with service.worker():
        with pytest.raises(JobFailed, match=r"There is no such order\."):
            await ref.wait("10s")
    assert await states(ref) == [State.FAILED, State.CANCELLED, State.CANCELLED]


async def test_options_belong_to_all_jobs_or_to_the_first(service: Service) -> None:
    shop = Shop(service)
    first = await shop.tidy.create()
    chain = shop.price | shop.add_tax
    ref = await chain.create(Order(1), after=[first], tags={"customer": "ada"}, priority=2)
    views = [await each.status() for each in ref.refs]
    assert [(view.tags, view.priority) for view in views] == [({"customer": "ada"}, 2)] * 2
    engine = await service.connection.engine()
    links = await engine.links(
        [each.definition.id for each in (await engine.find(JobFilter())).jobs]
    )
    assert [(each.job, each.prerequisite) for each in links] == [
        (ref.refs[0].id, first.id),
        (ref.refs[1].id, ref.refs[0].id),
    ]


async def test_a_chain_can_be_followed_and_cancelled(service: Service) -> None:
    shop = Shop(service)
    ref = await (shop.price | shop.add_tax | shop.tell).create(Order(1))
    behind = await shop.tidy.create(after=[ref.id], on="finished")
    await ref.cancel("not needed")
    assert await states(ref) == [State.CANCELLED] * 3
    async with service.worker():
        assert await behind.wait("10s") == 7


async def test_of_a_chain_with_a_refused_job_nothing_is_stored(service: Service) -> None:
    shop = Shop(service)
    engine = await service.connection.engine()
    await engine.set_queue(QueueSettings("shop", "tell", draining=True))
    with pytest.raises(Draining) as refused:
        await (shop.price | shop.add_tax | shop.tell).create(Order(1))
    assert refused.value.__notes__ == ["None of the 3 jobs of the call was stored."]
    assert (await engine.find(JobFilter())).jobs == ()


def test_a_chain_works_without_an_event_loop(url: str) -> None:
    with Service("shop", url) as service:
        shop = Shop(service)
        ref = (shop.price | shop.add_tax).create_sync(Order(1))
        assert [each.status_sync().state for each in ref.refs] == [State.PENDING] * 2
        ref.cancel_sync()
        assert ref.refs[1].status_sync().state is State.CANCELLED


async def test_a_job_of_a_chain_has_the_tenant_that_its_payload_names(service: Service) -> None:
    shop = Shop(service)

    @service.job(fair=Fair("cents-{cents}", weights={"cents-700": 3}))
    async def book(total: Total) -> str:
        return f"{total.cents}"

    chain = await (shop.price | book).create(Order(7))
    assert (await chain.refs[1].status()).tenant is None
    async with service.worker():
        assert await chain.wait("20s") == "700"
    (found,) = (await (await service.connection.engine()).load([JobId(chain.refs[1].id)])).records
    assert found is not None
    assert found.definition.relations == Relations(
        tenant="cents-700", weight=3, payload_from=JobId(chain.refs[0].id)
    )


async def test_a_step_that_takes_a_result_keeps_the_tenant_it_was_given(service: Service) -> None:
    shop = Shop(service)
    flow = service.workflow()
    flow.step("price", shop.price, Order(7))
    flow.step("tax", shop.add_tax, payload_from="price", tenant="gold")
    refs = await flow.create()
    async with service.worker():
        await refs["tax"].wait("20s")
    assert (await refs["tax"].status()).tenant == "gold"


async def test_a_chain_needs_jobs_whose_key_is_known(service: Service) -> None:
    shop = Shop(service)
    keyed: Job[Total, None] = service.declare(
        "keyed", payload=Total, result=type(None), per_key=PerKey.in_turn("total/{cents}")
    )
    with pytest.raises(ConfigurationError, match="not known yet"):
        await (shop.price | keyed).create(Order(1))
    with pytest.raises(ConfigurationError, match="is no job"):
        shop.price | "tell"  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match="Did you mean delay"):
        await (shop.price | shop.tell).create(Order(1), dely="5s")  # type: ignore[call-arg]
