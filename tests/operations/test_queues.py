"""Queues that are listed, paused, resumed and drained."""

from __future__ import annotations

import pytest

from trellis import AmbiguousId, ConfigurationError, Operator
from trellis.engines.port import Engine
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import a_session, accept_one, claim


async def test_queues_are_paused_resumed_and_drained(jobs: Operator, engine: Engine) -> None:
    await accept_one(engine, a_job())
    paused = await jobs.pause("shop/invoices")
    assert (paused.paused, paused.draining, paused.waiting, paused.active) == (True, False, 1, 0)
    assert await claim(engine, await a_session(engine)) == []
    drained = await jobs.drain_queue("shop/invoices")
    assert (drained.paused, drained.draining) == (True, True)
    assert await jobs.queues() == [drained]
    open_again = await jobs.resume("shop/invoices")
    assert (open_again.paused, open_again.draining) == (False, False)
    assert (await jobs.pause("shop/letters")).waiting == 0
    with pytest.raises(ConfigurationError, match="There is no queue 'invoice' here"):
        await jobs.pause("invoice")


async def test_a_queue_goes_by_its_short_name_while_one_service_has_it(
    jobs: Operator, engine: Engine
) -> None:
    await accept_one(engine, a_job())
    assert (await jobs.pause("invoices")).service == "shop"
    await accept_one(engine, a_job(service="depot"))
    with pytest.raises(AmbiguousId, match="depot/invoices, shop/invoices"):
        await jobs.resume("invoices")


async def test_a_queue_whose_jobs_have_all_ended_is_listed(jobs: Operator, engine: Engine) -> None:
    record = await accept_one(engine, a_job())
    await jobs.cancel(record.definition.id)
    (idle,) = await jobs.queues()
    assert (idle.queue, idle.waiting, idle.active) == ("invoices", 0, 0)


async def test_opening_a_queue_that_does_not_exist_stores_nothing(jobs: Operator) -> None:
    assert (await jobs.resume("shop/nonexist")).paused is False
    assert await jobs.queues() == []
