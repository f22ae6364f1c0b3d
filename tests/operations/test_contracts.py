"""Contracts in an engine: what a plan finds, what an acceptance allows, what a worker deploys."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.harness.embedded_engines import *  # noqa: F403 - fixtures are found by name
from trellis import ConfigurationError, Operator, Service
from trellis.config import OnMigration, worker_settings
from trellis.core.contracts import Contract
from trellis.core.job import JobId, Prerequisite, Relations
from trellis.declaration.contract import contract_fingerprint
from trellis.engines.audit import AuditFilter, By
from trellis.engines.contracts import NewContract
from trellis.engines.instrumented import Call, instrumented
from trellis.engines.memory import MemoryEngine
from trellis.engines.port import Engine
from trellis.engines.sql.transaction import run_through
from trellis.errors import ContractNotAccepted, ContractTooNew, NotFound
from trellis.operations import contracts
from trellis.operations.contracts import deploy_all, deploy_contract
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept

#: As a later version may write it.
NEWER = '{"format":"trellis.jobs/9","service":"shop","types":{}}'


def shop(payload: Any = int, **options: Any) -> Service:  # noqa: ANN401 - options of a type
    service = Service("shop", "memory://")
    service.declare("bill", payload=payload, result=str, **options)
    return service


async def deploy(engine: Engine, service: Service, mode: OnMigration = "warn") -> None:
    await deploy_contract(engine, service, mode, "worker one")


async def fill(engine: Engine, *payloads: str, **options: Any) -> list[JobId]:  # noqa: ANN401
    """Create waiting jobs of the type."""
    jobs = [a_job(service="shop", type="bill", payload=each, **options) for each in payloads]
    return [each.definition.id for each in await accept(engine, *jobs)]


async def statuses(engine: Engine) -> list[str]:
    return [f"{each.number} {each.status}" for each in await engine.contracts("shop")]


async def test_a_worker_deploys_its_contract_once(engine: Engine) -> None:
    found = await deploy_all(engine, [shop()], worker_settings({}, name="one"))
    await deploy_all(engine, [shop()], worker_settings({}))
    assert found == {"shop": contract_fingerprint(shop().contract)}
    (view,) = await Operator(engine).contracts()
    assert (view.number, view.status, view.actor) == (1, "deployed", "one")
    assert view.document == shop().contract.document()


async def test_off_stores_nothing(engine: Engine) -> None:
    assert await deploy_all(engine, [shop()], worker_settings({}, contract="off")) == {}
    assert await engine.contracts() == []


async def test_an_update_is_deployed_at_once_and_silently(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await deploy(engine, shop())
    await deploy(engine, shop(concurrency=3), "refuse")
    assert await statuses(engine) == ["2 deployed", "1 deployed"]
    assert caplog.records == []


async def test_a_migration_is_logged_once_and_deployed(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await deploy(engine, shop())
    for _ in range(2):
        await deploy(engine, shop(str))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "by a migration that was not accepted (jobs.bill.payload: " in record.getMessage()
    assert await statuses(engine) == ["2 deployed", "1 deployed"]


async def test_a_worker_that_refuses_needs_an_acceptance(engine: Engine) -> None:
    await deploy(engine, shop())
    with pytest.raises(ContractNotAccepted, match="No job was started"):
        await deploy(engine, shop(str), "refuse")
    assert await statuses(engine) == ["1 deployed"]
    accepted = await Operator(engine, actor="ann").accept_contract(shop(str), "no jobs wait")
    assert (accepted.is_migration, accepted.is_accepted) == (True, True)
    with pytest.raises(ContractNotAccepted):
        await deploy(engine, shop(bool), "refuse")
    await deploy(engine, shop(str), "refuse")
    assert await statuses(engine) == ["3 deployed", "2 accepted", "1 deployed"]
    (entry,) = await engine.audit(AuditFilter())
    assert (entry.change.action, entry.change.target) == ("contract.accept", "shop")
    assert entry.by == By("ann", "no jobs wait")


async def test_an_acceptance_before_another_deployment_does_not_count(engine: Engine) -> None:
    await deploy(engine, shop())
    await Operator(engine).accept_contract(shop(str), "why not")
    await deploy(engine, shop(concurrency=3))
    with pytest.raises(ContractNotAccepted):
        await deploy(engine, shop(str), "refuse")


async def test_going_back_to_an_earlier_release_is_never_refused(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await deploy(engine, shop())
    await deploy(engine, shop(int | str))
    await deploy(engine, shop(), "refuse")
    assert "migration that was not accepted" in caplog.text
    assert len(await statuses(engine)) == 3


async def test_an_acceptance_needs_a_reason_and_a_migration(engine: Engine) -> None:
    operator = Operator(engine)
    await deploy(engine, shop())
    with pytest.raises(ConfigurationError, match="needs a reason"):
        await operator.accept_contract(shop(str), "  ")
    nothing = await operator.accept_contract(shop(concurrency=3), "why not")
    assert (nothing.is_migration, nothing.is_accepted) == (False, False)
    for _ in range(2):
        await operator.accept_contract(shop(str), "why not")
    assert await statuses(engine) == ["2 accepted", "1 deployed"]


async def test_many_workers_start_at_once(engine: Engine) -> None:
    services = [shop(), shop(concurrency=3)] * 8
    await asyncio.gather(*(deploy(engine, each) for each in services))
    records = await engine.contracts("shop")
    assert [each.number for each in records] == list(range(len(records), 0, -1))
    assert {each.fingerprint for each in records} == {
        contract_fingerprint(each.contract) for each in services
    }


async def test_a_plan_checks_the_waiting_jobs_of_a_changed_payload(engine: Engine) -> None:
    await deploy(engine, shop())
    ids = await fill(engine, "1", '"a"', '"b"')
    await fill(engine, '"elsewhere"', queue="other")
    plan = await Operator(engine).plan_contract(shop(int | None))
    (check,) = plan.payloads
    assert (check.type, check.waiting, check.checked, check.invalid) == ("bill", 4, 4, 3)
    assert check.is_sample is False
    assert ids[2] in {job_id for job_id, _ in check.examples}
    assert "valid integer" in check.examples[0][1]
    assert [each.kind for each in plan.changes] == ["update"]
    assert plan.is_migration  # because of the jobs that wait
    unchanged = await Operator(engine).plan_contract(shop(concurrency=3))
    assert unchanged.payloads == ()


async def test_upgraders_are_applied_by_a_plan(engine: Engine) -> None:
    await deploy(engine, shop())
    await fill(engine, "1", "2")
    await fill(engine, "[3]", schema_version=3)
    new = shop(str, schema_version=2)
    new.find("bill").upgrade(from_version=1)(lambda old: str(old) if old == 1 else old)
    (check,) = (await Operator(engine).plan_contract(new)).payloads
    assert (check.checked, check.invalid) == (3, 2)
    assert any("schema version 3" in problem for _, problem in check.examples)


async def test_a_plan_of_a_document_checks_by_its_schema(engine: Engine) -> None:
    await deploy(engine, shop())
    await fill(engine, "1", '"a"')
    document = shop(str).contract.document()
    (check,) = (await Operator(engine).plan_contract(document)).payloads
    assert check.examples[0][1] == (
        "The payload does not fit the contract: the value: it must be string."
    )
    document = {**document, "jobs": {"bill": {**document["jobs"]["bill"], "schemaVersion": 2}}}
    document["jobs"]["bill"]["upgradesFrom"] = [1]
    (check,) = (await Operator(engine).plan_contract(document)).payloads
    assert check.invalid == 0  # upgraders are in the program


async def test_many_waiting_jobs_are_sampled(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contracts, "CHECK_ALL", 400)
    monkeypatch.setattr(contracts, "SAMPLE", 200)
    await deploy(engine, shop())
    await fill(engine, *(["1", '"a"'] * 300))
    (check,) = (await Operator(engine).plan_contract(shop(int | None))).payloads
    assert (check.is_sample, check.waiting) == (True, 600)
    assert 200 <= check.checked < 600
    assert 0.3 < check.invalid / check.checked < 0.7


async def test_dead_letters_decide_whether_they_may_be_disabled(engine: Engine) -> None:
    await deploy(engine, shop())
    assert not (await Operator(engine).plan_contract(shop(dead_letters=False))).is_migration


async def test_a_contract_of_a_newer_version_is_not_overwritten(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    body = '{"format":"trellis.jobs/9","service":"shop","jobs":{}}'
    await engine.put_contract(NewContract("shop", 0, body, "sha256:new", "deployed"), By("one"))
    with pytest.raises(ContractTooNew):
        await Operator(engine).plan_contract(shop())
    with pytest.raises(ContractTooNew):
        await deploy(engine, shop(), "refuse")
    await deploy(engine, shop())
    assert "is not compared: The contract was written by a newer version" in caplog.text
    assert await statuses(engine) == ["1 deployed"]


async def put_newer(engine: Engine, after: int, body: str = NEWER) -> None:
    """Store a deployed contract that this version cannot read."""
    new = NewContract("shop", after, body, f"sha256:{after}", "deployed")
    assert await engine.put_contract(new, By("one"))


@pytest.mark.parametrize("body", [NEWER, '{"service":"shop","jobs":{"bill":{"onLost":"later"}}}'])
async def test_going_back_is_not_refused_after_a_newer_version_either(
    engine: Engine, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    await deploy(engine, shop())
    await put_newer(engine, 1, body)
    with pytest.raises(ContractTooNew, match="newer version of Trellis"):
        await deploy(engine, shop(concurrency=3), "refuse")
    await deploy(engine, shop(), "refuse")
    assert "is not compared: " in caplog.text
    assert await statuses(engine) == ["3 deployed", "2 deployed", "1 deployed"]
    await deploy(engine, shop(), "refuse")
    assert (await Operator(engine).plan_contract(shop())).changes == ()


async def test_one_contract_of_a_newer_version_does_not_hide_the_others(engine: Engine) -> None:
    await deploy(engine, shop())
    await put_newer(engine, 1)
    newer, known = await Operator(engine).contracts()
    assert newer.document == {"format": "trellis.jobs/9", "service": "shop", "types": {}}
    assert newer.problem is not None
    assert "Upgrade Trellis here" in newer.problem
    assert (known.problem, known.document) == (None, shop().contract.document())


async def test_a_worker_that_refuses_checks_jobs_that_wait(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await deploy(engine, shop())
    ids = await fill(engine, "1", '"a"')
    assert (await Operator(engine).plan_contract(shop(int | None))).is_migration
    with pytest.raises(ContractNotAccepted, match="1 of 2 waiting jobs of bill") as raised:
        await deploy(engine, shop(int | None), "refuse")
    assert f"{ids[1]} for one: The payload does not fit its type" in str(raised.value)
    await Operator(engine).accept_contract(shop(int | None), "one is wrong already")
    await deploy(engine, shop(int | None), "refuse")
    assert caplog.records == []
    await deploy(engine, shop(), "refuse")  # deployed before
    await deploy(engine, shop(int | None, concurrency=3))  # only rules count without refuse
    assert "cannot be read" not in caplog.text


async def test_a_worker_that_starts_checks_some_jobs_and_uses_upgraders(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contracts, "CHECK_AT_START", 50)
    await deploy(engine, shop())
    await fill(engine, *(["1"] * 200))
    new = shop(str, schema_version=2)
    new.find("bill").upgrade(from_version=1)(str)
    await deploy(engine, new, "refuse")
    wrong = shop(bool, schema_version=3)
    for version in (1, 2):
        wrong.find("bill").upgrade(from_version=version)(lambda _old: "neither")
    with pytest.raises(ContractNotAccepted, match=r"([0-9]+) of \1 waiting jobs of bill"):
        await deploy(engine, wrong, "refuse")


async def test_a_job_whose_payload_is_handed_on_later_is_not_checked(engine: Engine) -> None:
    await deploy(engine, shop())
    source = a_job(service="shop", type="other")
    relations = Relations(payload_from=source.id)
    follower = a_job(
        service="shop", type="bill", payload="null", relations=relations,
        after=(Prerequisite(source.id),),
    )  # fmt: skip
    await accept(engine, source, follower)
    await deploy(engine, shop(int | str), "refuse")
    (check,) = (await Operator(engine).plan_contract(shop(int | bool | str))).payloads
    assert (check.checked, check.invalid) == (1, 0)


async def test_an_acceptance_is_for_the_contract_that_was_compared() -> None:
    memory = MemoryEngine()
    await deploy(memory, shop())
    reads: list[str] = []

    def deploy_meanwhile(call: Call) -> None:
        if call.verb == "contracts" and not reads:
            reads.append(call.verb)
            run_through(deploy(memory, shop(str)))

    operator = Operator(instrumented(memory, deploy_meanwhile))
    found = await operator.accept_contract(shop(str), "why not")
    assert (found.deployed, found.changes) == (2, ())
    assert await statuses(memory) == ["2 deployed", "1 deployed"]


async def test_a_contract_is_found_by_its_number(engine: Engine) -> None:
    operator = Operator(engine)
    with pytest.raises(NotFound, match="no deployed contract"):
        await operator.contract("shop")
    await deploy(engine, shop())
    await operator.accept_contract(shop(str), "why not")
    assert (await operator.contract("shop")).number == 1
    assert (await operator.contract("shop", 2)).status == "accepted"
    with pytest.raises(NotFound, match="no contract 7"):
        await operator.contract("shop", 7)


async def test_a_contract_value_can_be_planned(engine: Engine) -> None:
    declared: Contract = shop().contract
    plan = await Operator(engine).plan_contract(declared)
    assert (plan.deployed, [each.kind for each in plan.changes]) == (None, ["update"])


async def test_a_worker_reports_the_contract_it_has_deployed() -> None:
    service = Service("shop", "memory://")

    @service.job
    async def bill(order: int) -> None: ...

    async with service, service.worker():
        operator = Operator(await service.connection.engine())
        (worker,) = await operator.workers()
        (stored,) = await operator.contracts()
        assert worker.contracts == {"shop": stored.fingerprint}
