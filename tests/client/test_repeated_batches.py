"""Blocks that are run again: a batch with an idempotency key is continued, not opened twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from trellis import (
    ActiveJob,
    BatchClosed,
    ConfigurationError,
    IdempotencyMismatch,
    JobRef,
    Retry,
    Service,
    State,
)
from trellis.engines.batches import BatchFilter
from trellis.engines.values import JobFilter

BLOCK_END, HANDLER_END = "the end of the block", "the end of the handler"
AT_ONCE = Retry.fixed("1ms", attempts=5)


class Left(Exception):
    """Leaves a block or a handler."""


class Press:
    """A job that plans a book, which is written in parts and bound."""

    def __init__(self, service: Service) -> None:
        #: How often each part was written, and each book bound.
        self.done: Counter[str] = Counter()
        #: The places at which the planner fails, each once.
        self.fails_at: list[object] = []
        self.is_open: list[bool] = []

        @service.job
        async def write(part: str) -> str:
            self.done[part] += 1
            return part

        @service.job
        async def bind(job: ActiveJob[str]) -> str:
            assert job.batch is not None
            self.done["bind"] += 1
            return ", ".join([str(each.result) async for each in job.batch.members()])

        @service.job(retry=AT_ONCE)
        async def plan(job: ActiveJob[list[str]]) -> str:
            key = f"plan/{job.id}"
            async with service.batch(then=bind, then_payload="b", idempotency_key=key) as batch:
                self.is_open.append(batch.is_open)
                for number, part in enumerate(job.payload):
                    self.pass_by(number)
                    await batch.create(write, part)
                self.pass_by(BLOCK_END)
            self.pass_by(HANDLER_END)
            return batch.id

        self.write, self.bind, self.plan = write, bind, plan

    def pass_by(self, place: object) -> None:
        if place in self.fails_at:
            self.fails_at.remove(place)
            raise Left(place)


async def batches(service: Service) -> list[str]:
    return [
        each.new.id for each in await (await service.connection.engine()).batches(BatchFilter())
    ]


@pytest.mark.parametrize(
    "places",
    [[2], [0, 2, 3], [BLOCK_END], [HANDLER_END], [1, HANDLER_END]],
)
async def test_a_planner_that_runs_again_leads_to_one_book(
    service: Service, places: list[object]
) -> None:
    press = Press(service)
    press.fails_at = list(places)
    async with service.worker():
        ref = await press.plan.create(["one", "two", "three", "three"])
        batch = await ref.wait("20s")
        view = await service.batch_ref(batch).wait("20s")
        book = await press.bind.ref(str(view.fan_in)).wait("20s")
    assert book == "one, two, three, three"
    assert press.done == {"one": 1, "two": 1, "three": 2, "bind": 1}
    assert await batches(service) == [batch]
    assert len(press.is_open) == len(places) + 1
    assert press.is_open[-1] is (HANDLER_END not in places)


async def test_a_block_that_raises_leaves_a_batch_with_a_key_open(service: Service) -> None:
    press = Press(service)
    first = service.batch(idempotency_key="k")

    async def leave() -> None:
        async with first:
            await first.create(press.write, "one")
            raise Left

    with pytest.raises(Left):
        await leave()
    (member,) = [press.write.ref(each.id) async for each in first.ref.members()]
    assert (await first.ref.status()).state == "open"
    assert (await member.status()).state is State.PENDING
    async with service.batch(idempotency_key="k") as second:
        assert await second.create_many(press.write, ["one"]) == [member]
    assert (second.id, (await first.ref.status()).state) == (first.id, "sealed")


async def test_a_sealed_batch_finds_its_members_and_refuses_new_ones(service: Service) -> None:
    press = Press(service)
    async with service.batch(idempotency_key="k") as batch:
        member = await batch.create(press.write, "one")
        keyed = await batch.create(press.write, "two", idempotency_key="two")
        deduped = await batch.create(press.write, "three", dedupe="three")
    async with service.batch(idempotency_key="k") as again:
        assert await again.create(press.write, "one") == member
        assert await again.create(press.write, "two", idempotency_key="two") == keyed
        assert await again.create(press.write, "three", dedupe="three") == deduped
        with pytest.raises(BatchClosed, match="is sealed, cancelled or finished"):
            await again.create(press.write, "four")
    assert (batch.is_open, again.is_open) == (True, False)
    view = await batch.ref.status()
    assert view.state == "sealed"
    assert view.progress is not None
    assert (view.progress.total, view.name) == (3, "k")


async def test_a_cancelled_batch_stays_cancelled(service: Service) -> None:
    press = Press(service)
    async with service.batch(then=press.write, then_payload="x", idempotency_key="k") as batch:
        member = await batch.create(press.write, "one")
    await batch.ref.cancel()
    async with service.batch(then=press.write, then_payload="x", idempotency_key="k") as again:
        assert await again.create(press.write, "one") == member
    assert (await again.ref.status()).state == "cancelled"
    assert (await member.status()).state is State.CANCELLED


async def test_batches_in_it_are_found_again_too(service: Service) -> None:
    press = Press(service)

    async def run(*, leaves: bool) -> list[JobRef[str]]:
        refs = []
        async with service.batch(idempotency_key="k") as outer:
            for _ in range(2):
                async with outer.batch(then=press.write, then_payload="x") as inner:
                    refs.append(await inner.create(press.write, "one"))
            async with outer.batch(idempotency_key="eu") as inner:
                refs.append(await inner.create(press.write, "one"))
                if leaves:
                    raise Left
        return refs

    with pytest.raises(Left):
        await run(leaves=True)
    refs = await run(leaves=False)
    assert await run(leaves=False) == refs
    assert len(await batches(service)) == 4
    engine = await service.connection.engine()
    assert (await engine.count(JobFilter())).total == len({ref.id for ref in refs}) == 3
    async with service.worker():
        view = await service.batch(idempotency_key="k").ref.wait("20s")
    assert [child.state for child in view.children] == ["finished"] * 3


async def test_keys_of_other_services_and_batches_are_other_keys(url: str) -> None:
    one, two = Service("one", url), Service("two", url)
    found = [service.batch(idempotency_key="k") for service in (one, two)]
    found += [one.batch(idempotency_key="l"), *(each.batch(idempotency_key="k") for each in found)]
    assert len({batch.id for batch in found}) == len(found)
    assert one.batch(idempotency_key="k").id == found[0].id


async def test_a_key_that_was_used_for_another_batch_is_refused(service: Service) -> None:
    press = Press(service)
    async with service.batch(then=press.write, then_payload="x", idempotency_key="k") as batch:
        pass
    wrong: list[dict[str, Any]] = [
        {},
        {"then": press.write, "then_payload": "y"},
        {"then": press.bind, "then_payload": "x"},
    ]
    for options in wrong:
        with pytest.raises(IdempotencyMismatch, match=f"batch {batch.id}, which has another then="):
            async with service.batch(idempotency_key="k", **options):
                pass
    for key in ("", "x" * 513, 7, "a\0b"):
        with pytest.raises(ConfigurationError, match="idempotency_key"):
            service.batch(idempotency_key=key)  # type: ignore[arg-type]
    assert await batches(service) == [batch.id]


def test_plain_code_repeats_a_block_too(url: str) -> None:
    with Service("shop", url) as service:
        press = Press(service)
        found = []
        for _ in range(2):
            with service.batch(idempotency_key="k") as batch:
                found.append([batch.create_sync(press.write, part) for part in "aab"])
        assert found[0] == found[1]
        assert len(set(found[0])) == 3
        assert batch.ref.progress_sync().total == 3
