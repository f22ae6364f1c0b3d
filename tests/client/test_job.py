"""Creating jobs, on both engines."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from trellis import (
    Accepted,
    Coalesced,
    ConfigurationError,
    Draining,
    IdempotencyMismatch,
    Job,
    KeyBusy,
    KeyUnresolved,
    PayloadInvalid,
    PerKey,
    QueueFull,
    Rejected,
    Replaced,
    Service,
    State,
    fingerprint,
)
from trellis.core.admission import Reason
from trellis.core.durations import SECOND
from trellis.core.job import Definition, JobId
from trellis.declaration.options import DeclareOptions
from trellis.engines.operating import Drain
from trellis.engines.values import JobFilter, QueueSettings

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


@dataclass
class Sync:
    origin: str | None


def sync(service: Service, **options: Unpack[DeclareOptions]) -> Job[Sync, int]:
    return service.declare("sync", payload=Sync, result=int, **options)


async def definition(service: Service, job_id: str) -> Definition:
    engine = await service.connection.engine()
    record = (await engine.load([JobId(job_id)])).records[0]
    assert record is not None
    return record.definition


async def test_a_job_is_stored_under_an_id_of_our_own(service: Service) -> None:
    ref = await sync(service).create(Sync("eu"))
    assert ULID.fullmatch(ref.id)
    assert (await ref.status()).state is State.PENDING
    assert (await definition(service, ref.id)).payload == '{"origin":"eu"}'


async def test_options_reach_the_engine(service: Service) -> None:
    ref = await sync(service).create(
        Sync("eu"),
        delay="1h",
        priority=3,
        deadline="2h",
        tags={"team": "a", "area": "b"},
        config={"region": 1},
        expect=fingerprint("abc"),
    )
    stored = await definition(service, ref.id)
    status = await ref.status()
    assert stored.priority == 3
    assert stored.tags == (("area", "b"), ("team", "a"))
    assert (stored.config, stored.expect) == ('{"region":1}', fingerprint("abc"))
    assert stored.deadline_at == stored.created_at + 7200 * SECOND
    assert status.run_at - status.created_at == timedelta(hours=1)


async def test_a_start_at_a_moment_is_that_moment(service: Service) -> None:
    moment = datetime(2040, 1, 1, tzinfo=UTC)
    ref = await sync(service).create(Sync("eu"), at=moment)
    assert (await ref.status()).run_at == moment


async def test_a_type_gives_its_deadline_to_jobs_without_one(service: Service) -> None:
    job = sync(service, deadline="1m")
    stored = await definition(service, (await job.create(Sync("eu"))).id)
    assert stored.deadline_at == stored.created_at + 60 * SECOND


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": datetime(2040, 1, 1, tzinfo=UTC), "delay": 1}, "Give at= or delay=, not both"),
        ({"at": datetime(2040, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - that is the point
        ({"priority": 9}, "Priority 9 is out of range"),
        ({"delay": "soon"}, "'soon' is not a duration"),
        ({"dedupe": ""}, "dedupe must be a text of 1 to 512 characters"),
        ({"delya": 1}, "has no option 'delya'. Did you mean delay?"),
        ({"tags": {"a": 1}}, "A tag is two texts"),
    ],
)
async def test_options_that_make_no_sense_are_refused(
    service: Service, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        await sync(service).create(Sync("eu"), **options)
    assert words in str(refusal.value)


async def test_a_payload_of_another_type_is_refused_before_anything_is_sent(
    service: Service,
) -> None:
    with pytest.raises(PayloadInvalid, match="origin: Input should be a valid string"):
        await sync(service).create({"origin": 5})  # type: ignore[arg-type]


async def test_a_config_that_is_not_plain_data_is_refused(service: Service) -> None:
    with pytest.raises(PayloadInvalid, match="The config contains object, which cannot be"):
        await sync(service).create(Sync("eu"), config=object())


async def test_many_jobs_are_created_in_order(service: Service) -> None:
    job = sync(service)
    refs = await job.create_many((Sync(str(number)) for number in range(1203)), tags={"a": "b"})
    assert len({ref.id for ref in refs}) == 1203
    assert (await definition(service, refs[1202].id)).payload == '{"origin":"1202"}'


async def test_one_bad_payload_among_many_stores_none(service: Service) -> None:
    engine = await service.connection.engine()
    with pytest.raises(PayloadInvalid):
        await sync(service).create_many([Sync("eu"), Sync(3)])  # type: ignore[arg-type]
    assert not (await engine.find(JobFilter())).jobs


async def test_a_refusal_among_many_says_how_many_were_accepted(service: Service) -> None:
    job = sync(service, per_key=PerKey("sync/{origin}"))
    with pytest.raises(KeyBusy) as refusal:
        await job.create_many([Sync("eu"), Sync("us"), Sync("eu")])
    assert refusal.value.__notes__ == ["2 of 3 jobs were accepted."]


async def test_a_dedupe_key_gives_back_the_waiting_job(service: Service) -> None:
    job = sync(service)
    first = await job.create(Sync("eu"), dedupe="order-7")
    assert await job.create(Sync("us"), dedupe="order-7") == first
    match await job.submit(Sync("us"), dedupe="order-7"):
        case Coalesced(ref):
            assert ref == first
        case other:
            pytest.fail(f"{other} is not Coalesced")


async def test_a_dedupe_key_holds_while_unfinished_or_for_a_time(service: Service) -> None:
    ran = asyncio.Event()

    @service.job
    async def work(name: str) -> None:
        if name == "first":
            await asyncio.wait_for(ran.wait(), 10)

    first = await work.create("first", dedupe="a", dedupe_while="unfinished")
    timed = await work.create("timed", dedupe="b", dedupe_for="1h")
    async with service.worker():
        await timed.wait("10s")
        assert await work.create("x", dedupe="a", dedupe_while="unfinished") == first
        assert await work.create("x", dedupe="b", dedupe_for="1h") == timed
        ran.set()
        await first.wait("10s")
        assert await work.create("x", dedupe="a", dedupe_while="unfinished") != first
        assert await work.create("x", dedupe="b") == timed
    seen = await timed.status()
    assert (seen.dedupe, seen.dedupe_while) == ("b", None)
    assert seen.dedupe_until == seen.created_at + timedelta(hours=1)


async def test_an_idempotency_key_makes_one_job_and_refuses_another_payload(
    service: Service,
) -> None:
    job = sync(service)
    first = await job.create(Sync("eu"), idempotency_key="call-1")
    assert await job.create(Sync("eu"), idempotency_key="call-1") == first
    with pytest.raises(IdempotencyMismatch, match="with another payload") as refusal:
        await job.create(Sync("us"), idempotency_key="call-1")
    assert refusal.value.existing == first.id


async def test_a_busy_key_names_its_holder_and_the_way_out(service: Service) -> None:
    job = sync(service, per_key=PerKey("sync/{origin}"))
    holder = await job.create(Sync("eu"))
    with pytest.raises(KeyBusy, match=r"PerKey.in_turn") as refusal:
        await job.create(Sync("eu"))
    assert holder.id in str(refusal.value)
    assert refusal.value.existing == holder.id
    await job.create(Sync("us"))


async def test_submit_answers_a_busy_key_with_a_value(service: Service) -> None:
    job = sync(service, per_key=PerKey("sync/{origin}"))
    holder = await job.create(Sync("eu"))
    match await job.submit(Sync("eu")):
        case Rejected(reason, existing):
            assert (reason, existing) == (Reason.KEY_BUSY, holder.id)
        case other:
            pytest.fail(f"{other} is not Rejected")


async def test_a_full_line_is_refused(service: Service) -> None:
    job = sync(service, per_key=PerKey("sync/{origin}", queued=1))
    await job.create(Sync("eu"))
    await job.create(Sync("eu"))
    with pytest.raises(QueueFull, match="Allow more with queued="):
        await job.create(Sync("eu"))


async def test_a_full_line_may_replace_its_oldest(service: Service) -> None:
    job = sync(service, per_key=PerKey("sync/{origin}", queued=1, when_full="replace-oldest"))
    await job.create(Sync("eu"))
    await job.create(Sync("eu"))
    match await job.submit(Sync("eu")):
        case Replaced(ref, skipped):
            assert ref.id != skipped
            assert (await job.ref(skipped).status()).state is State.SKIPPED
        case other:
            pytest.fail(f"{other} is not Replaced")


async def test_in_turn_accepts_any_number(service: Service) -> None:
    job = sync(service, per_key=PerKey.in_turn("sync/{origin}"))
    answers = [await job.submit(Sync("eu")) for _ in range(5)]
    assert all(isinstance(answer, Accepted) for answer in answers)


async def test_a_key_that_points_nowhere_is_refused(service: Service) -> None:
    @service.job(per_key=PerKey("sync/{region}"))
    async def anything(payload: dict[str, str]) -> None:
        del payload

    with pytest.raises(KeyUnresolved, match="points at /region, which the payload does not have"):
        await anything.create({"origin": "eu"})


async def test_a_key_that_points_at_no_scalar_is_refused(service: Service) -> None:
    job = sync(service, per_key=PerKey("sync/{origin}"))
    with pytest.raises(KeyUnresolved, match="a key needs a string, number or boolean"):
        await job.create(Sync(None))


async def test_a_draining_queue_accepts_nothing(service: Service) -> None:
    job = sync(service)
    engine = await service.connection.engine()
    await engine.set_queue(QueueSettings("shop", "sync", draining=True))
    with pytest.raises(Draining, match="Queue 'sync' of shop/sync is draining"):
        await job.create(Sync("eu"))


async def test_nothing_is_accepted_while_all_queues_drain(service: Service) -> None:
    job = sync(service)
    engine = await service.connection.engine()
    await engine.set_drain(Drain(on=True, actor="ann"))
    with pytest.raises(Draining, match="shop/sync was not created: an operator drains all queues"):
        await job.create(Sync("eu"))
    await engine.set_drain(Drain(on=False, actor="ann"))
    await job.create(Sync("eu"))


async def test_a_job_outside_any_trace_starts_one(service: Service) -> None:
    job = sync(service)
    one = await definition(service, (await job.create(Sync("eu"))).id)
    other = await definition(service, (await job.create(Sync("eu"))).id)
    assert one.context.request_id == one.id
    assert one.context.trace_id != other.context.trace_id


async def test_a_job_continues_the_active_span(service: Service) -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    with trace.use_span(span):
        ref = await sync(service).create(Sync("eu"))
    context = (await definition(service, ref.id)).context
    assert context.traceparent == f"00-{0xABC:032x}-{0xDEF:016x}-01"


async def test_a_refused_payload_is_named_by_its_type_and_index(service: Service) -> None:
    greet = service.declare("greet", payload=str, result=str)
    wrong: Any = greet
    misfit = "The payload does not fit its type: payload: Input should be a valid string."
    with pytest.raises(PayloadInvalid) as refusal:
        await wrong.create(7)
    assert str(refusal.value) == f"{service.name}/greet: {misfit} Expected str, got int."
    with pytest.raises(PayloadInvalid) as refusal:
        await wrong.create_many(["a", 7, "b"])
    assert str(refusal.value).startswith(f"{service.name}/greet, item 2 of 3: {misfit}")


async def test_a_missing_payload_is_reported_as_such(service: Service) -> None:
    wrong: Any = service.declare("greet", payload=str, result=str)
    with pytest.raises(PayloadInvalid) as refusal:
        await wrong.create()
    assert str(refusal.value) == (
        f"{service.name}/greet takes a payload, but no payload was given. "
        "Write it first: greet.create(payload)."
    )


async def test_a_handlers_default_is_the_payload_of_a_job_created_without_one(
    service: Service,
) -> None:
    @service.job
    async def tidy(days: int = 7) -> int:
        return days

    @service.job
    async def wipe(days: int | None = 7) -> int:
        return days or 0

    created = [await tidy.create(), await tidy.create(30), await wipe.create()]
    created.append(await wipe.create(None))
    payloads = [(await definition(service, ref.id)).payload for ref in created]
    assert payloads == ["7", "30", "7", "null"]
    assert await tidy.run_inline() == 7


@pytest.mark.parametrize("payloads", ["abc", b"abc", {"a": 1}])
async def test_one_payload_in_place_of_a_list_is_refused(
    service: Service, payloads: object
) -> None:
    greet: Any = service.declare("greet", payload=str, result=str)
    with pytest.raises(ConfigurationError, match=r"a list of payloads, not one .*Nothing was sto"):
        await greet.create_many(payloads)
    assert (await (await service.connection.engine()).find(JobFilter(), limit=1)).jobs == ()


@pytest.mark.parametrize("method", ["create", "submit"])
async def test_a_second_payload_is_refused_with_what_to_write(
    service: Service, method: str
) -> None:
    greet: Any = service.declare("greet", payload=str, result=str)
    with pytest.raises(ConfigurationError) as refusal:
        await getattr(greet, method)("ada", "bob")
    assert str(refusal.value) == (
        "A job has one payload, but greet was given 2 arguments. Put them into one model or "
        "dataclass; options follow by name, like delay='10m'. Nothing was stored."
    )
