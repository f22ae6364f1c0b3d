"""Creating a job by the name of its type, with and without the program that declares it."""

from __future__ import annotations

import pytest

from trellis import KeyBusy, PayloadInvalid, PerKey, Service
from trellis.core.job import JobId, JobRecord
from trellis.core.policy import KeyPolicy, Policy
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError, UnknownJobType
from trellis.operations.contracts import deploy_contract
from trellis.operations.creation import create, declared_type, known_type
from trellis.testing.builders import a_job, a_keyed_job
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import accept_one

shop = Service("shop", "memory://")
sync = shop.declare("sync", payload=dict[str, int], result=str, queue="syncs")
clean = shop.declare("clean", result=str)
once = shop.declare("once", payload=str, result=str, per_key=PerKey("all"))
depot = Service("depot", "memory://")
depot.declare("sync", payload=int, result=str)
DECLARED = (*shop.job_types, *depot.job_types)


async def load(engine: Engine, job_id: str) -> JobRecord:
    (record,) = (await engine.load([JobId(job_id)])).records
    assert record is not None
    return record


async def test_a_declared_type_gives_queue_and_policies_and_checks_the_payload(
    engine: Engine,
) -> None:
    known = declared_type("shop/sync", DECLARED)
    assert known.template is None
    made = await create(engine, known.job_type, '{"orders": 7}', {"priority": 2})
    definition = (await load(engine, made.job_id)).definition
    assert (definition.queue, definition.priority, definition.payload) == (
        "syncs",
        2,
        '{"orders":7}',
    )
    with pytest.raises(PayloadInvalid, match=r"^shop/sync: "):
        await create(engine, known.job_type, '{"orders": "many"}', {})
    with pytest.raises(PayloadInvalid, match="shop/sync takes a payload"):
        await create(engine, known.job_type, None, {})


async def test_a_type_without_a_payload_is_created_without_one(engine: Engine) -> None:
    known = declared_type("clean", DECLARED)
    made = await create(engine, known.job_type, None, {})
    assert (await load(engine, made.job_id)).definition.payload == "null"
    with pytest.raises(PayloadInvalid):
        await create(engine, known.job_type, "7", {})


def test_a_name_must_stand_for_one_declared_type() -> None:
    with pytest.raises(ConfigurationError, match="Write one of: shop/sync, depot/sync"):
        declared_type("sync", DECLARED)
    with pytest.raises(UnknownJobType, match="Known types: depot/sync, shop/clean, shop/once"):
        declared_type("bill", DECLARED)


async def test_without_the_program_the_newest_job_of_the_type_is_the_template(
    engine: Engine, clock: ManualClock
) -> None:
    await accept_one(engine, a_job(type="bill", queue="old"))
    clock.advance("1s")
    policy = Policy(on_lost="fail")
    newest = await accept_one(engine, a_job(type="bill", queue="bills", policy=policy))
    known = await known_type(engine, "shop/bill")
    assert known.template == newest.definition.id
    made = await create(engine, known.job_type, '{"any": ["thing"]}', {})
    definition = (await load(engine, made.job_id)).definition
    assert (definition.queue, definition.policy.on_lost) == ("bills", "fail")
    assert definition.payload == '{"any":["thing"]}'


async def test_without_the_program_a_deployed_contract_stands_for_it(engine: Engine) -> None:
    await deploy_contract(engine, shop, "warn", "worker one")
    known = await known_type(engine, "shop/sync")
    assert known.template is None
    made = await create(engine, known.job_type, '{"orders": 7}', {})
    assert (await load(engine, made.job_id)).definition.queue == "syncs"
    with pytest.raises(PayloadInvalid):
        await create(engine, known.job_type, '{"orders": "many"}', {})


async def test_without_the_program_keys_hold_as_for_every_other_job(engine: Engine) -> None:
    rule = KeyPolicy("user/{id}")
    first = await accept_one(engine, a_keyed_job("user/7", rule, payload='{"id":7}'))
    name = f"{first.definition.service}/{first.definition.type}"
    known = await known_type(engine, name)
    with pytest.raises(KeyBusy) as refusal:
        await create(engine, known.job_type, '{"id":7}', {})
    assert refusal.value.existing == first.definition.id
    other = await create(engine, known.job_type, '{"id":8}', {})
    assert (await load(engine, other.job_id)).definition.key == "user/8"


async def test_a_type_that_never_had_a_job_is_refused(engine: Engine) -> None:
    await accept_one(engine, a_job(type="bill"))
    with pytest.raises(UnknownJobType, match="There is no job of shop/bil here"):
        await known_type(engine, "shop/bil")
    with pytest.raises(ConfigurationError, match="Which service has the type 'bill'"):
        await known_type(engine, "bill")


async def test_an_earlier_job_with_the_same_key_is_returned(engine: Engine) -> None:
    known = declared_type("clean", DECLARED)
    first = await create(engine, known.job_type, None, {"dedupe": "daily"})
    again = await create(engine, known.job_type, None, {"dedupe": "daily"})
    assert (first.is_new, again.is_new, again.job_id) == (True, False, first.job_id)


async def test_a_refusal_is_the_error_that_create_raises(engine: Engine) -> None:
    known = declared_type("once", DECLARED)
    await create(engine, known.job_type, '"x"', {})
    with pytest.raises(KeyBusy, match=r"PerKey\.in_turn"):
        await create(engine, known.job_type, '"x"', {})
