"""Hooks: jobs of their own that run when another job has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trellis import (
    ActiveJob,
    ConfigurationError,
    Fail,
    Operator,
    Outcome,
    PerKey,
    Retry,
    Service,
    State,
)
from trellis.config import worker_settings
from trellis.insight.doctor import diagnose


class Shop:
    """A job with three hooks that record what they are told."""

    def __init__(self, service: Service) -> None:
        self.seen: list[tuple[str, Outcome]] = []
        self.told = asyncio.Event()

        @service.job(retry=Retry(attempts=1))
        async def sell(order: int) -> dict[str, int]:
            if order < 0:
                raise Fail("no such order", data={"order": order})
            return {"order": order}

        @sell.on_success
        async def thank(ended: Outcome) -> None:
            self.tell("success", ended)

        @sell.on_failure(name="apologize", queue="mails", retry=Retry(attempts=1))
        async def apologize(job: ActiveJob[Outcome]) -> None:
            self.tell("failure", job.payload)
            raise ValueError("a hook that fails changes nothing")

        @sell.on_finished
        async def count(ended: Outcome) -> None:
            self.tell("finished", ended)

        self.sell, self.thank, self.apologize = sell, thank, apologize

    def tell(self, kind: str, ended: Outcome) -> None:
        """Record what a hook was told."""
        self.seen.append((kind, ended))
        self.told.set()


async def _until_told(shop: Shop, number: int) -> None:
    async with asyncio.timeout(20):
        while len(shop.seen) < number:
            shop.told.clear()
            await shop.told.wait()


async def test_hooks_are_told_how_the_job_ended(service: Service) -> None:
    shop = Shop(service)
    good = await shop.sell.create(7, tags={"customer": "ada"})
    bad = await shop.sell.create(-1)
    async with service.worker():
        await _until_told(shop, 4)
    by_kind = {(kind, ended.job_id): ended for kind, ended in shop.seen}
    assert set(by_kind) == {
        ("success", good.id), ("finished", good.id), ("failure", bad.id), ("finished", bad.id),
    }  # fmt: skip
    told = by_kind["success", good.id]
    assert (told.state, told.result, told.payload) == (State.COMPLETED, {"order": 7}, 7)
    assert (told.tags, told.type, told.attempt) == ({"customer": "ada"}, "sell", 1)
    failed = by_kind["failure", bad.id]
    assert failed.state is State.FAILED
    assert failed.error is not None
    assert (failed.error.message, failed.error.data) == ("no such order", {"order": -1})
    assert (await bad.status()).state is State.FAILED


async def test_a_cancelled_job_of_a_producer_without_the_code_fires_its_hooks(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    service = Service("shop", url)
    shop = Shop(service)
    async with service.worker():
        pass  # a worker stores the hooks of its types when it starts
    async with Service("shop", url) as producer:
        bare = producer.declare("sell", payload=int, result=dict[str, int])
        ref = await bare.create(7)
        await ref.cancel("sold out")
    async with service.worker():
        await _until_told(shop, 1)
    ((kind, ended),) = shop.seen
    assert (kind, ended.job_id, ended.state) == ("finished", ref.id, State.CANCELLED)


async def test_a_hook_that_was_removed_from_the_code_waits_and_is_reported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    before, after = Service("shop", url), Service("shop", url)
    shop = Shop(before)

    @after.job
    async def sell(order: int) -> dict[str, int]:
        return {"order": order}

    async with before, after:
        ref = await shop.sell.create(7)
        operator = Operator(await after.connection.engine())
        await operator.pause("shop/sell")
        async with after.worker():
            await ref.cancel("sold out")
            (hook,) = [each async for each in operator.find(parent=ref.id)]
            assert (hook.type, hook.state) == ("sell-on_finished", State.PENDING)
            why = await operator.why(hook.id)
            assert [cause.code for cause in why.causes] == ["no_worker"]
            assert why.text == "No live worker runs shop/sell-on_finished."
            found = await diagnose(operator.engine, worker_settings({}), journals=False)
    (warning,) = [each for each in found.warnings if "No live worker runs" in each]
    assert warning == (
        "No live worker runs shop/sell-on_finished, and 1 job of it waits. Start a worker with the "
        "code that declares the type, or cancel them: trellis jobs cancel "
        "type:shop/sell-on_finished"
    )


def test_hooks_are_job_types_of_their_service() -> None:
    service = Service("shop", "memory://")
    shop = Shop(service)
    names = [job_type.name for job_type in service.job_types]
    assert names == ["sell", "sell-on_success", "apologize", "sell-on_finished"]
    hooks = shop.sell.job_type.policy.hooks
    assert [(hook.on, hook.type, hook.queue) for hook in hooks] == [
        ("success", "sell-on_success", "sell-on_success"),
        ("failure", "apologize", "mails"),
        ("finished", "sell-on_finished", "sell-on_finished"),
    ]


def test_wrong_hooks_are_refused_when_they_are_declared() -> None:
    shop = Shop(Service("shop", "memory://"))
    with pytest.raises(ConfigurationError, match="hook has no hooks"):
        shop.thank.on_failure(lambda: None)

    def takes_a_number(order: int) -> None: ...

    with pytest.raises(ConfigurationError, match="Outcome"):
        shop.sell.on_failure(name="other")(takes_a_number)

    def fine(ended: Outcome) -> None: ...

    with pytest.raises(ConfigurationError, match="per_key"):
        shop.sell.on_failure(per_key=PerKey("x"))(fine)
    with pytest.raises(ConfigurationError, match="has the tenant of the job that it follows"):
        shop.sell.on_failure(fair="{job_id}")(fine)
    with pytest.raises(ConfigurationError, match="already has"):
        shop.sell.on_success(fine)


def test_a_hook_leaves_out_the_defaults_that_it_cannot_have() -> None:
    service = Service("shop", "memory://", defaults={"per_key": PerKey("all"), "deadline": "1h"})
    shop = Shop(service)
    assert shop.sell.job_type.policy.key is not None
    assert shop.thank.job_type.policy.key is None
    assert shop.thank.job_type.deadline == 3_600_000_000


async def test_a_hook_with_a_schema_version_and_a_deadline_runs(service: Service) -> None:
    told: asyncio.Queue[ActiveJob[Outcome]] = asyncio.Queue()

    @service.job
    async def sell(order: int) -> int:
        return order

    @sell.on_success(schema_version=2, deadline="1h")
    async def thank(job: ActiveJob[Outcome]) -> None:
        told.put_nowait(job)

    await sell.create(7)
    async with service.worker():
        job = await asyncio.wait_for(told.get(), 20)
    assert (job.payload.result, job.attempt) == (7, 1)
    assert job.deadline is not None
