"""Secrets in answers: every route and verb with every scope, and masked values that come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, SecretStr

from tests.harness.shop import Shop, a_request
from tests.server.serving import Listener, serving
from tests.server.test_access import routes
from trellis import ActiveJob, Fail, Retry, Service
from trellis.core.access import hash_secret
from trellis.core.commands import Cancel
from trellis.core.job import Definition, JobId
from trellis.core.schedules import Step, edit
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.batches import BatchFilter
from trellis.engines.http.protocol import VERBS, Decided, Marks, wanted
from trellis.engines.tokens import NewToken
from trellis.engines.values import JobFilter
from trellis.errors import JobFailed
from trellis.operations.operator import Operator
from trellis.schedules import find_schedule
from trellis.server.masking import MASKS
from trellis.testing.builders import a_job

CANARY = "canary-7f3a"
HASH = hash_secret(CANARY)
OPERATORS = ("admin.read", "admin.mutate", "admin.stream")
STRANGERS = ("worker:other", "submit:other")
OWN = ("worker:shop", "submit:shop")
STREAM = "/api/v1/stream"


class Order(BaseModel):
    """A payload with a secret that only its type marks."""

    number: int
    card: SecretStr


class Known(dict[str, Any]):
    """Values of path parameters; a parameter without one is unknown to the store."""

    def __missing__(self, name: str) -> str:
        return "unknown"


class Filled(NamedTuple):
    """A shop in which every place that can have a secret has one."""

    shop: Shop
    service: Service
    ended: Definition
    known: dict[str, Any]
    #: A cursor before everything that happened.
    first: str


@pytest.fixture
async def filled(shop: Shop, tmp_path: Path) -> AsyncIterator[Filled]:
    service = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")
    order = Order(number=1, card=SecretStr(CANARY))

    @service.job(retry=Retry(attempts=1), dead_letters=False)
    async def pay(job: ActiveJob[Order]) -> None:
        job.log.info("paid", password=CANARY)
        raise Fail("refused", data={"token": CANARY})

    @service.job
    async def read(order: Order) -> dict[str, str]:
        return {"number": str(order.number), "password": order.card.get_secret_value()}

    @service.job
    async def report(order: Order) -> None: ...

    service.schedule(report, every="1d", payload=order, name="nightly")
    async with service:
        async with service.batch(then=report, then_payload=order) as batch:
            await batch.create(read, order)
        async with service.worker(poll="50ms"):
            failed = await pay.create(order, config={"password": CANARY})
            done = await read.create(order, config={"password": CANARY})
            await done.wait("20s")
            with pytest.raises(JobFailed):
                await failed.wait("20s")
            await batch.ref.wait("20s")
        yield await _known(shop, service, JobId(failed.id), JobId(done.id), str(batch.ref.id))


async def _known(shop: Shop, service: Service, failed: JobId, done: JobId, batch: str) -> Filled:
    engine = shop.engine
    schedule = await find_schedule(engine, "shop", "nightly")
    change = Change("schedule.set", "shop/nightly", {"password": CANARY}, {"api_key": CANARY})
    step = edit(schedule, schedule, await engine.now(), ())
    await engine.advance_schedule(step, change, By("ann"))
    (stored,) = [each for each in await engine.schedules() if each.name == "nightly"]
    await engine.put_token(NewToken("x" * 12, HASH, "", ("admin.read",), 10**12))
    record = (await engine.load([done])).records[0]
    assert record is not None
    stale = Decided(done, 1, None, 1, Cancel())
    known: dict[str, Any] = {
        "job_id": failed, "ids": [failed, done], "id": done, "session": 1,
        "where": JobFilter(services=("shop",)), "service": "shop", "services": ["shop"],
        "commit.transitions": [stale], "watch.topics": ["ready"], "watch.since": Marks(),
        "token_id": "x" * 12, "scopes": ["admin.read"], "kind": "queue", "due.kind": "jobs",
        "batch_id": batch, "batch_ids": [batch], "batches.where": BatchFilter(),
        "audit.where": AuditFilter(), "advance_schedule.wanted": wanted(Step(stored)),
        "run_schedule.name": "nightly", "run_schedule.version": stored.version,
        "changes.cursor": None, "schedules.services": ["shop"],
    }  # fmt: skip
    first = (await engine.changes(None, 1)).cursor
    return Filled(shop, service, record.definition, known, first)


def test_every_verb_says_whether_its_answer_is_masked() -> None:
    assert set(MASKS) == set(VERBS)


async def test_no_verb_gives_a_secret_to_a_caller_without_a_scope_of_the_service(
    filled: Filled,
) -> None:
    shop = filled.shop
    own = await shop.token(*OWN, "admin.read", "admin.mutate")
    shown: set[str] = set()
    strangers = [await shop.token(*OPERATORS), *[await shop.token(each) for each in STRANGERS]]
    for verb, mask in MASKS.items():
        if mask is None:
            continue
        body = a_request(verb, filled.known)
        for token in strangers:
            answer = await shop.call(verb, body, token)
            assert answer.status_code in {200, 403}, (verb, answer.text)
            assert CANARY not in answer.text, (verb, answer.text)
            assert HASH not in answer.text, (verb, answer.text)
        answer = await shop.call(verb, body, own)
        if CANARY in answer.text:
            shown.add(verb)
    # What has no secret here is given to no caller, or has none in this store.
    assert shown == {
        "load", "find", "commit", "outcomes", "facts", "members", "journal", "changes", "logs",
        "batch", "batches", "batch_statuses", "seal_batch", "cancel_batch", "schedules",
    }  # fmt: skip


async def test_no_route_gives_a_secret_to_any_caller(filled: Filled) -> None:
    shop = filled.shop
    token = await shop.token(*OPERATORS, *OWN)
    values = {"job_id": filled.known["job_id"], "batch_id": filled.known["batch_id"],
              "service": "shop", "name": "nightly"}  # fmt: skip
    paths = {path for method, path, _ in routes() if method == "GET" and path != STREAM}
    for path in paths:
        for job_id in filled.known["ids"]:
            answer = await shop.get(path.format_map(Known(values, job_id=job_id)), token)
            assert answer.status_code in {200, 404}, (path, answer.text)
            assert CANARY not in answer.text, path
            assert HASH not in answer.text, path


async def test_no_stream_gives_a_secret(filled: Filled, tmp_path: Path) -> None:
    query = f"jobs={','.join(filled.known['ids'])}&after={filled.first}"
    listener = Listener(await filled.shop.token("admin.stream"), query)
    with serving(f"sqlite:///{tmp_path / 'jobs.db'}") as running:
        await listener.listen_for(running.port, "log", 1)
    assert listener.of("change")
    assert CANARY not in str(listener.events)


async def test_a_client_of_the_service_reads_the_result_as_it_is(filled: Filled) -> None:
    for scope in OWN:
        program = await filled.shop.program(scope)
        (outcome,) = await program.outcomes(filled.ended.id)
        assert outcome.result == f'{{"number":"1","password":"{CANARY}"}}'


async def test_a_clone_by_an_operator_who_reads_it_masked_has_the_secret(filled: Filled) -> None:
    program = await filled.shop.program("admin.read", "admin.mutate")
    cloned = await Operator(program).clone(filled.ended.id)
    (record,) = (await filled.shop.engine.load([JobId(cloned.id)])).records
    assert record is not None
    old, new = filled.ended, record.definition
    assert (new.payload, new.config) == (old.payload, old.config)


async def test_a_job_of_another_service_cannot_be_made_to_carry_the_secret(filled: Filled) -> None:
    program = await filled.shop.program("submit:other", "admin.read")
    (seen,) = (await program.load([filled.ended.id])).records
    assert seen is not None
    forged = a_job(service="other", type="read", payload=seen.definition.payload)
    await program.create([forged._replace(clone_of=filled.ended.id)])
    (stored,) = (await filled.shop.engine.load([forged.id])).records
    assert stored is not None
    assert CANARY not in stored.definition.payload


async def test_an_edit_of_a_schedule_that_was_read_masked_keeps_its_secret(filled: Filled) -> None:
    program = await filled.shop.program("admin.read", "admin.mutate")
    operator = Operator(program)
    await operator.schedules.pause("shop/nightly", reason="for now")
    await operator.schedules.resume("shop/nightly")
    stored = await find_schedule(filled.shop.engine, "shop", "nightly")
    assert CANARY in stored.plan.payload
    made = await operator.schedules.run("shop/nightly")
    (record,) = (await filled.shop.engine.load([JobId(made.job_id)])).records
    assert record is not None
    assert CANARY in record.definition.payload
    await operator.schedules.change("shop/nightly", payload={"number": 2, "card": f"{CANARY}2"})
    await operator.schedules.change("shop/nightly", every="2d")
    stored = await find_schedule(filled.shop.engine, "shop", "nightly")
    assert f"{CANARY}2" in stored.plan.payload
    assert CANARY not in str(await filled.shop.operator.audit())


async def test_a_masked_configuration_has_no_fingerprint(filled: Filled) -> None:
    program = await filled.shop.program("admin.read")
    assert (await Operator(program).get(filled.ended.id)).config_fingerprint is None
    assert (await filled.shop.operator.get(filled.ended.id)).config_fingerprint is not None
