"""Limits that operators set: only of queues and types that something here names."""

from __future__ import annotations

import pytest

from trellis import Limit, Operator, Service
from trellis import schedules as control
from trellis.core.limits import Scope
from trellis.engines.port import Engine
from trellis.engines.values import WorkerInfo
from trellis.errors import NotFound
from trellis.operations.contracts import deploy_contract
from trellis.testing.builders import a_declaration, a_job
from trellis.testing.conformance.helpers import accept_one


async def test_a_limit_of_a_name_that_nothing_has_is_refused(
    jobs: Operator, engine: Engine
) -> None:
    await accept_one(engine, a_job())
    with pytest.raises(NotFound, match=r"There is no queue shop/invoicse here.* Did you mean"):
        await jobs.set_limit("shop/invoicse", active=1)
    with pytest.raises(NotFound, match=r"There is no type shop/invioce here.* shop/invoice[?]"):
        await jobs.set_limit(type="shop/invioce", active=1)
    with pytest.raises(NotFound, match="See them with: trellis queues"):
        await jobs.reset_limit("depot/invoices")
    assert await engine.limits() == []
    assert (await jobs.set_limit("shop/invoices", active=1)).active == 1


async def test_a_type_without_a_job_is_known_by_its_contract(
    jobs: Operator, engine: Engine
) -> None:
    app = Service("shop", "memory://")

    @app.job(queue="letters")
    async def send() -> None: ...

    await deploy_contract(engine, app.contract, "refuse", "mia")
    assert (await jobs.set_limit(type="shop/send", rate="1/1s")).rate == "1/1s"
    assert (await jobs.set_limit("shop/letters", active=2)).active == 2
    with pytest.raises(NotFound):
        await jobs.set_limit("shop/send", active=2)


async def test_a_type_without_a_job_is_known_by_a_live_worker_and_by_a_schedule(
    jobs: Operator, engine: Engine
) -> None:
    info = WorkerInfo("mia", "host", 1, "1", '{"types":["shop/pay"]}')
    session = await engine.open_session(info, 30_000_000)
    assert (await jobs.set_limit(type="shop/pay", active=1)).active == 1
    assert (await jobs.set_limit("shop/pay", active=1)).active == 1
    await engine.close_session(session.id)
    await control.declare_schedules(engine, "shop", [a_declaration()], lambda _: True)
    (schedule,) = await engine.schedules()
    name = f"shop/{schedule.template.type}"
    assert (await jobs.set_limit(type=name, active=1)).active == 1


async def test_a_queue_without_a_job_is_known_by_its_declared_limit(
    jobs: Operator, engine: Engine
) -> None:
    await engine.declare_limits([(Scope("queue", "shop", "letters"), Limit(active=2))])
    assert (await jobs.set_limit("shop/letters", active=9)).active == 9
