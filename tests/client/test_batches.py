"""Batches for programs: blocks, members, fan-in jobs, references."""

from __future__ import annotations

from typing import Any

import pytest

from trellis import (
    ActiveJob,
    AttemptOver,
    BatchClosed,
    CommandRejected,
    ConfigurationError,
    Fail,
    JobRef,
    KeyBusy,
    PayloadTooLarge,
    PerKey,
    Retry,
    Service,
    State,
    WaitTimeout,
)
from trellis.core.batches import Batch
from trellis.engines.audit import By
from trellis.engines.batches import BatchFilter
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import JobFilter
from trellis.errors import BatchNotFound, EngineUnavailable


class Office:
    """Jobs that write chapters, and one that puts them together."""

    def __init__(self, service: Service) -> None:
        self.reports: list[Any] = []

        @service.job(retry=Retry(attempts=1))
        async def write(job: ActiveJob[str]) -> str:
            if job.payload == "bad":
                raise ValueError("no ideas")
            if job.payload == "long":
                await job.spawn(write, "part", idempotency_key=f"{job.id}/part")
            return job.payload.upper()

        @service.job
        async def combine(job: ActiveJob[None]) -> str:
            assert job.batch is not None
            members = [member async for member in job.batch.members()]
            self.reports.append([(each.state.value, each.result) for each in members])
            return f"{(await job.batch.counts()).succeeded} of {len(members)}"

        @service.job
        async def label(name: str) -> str:
            return name

        self.write, self.combine, self.label = write, combine, label


async def test_a_fan_in_job_reads_the_results_of_all_members(service: Service) -> None:
    office = Office(service)
    async with service.batch(then=office.combine, name="book") as batch:
        first = await batch.create(office.write, "one")
        await batch.create_many(office.write, ["two", "bad"])
    async with service.worker():
        view = await batch.ref.wait("20s")
        assert view.fan_in is not None
        assert await office.combine.ref(view.fan_in).wait("20s") == "2 of 3"
    assert await first.wait() == "ONE"
    assert office.reports == [[("completed", "ONE"), ("completed", "TWO"), ("dead", None)]]
    assert (view.name, view.state, view.succeeded) == ("book", "finished", False)
    progress = await service.batch_ref(batch.id).progress()
    assert (progress.total, progress.finished, progress.percent) == (3, 3, 100.0)
    assert progress.counts == {State.COMPLETED: 2, State.DEAD: 1}
    assert (progress.succeeded, progress.unsuccessful) == (2, 1)


async def test_a_fan_in_job_uses_the_share_of_its_own_tenant_or_of_the_first_member(
    service: Service,
) -> None:
    office = Office(service)

    @service.job(fair="{author}")
    async def publish(book: dict[str, str]) -> None: ...

    async with service.batch(then=publish, then_payload={"author": "ada"}) as own:
        await own.create(office.write, "one", tenant="bob")
    async with service.batch(then=office.combine) as inherited:
        await inherited.create(office.write, "one", tenant="bob")
        await inherited.create(office.write, "two", tenant="eve")
    async with service.worker():
        views = [await each.ref.wait("20s") for each in (own, inherited)]
    fan_ins = [office.write.ref(view.fan_in or "") for view in views]
    assert [(await each.status()).tenant for each in fan_ins] == ["ada", "bob"]


async def test_a_running_member_adds_to_its_batch(service: Service) -> None:
    office = Office(service)
    async with service.batch(then=office.combine) as batch:
        await batch.create(office.write, "long")
    async with service.worker():
        view = await batch.ref.wait("20s")
        await office.combine.ref(str(view.fan_in)).wait("20s")
    assert office.reports == [[("completed", "LONG"), ("completed", "PART")]]


async def test_an_empty_batch_fires_at_once(service: Service) -> None:
    office = Office(service)
    async with service.batch(then=office.label, then_payload="none") as batch:
        pass
    view = await batch.ref.status()
    assert (view.state, view.then) == ("finished", "shop/label")
    async with service.worker():
        assert await office.label.ref(str(view.fan_in)).wait("20s") == "none"


async def test_an_exception_in_the_block_cancels_the_batch(service: Service) -> None:
    office = Office(service)
    batch = service.batch(then=office.combine)

    async def fail() -> None:
        async with batch:
            created.append(await batch.create(office.write, "one"))
            raise RuntimeError("power cut")

    created: list[JobRef[str]] = []
    with pytest.raises(RuntimeError, match="power cut"):
        await fail()
    (ref,) = created
    view = await batch.ref.status()
    assert (view.state, view.fan_in) == ("cancelled", None)
    assert (await ref.status()).state is State.CANCELLED
    with pytest.raises(BatchClosed):
        await batch.create(office.write, "late")


async def test_a_rejected_member_fails_the_call_and_so_the_batch(service: Service) -> None:
    @service.job(per_key=PerKey("{name}"))
    async def alone(name: dict[str, str]) -> None: ...

    await alone.create({"name": "x"})
    with pytest.raises(KeyBusy):
        async with service.batch() as batch:
            await batch.create(alone, {"name": "x"})
    assert (await batch.ref.status()).state == "cancelled"


async def test_a_coalesced_member_is_the_existing_job(service: Service) -> None:
    office = Office(service)
    existing = await office.write.create("one", dedupe="d")
    async with service.batch() as batch:
        assert await batch.create(office.write, "one", dedupe="d") == existing
    members = [member async for member in batch.ref.members()]
    assert [member.id for member in members] == [existing.id]
    assert (await batch.ref.status()).state == "sealed"


async def test_nested_batches_wait_for_each_other(service: Service) -> None:
    office = Office(service)
    async with service.batch(then=office.label, then_payload="all") as outer:
        for name in ("a", "b"):
            async with outer.batch(then=office.label, then_payload=name) as inner:
                await inner.create(office.write, name)
    async with service.worker():
        view = await outer.ref.wait("20s")
        assert await office.label.ref(str(view.fan_in)).wait("20s") == "all"
    assert [child.state for child in view.children] == ["finished", "finished"]
    assert [member.result async for member in outer.ref.members()] == ["a", "b"]
    with pytest.raises(BatchClosed):
        async with outer.batch():
            pass


async def test_progress_counts_batches_and_begins_at_zero(service: Service) -> None:
    office = Office(service)
    async with service.batch() as outer:
        assert (await outer.ref.progress()).percent == 0.0
        async with outer.batch() as inner:
            await inner.create(office.write, "one")
    progress = await outer.ref.progress()
    assert (progress.total, progress.batches, progress.finished_batches) == (0, 1, 0)
    assert progress.percent == 0.0
    with pytest.raises(WaitTimeout, match="0 of 0 members ended, and 0 of 1 batches in it"):
        await outer.ref.wait(0.01)
    async with service.worker():
        await outer.ref.wait("20s")
    assert (await outer.ref.progress()).percent == 100.0
    async with service.batch() as empty:
        pass
    assert (await empty.ref.progress()).percent == 100.0


async def test_half_of_the_work_may_be_batches(service: Service) -> None:
    office = Office(service)
    async with service.batch() as outer:
        await outer.create(office.write, "one")
        async with outer.batch():
            pass
    progress = await outer.ref.progress()
    assert (progress.percent, progress.finished, progress.finished_batches) == (50.0, 0, 1)


async def test_a_batch_is_cancelled_and_its_failed_members_run_again(service: Service) -> None:
    office = Office(service)
    async with service.batch(then=office.combine) as batch:
        bad = await batch.create(office.write, "bad")
    async with service.worker():
        await batch.ref.wait("20s")
    assert await batch.ref.retry_failed() == 1
    assert (await bad.status()).state is State.PENDING
    with pytest.raises(CommandRejected):
        await batch.ref.cancel()
    async with service.batch() as other:
        waiting = await other.create(office.write, "one")
    view = await other.ref.cancel("not needed")
    assert (view.state, (await waiting.status()).state) == ("cancelled", State.CANCELLED)


async def test_a_member_that_runs_again_after_its_batch_spawns_outside_of_it(
    service: Service,
) -> None:
    office, runs = Office(service), iter([False, True])

    @service.job(retry=Retry.never())
    async def write_parts(job: ActiveJob[None]) -> str:
        if not next(runs):
            raise Fail("no paper")
        return (await job.spawn(office.write, "one")).id

    async with service.batch() as batch:
        member = await batch.create(write_parts)
    async with service.worker():
        await batch.ref.wait("20s")
        assert await batch.ref.retry_failed() == 1
        spawned = await office.write.ref(await member.wait("20s")).status()
    assert (spawned.parent, spawned.batch) == (member.id, None)
    assert (await batch.ref.progress()).total == 1


async def test_waiting_ends_in_time_and_unknown_batches_are_not_found(service: Service) -> None:
    office = Office(service)
    async with service.batch() as batch:
        await batch.create(office.write, "one")
    with pytest.raises(WaitTimeout, match="0 of 1 members"):
        await batch.ref.wait(0.01)
    with pytest.raises(BatchNotFound):
        await service.batch_ref("01JC0000000000000000000000").status()


async def test_a_spawn_of_an_attempt_that_is_over_stores_nothing(service: Service) -> None:
    late: list[ActiveJob[None]] = []

    @service.job
    async def leave(job: ActiveJob[None]) -> None:
        late.append(job)

    async with service.worker():
        await (await leave.create()).wait("20s")
        with pytest.raises(AttemptOver):
            await late[0].spawn(leave)


async def test_wrong_options_are_refused_before_anything_is_stored(service: Service) -> None:
    office = Office(service)
    wrong: list[dict[str, Any]] = [
        {"then": "combine"},
        {"then_payload": 1},
        {"on": "never"},
        {"on_failure": "stop"},
        {"other": 1},
    ]
    for options in wrong:
        with pytest.raises(ConfigurationError):
            service.batch(**options)
    async with service.batch() as batch:
        with pytest.raises(ConfigurationError, match="transaction"):
            await batch.create(office.write, "one", tx=object())
        with pytest.raises(ConfigurationError, match="list of payloads"):
            await batch.create_many(office.write, "one")  # the mistake


async def test_a_job_cannot_follow_a_batch_and_the_error_says_what_to_write(
    service: Service,
) -> None:
    office = Office(service)
    async with service.batch() as batch:
        for wrong in (batch, batch.ref):
            after: Any = [wrong]
            with pytest.raises(ConfigurationError, match=f"batch {batch.id}.* the then= of the"):
                await office.write.create("one", after=after)
    engine = await service.connection.engine()
    assert (await engine.count(JobFilter())).total == 0


async def test_a_fan_in_payload_over_the_limit_opens_no_batch(service: Service) -> None:
    office = Office(service)
    with pytest.raises(PayloadTooLarge, match="shop/label"):
        service.batch(then=office.label, then_payload="x" * 2**21)
    async with service.batch() as outer:
        with pytest.raises(PayloadTooLarge):
            outer.batch(then=office.label, then_payload="x" * 2**21)
    engine = await service.connection.engine()
    assert [each.new.id for each in await engine.batches(BatchFilter())] == [outer.id]


class UnsealingEngine(MemoryEngine):
    """Cannot be reached when a batch is sealed, this often."""

    refusals = 1000

    async def seal_batch(self, batch_id: str, by: By | None = None) -> Batch | None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise EngineUnavailable("The store cannot be reached.")
        return await super().seal_batch(batch_id, by)


async def test_a_batch_that_could_not_be_sealed_is_named_with_the_command_that_seals_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trellis.client.batches._PAUSES", (0, 0, 0))
    service, engine = Service("shop", "memory://"), UnsealingEngine()
    service.connection._own._shared_engine = engine
    with pytest.raises(EngineUnavailable) as raised:
        async with service.batch() as batch:
            pass
    (note,) = raised.value.__notes__
    assert note.endswith(f"Seal it with: trellis batches seal {batch.id}")
    assert (await batch.ref.status()).state == "open"
    engine.refusals = 3
    async with service.batch() as batch:
        pass
    assert (await batch.ref.status()).state == "finished"


def test_plain_code_has_the_same_batches(url: str) -> None:
    with Service("shop", url) as service:
        office = Office(service)
        with service.batch(then=office.combine) as batch:
            batch.create_sync(office.write, "one")
            batch.create_many_sync(office.write, ["two"])
        assert batch.ref.progress_sync().total == 2
        assert [member.state for member in batch.ref.members_sync()] == [State.PENDING] * 2
        assert batch.ref.cancel_sync().state == "cancelled"
