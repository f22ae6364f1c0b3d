"""A SQLite file with everything that a move takes along, and how to look at it in any store."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.engines.postgres.household import Thing, furnish, inventory
from trellis import control, schedules
from trellis.core.batches import NewBatch
from trellis.core.commands import Complete
from trellis.core.durations import SECOND, micros
from trellis.core.job import JobId, NewJob, Prerequisite, Relations
from trellis.core.limits import Limit, Override, Scope
from trellis.core.policy import DEFAULT_POLICY, Policy
from trellis.core.schedules import Step
from trellis.engines.audit import AuditFilter, By
from trellis.engines.contracts import DeclaredType, NewContract
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.builders import a_declaration, a_demand, a_job, a_worker, fence_of

ANN = By("ann", "set up")
BATCH = NewBatch("01JC0000000000000000000000", "shop", then=a_job(type="report"))
OUTER = NewBatch("01JC0000000000000000000001", "shop", "outer")
INNER = NewBatch("01JC0000000000000000000002", "shop", "inner", parent=OUTER.id)


class Estate(NamedTuple):
    """Everything that people can see of a store, but for the numbers that are its own."""

    things: dict[JobId, Thing]
    settings: dict[str, object]
    batches: dict[str, object]
    links: object


async def found(path: Path) -> dict[str, NewJob]:
    """Fill a file; nobody works on it afterwards."""
    named = await furnish(path)
    engine = SqliteEngine(path)
    await engine.open()
    try:
        named |= await _link(engine)
        await _group(engine)
        await _set_up(engine)
    finally:
        await engine.close()
    return named


async def _link(engine: Engine) -> dict[str, NewJob]:
    """Add jobs that wait for others; one of them has ended and hands its result on."""
    first, second = a_job(type="link"), a_job(type="link")
    third = a_job(
        type="link",
        payload="null",
        after=(Prerequisite(first.id), Prerequisite(second.id)),
        relations=Relations(payload_from=first.id),
    )
    last = a_job(type="link", after=(Prerequisite(third.id, "finished"),))
    await engine.create([first])
    await _finish(engine, 1, "link", "[42]")
    await engine.create([second, third, last])
    return {"link-1": first, "link-2": second, "link-3": third, "link-4": last}


async def _group(engine: Engine) -> None:
    """Add a batch of which one member has ended, and one in another."""
    for batch in (BATCH, OUTER, INNER):
        await engine.open_batch(batch)
    twin = a_job(type="member", dedupe="twin")
    await engine.create([twin])
    for batch, count in ((BATCH, 3), (INNER, 1)):
        relations = Relations(batch=batch.id)
        await engine.create([a_job(type="member", relations=relations) for _ in range(count)])
    await engine.create([a_job(type="member", dedupe="twin", relations=Relations(batch=OUTER.id))])
    await _finish(engine, 2, "member", "7")  # the twin, and the first of the batch
    await engine.seal_batch(BATCH.id)


async def _finish(engine: Engine, count: int, job_type: str, result: str) -> None:
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    for taken in (await engine.claim(session, [a_demand(job_type)], count)).jobs:
        done = Complete(fence_of(taken), result)
        await control.apply_all(engine, [(taken, done)], await engine.now())
    await engine.close_session(session)


async def _set_up(engine: Engine) -> None:
    one, two = Scope("queue", "shop", "one"), Scope("type", "shop", "two")
    await engine.declare_limits([(one, Limit(rate="1/1h")), (two, Limit(active=2))])
    await engine.change_limit(one, Override(Limit(active=7), frozenset({"active"})), ANN)
    await engine.set_aging(60 * SECOND, ANN)
    await engine.declare_types([DeclaredType("shop", "one", "letters", Policy(), 2)])
    await engine.put_contract(NewContract("shop", 0, "{}", "a", "deployed"), ANN)
    await engine.put_contract(NewContract("shop", 1, "{}", "b", "accepted"), ANN)
    await engine.declare_archive("shop", ANN)
    declared = [a_declaration("a", missed="all"), a_declaration("b", paused=True)]
    await schedules.declare_schedules(engine, "shop", declared, lambda _: True)
    for stored in await engine.schedules():
        slot = (stored.next_slot or 0) - micros("5m")
        await engine.advance_schedule(Step(stored._replace(next_slot=slot)))
    await schedules.fire_due(engine)


async def survey(engine: Engine) -> Estate:
    """Look at everything."""
    things = {job_id: _settled(thing) for job_id, thing in (await inventory(engine)).items()}
    archives = [each[:2] for each in await engine.archives()]
    contracts = [(each.service, each.number, each.fingerprint) for each in await engine.contracts()]
    return Estate(
        things,
        {
            "queues": await engine.queue_settings(),
            "limits": [each.setting for each in await engine.limits()],
            "aging": await engine.aging(),
            "types": await engine.declared_types(),
            "contracts": contracts,
            "archives": archives,
            "keys": [await engine.keys("shop", name) for name in ("held", "invoice")],
            "schedules": [each._replace(version=0) for each in await engine.schedules()],
            "ledger": [await engine.slots("shop", name) for name in ("a", "b")],
        },
        {batch.id: await _batch(engine, batch.id) for batch in (BATCH, OUTER, INNER)},
        sorted(await engine.links(list(things))),
    )


def _settled(thing: Thing) -> Thing:
    """Leave out a payload that another job hands on: a move takes it along before its time."""
    definition = thing.record.definition
    if definition.relations is None or definition.relations.payload_from is None:
        return thing
    return thing._replace(record=thing.record._replace(definition=definition._replace(payload="")))


async def _batch(engine: Engine, batch_id: str) -> object:
    (status,) = await engine.batch_statuses([batch_id])
    assert status is not None
    batch, counts, finished, children = status
    members = [(each.record.definition.id, each.result) for each in await engine.members(batch_id)]
    same = batch._replace(row=0, sealed_at=batch.sealed_at and 1)
    return same, counts, finished, [each.new.id for each in children], members


async def entries(engine: Engine) -> list[object]:
    """Return the audit, the oldest first."""
    return [entry[1:] for entry in reversed(await engine.audit(AuditFilter(), limit=1000))]


__all__ = ["BATCH", "DEFAULT_POLICY", "INNER", "OUTER", "Estate", "entries", "found", "survey"]
