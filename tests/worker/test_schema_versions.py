"""Jobs of other schema versions: older payloads are upgraded, newer ones are handed back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.worker.faulty import eventually
from trellis import JobFailed, Operator, Service, State
from trellis.core.durations import SECOND, to_datetime
from trellis.core.job import JobId
from trellis.engines.values import JobFilter
from trellis.testing import sandbox
from trellis.testing.conformance.helpers import the


@dataclass
class Order:
    number: int
    currency: str


@dataclass
class OldOrder:
    amount: str


def declare(service: Service, *, plain: bool = False) -> Any:  # noqa: ANN401 - a Job
    """Declare version 3 of a type, with upgraders from 1 and 2."""

    async def bill_async(order: Order) -> str:
        return f"{order.number} {order.currency}"

    def bill_plain(order: Order) -> str:
        return f"{order.number} {order.currency}"

    bill = service.job(name="bill", schema_version=3)(bill_plain if plain else bill_async)

    @bill.upgrade(from_version=1)
    def split(old: dict[str, Any]) -> dict[str, Any]:
        number, _, currency = old["amount"].partition(" ")
        return {"number": number, "money": currency}

    @bill.upgrade(from_version=2)
    def rename(old: dict[str, Any]) -> dict[str, Any]:
        return {"number": old["number"], "currency": old["money"]}

    assert split({"amount": "1 EUR"}) == {"number": "1", "money": "EUR"}
    return bill


def twin(service: Service) -> Service:
    """Return another version of the program, on the same engine."""
    other = Service(service.name, service.url)
    other._connection = service.connection  # a memory engine belongs to one object
    return other


@pytest.mark.parametrize("plain", [True, False])
async def test_an_old_payload_is_upgraded_before_it_is_validated(
    service: Service, plain: bool
) -> None:
    old = twin(service).declare("bill", payload=OldOrder, result=str)
    bill = declare(service, plain=plain)
    waiting = await old.create(OldOrder("7 EUR"))
    async with service.worker():
        assert await waiting.wait("10s") == "7 EUR"
        new = await bill.create(Order(8, "USD"))
        assert await new.wait("10s") == "8 USD"
    engine = await service.connection.engine()
    versions = [each.definition.schema_version for each in (await engine.find(JobFilter())).jobs]
    assert versions == [3, 1]


async def test_a_job_without_an_upgrader_fails_at_once(service: Service) -> None:
    old = twin(service).declare("bill", payload=int, result=str)
    ran: list[int] = []

    @service.job(schema_version=2)
    async def bill(order: int) -> None:
        ran.append(order)

    waiting = await old.create(7)
    async with service.worker():
        with pytest.raises(JobFailed, match="no upgrader from version 1"):
            await waiting.wait("10s")
    status = await waiting.status()
    assert status.error is not None
    assert (status.state, status.attempt, status.error.code) == (
        State.FAILED,
        1,
        "upgrade_missing",
    )
    assert ran == []


async def test_an_upgrader_that_raises_fails_the_job_at_once(service: Service) -> None:
    old = twin(service).declare("bill", payload=int, result=str)

    @service.job(schema_version=2)
    async def bill(order: int) -> None: ...

    @bill.upgrade(from_version=1)
    def upgrade(old: int) -> int:
        return 1 // 0

    waiting = await old.create(7)
    async with service.worker():
        with pytest.raises(JobFailed, match="failed with ZeroDivisionError"):
            await waiting.wait("10s")


async def test_an_old_worker_hands_a_newer_job_back_and_a_new_one_runs_it(
    service: Service,
) -> None:
    new = twin(service)
    bill = declare(new)

    @service.job(name="bill")
    async def old_bill(order: OldOrder) -> str:
        return "old"

    waiting = await bill.create(Order(7, "EUR"))
    engine = await service.connection.engine()

    async def is_handed_back() -> bool:
        head = (await the(engine, JobId(waiting.id))).head
        return head.state is State.RETRY

    async with service.worker():
        await eventually(is_handed_back)
    head = (await the(engine, JobId(waiting.id))).head
    assert (head.attempt, head.claims, head.error) == (0, 1, None)
    assert head.run_at - (await engine.journal(JobId(waiting.id)))[-1].at == 5 * SECOND
    await Operator(engine).adjust(waiting.id, run_at=to_datetime(await engine.now()))
    async with new.worker():
        assert await waiting.wait("10s") == "7 EUR"


def test_the_sandbox_upgrades_too() -> None:
    service = Service("shop", "memory://")
    declare(service)
    old = Service("shop", "memory://").declare("bill", payload=OldOrder, result=str)
    with sandbox() as box:
        ref = old.create_sync(OldOrder("7 EUR"))
        box.run_all_sync()
        assert ref.wait_sync("1s") == "7 EUR"


async def test_a_handler_runs_inline_with_its_own_version() -> None:
    service = Service("shop", "memory://")
    assert await declare(service).run_inline(Order(7, "EUR")) == "7 EUR"
