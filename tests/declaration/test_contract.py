"""The contract of declared types, and types that are declared by a contract."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, SecretStr

from trellis import (
    ConfigurationError,
    Fair,
    Outcome,
    PayloadInvalid,
    PerKey,
    Rejected,
    Retry,
    Service,
)
from trellis.core.contracts import read_contract
from trellis.core.job import JobId, Relations
from trellis.core.limits import Limit
from trellis.core.policy import Hook, KeyPolicy, Policy
from trellis.declaration.contract import contract_fingerprint, load_contract
from trellis.declaration.options import DeclareOptions, PolicyOptions
from trellis.engines.demand import Demand
from trellis.errors import ContractInvalid
from trellis.testing.builders import complete
from trellis.testing.conformance.helpers import a_session, claim, settle


@dataclass
class Order:
    """An order."""

    number: int
    currency: str = "EUR"


class Small(msgspec.Struct):
    number: int


class Card(BaseModel):
    number: SecretStr


def shop(**options: Any) -> Service:  # noqa: ANN401 - options of a type
    service = Service("shop", "memory://")
    service.declare("bill", payload=Order, result=str, **options)
    return service


def test_a_contract_says_everything_that_was_declared() -> None:
    service = shop(
        retry=Retry.exponential("5s", never_on=(ValueError,)),
        per_key=PerKey.in_turn(["customer", "/number"]),
        timeout="10m",
        deadline="1h",
        queue="letters",
        schema_version=2,
        dead_letters=False,
        on_lost="stale",
        limit=Limit(active=3),
    )
    service.find("bill").upgrade(from_version=1)(lambda old: old)
    entry = service.contract.jobs["bill"]
    assert entry["payload"] == {
        "type": "object",
        "properties": {
            "number": {"type": "integer"},
            "currency": {"type": "string", "default": "EUR"},
        },
        "required": ["number"],
    }
    assert entry["keyConcurrency"]["key"] == "customer/{number}"
    assert (entry["retry"]["shape"], entry["retry"]["neverOn"]) == ("exponential", ["ValueError"])
    assert (entry["timeoutMs"], entry["deadlineMs"], entry["queueName"]) == (
        600_000,
        3_600_000,
        "letters",
    )
    assert (entry["schemaVersion"], entry["upgradesFrom"]) == (2, [1])
    assert (entry["dlq"], entry["onLost"]) == (False, "stale")
    assert entry["limit"] == {"active": 3, "rate": None, "burst": None}


def test_equal_declarations_have_one_fingerprint() -> None:
    one, same, other = shop(), shop(), shop(timeout="1m")
    assert contract_fingerprint(one.contract) == contract_fingerprint(same.contract)
    assert contract_fingerprint(one.contract) != contract_fingerprint(other.contract)


def test_every_kind_of_type_has_a_schema() -> None:
    service = Service("shop", "memory://")
    service.declare("nothing", result=None)  # type: ignore[call-overload]
    service.declare("struct", payload=Small, result=list[int])
    service.declare("builtin", payload=dict[str, Any], result=Any)
    jobs = service.contract.jobs
    assert jobs["nothing"]["payload"] is None
    assert jobs["struct"]["payload"]["$defs"]["Small"]["required"] == ["number"]
    assert jobs["struct"]["result"] == {"type": "array", "items": {"type": "integer"}}
    assert jobs["builtin"]["payload"]["type"] == "object"


async def test_a_service_declares_the_types_of_a_contract_without_handlers() -> None:
    contract = shop(per_key=PerKey("order/{number}", queued=3), retry=Retry.fixed("3s")).contract
    producer = Service("shop", "memory://")
    declared = producer.declare_all(contract.document())
    assert producer.contract == contract
    async with producer:
        ref = await declared["bill"].create({"number": 7})
        assert (await ref.status()).key == "order/7"
        with pytest.raises(PayloadInvalid, match="number: it must be integer"):
            await declared["bill"].create({"number": "7"})
        with pytest.raises(PayloadInvalid, match="number: it is required"):
            await declared["bill"].create_many([{}])


#: The example of the form of contracts: of each origin one job runs and one waits.
TICKETS: dict[str, Any] = {
    "service": "helpdesk",
    "jobs": {
        "sync": {
            "payload": {"type": "object", "properties": {"origin": {"type": "string"}}},
            "concurrency": 4,
            "keyConcurrency": {"key": ["zendesk", "/origin", "tickets"], "maxActive": 1},
            "queue": {"maxQueuedPerKey": 1, "whenFull": "reject"},
        }
    },
}


async def test_a_third_request_of_a_key_with_one_running_and_one_waiting_is_refused() -> None:
    helpdesk = Service("helpdesk", "memory://")
    sync = helpdesk.declare_all(TICKETS)["sync"]
    async with helpdesk:
        engine = await helpdesk.connection.engine()
        first = await sync.create({"origin": "a"})
        session = await a_session(engine)
        (taken,) = await claim(engine, session, Demand("helpdesk", ("sync",), 9))
        assert taken.definition.id == first.id
        assert taken.definition.key == "zendesk/a/tickets"
        second = await sync.create({"origin": "a"})
        refused = await sync.submit({"origin": "a"})
        assert isinstance(refused, Rejected)
        assert (refused.reason, refused.existing) == ("queue_full", first.id)
        await sync.create({"origin": "b"})
        await settle(engine, taken, complete(taken))
        started = await claim(engine, session, Demand("helpdesk", ("sync",), 9))
        assert second.id in {each.definition.id for each in started}
        await sync.create({"origin": "a"})


#: An option of a type that differs from its default, or why a contract does not have it.
DECLARED: dict[str, object] = {
    "retry": Retry.exponential("5s", attempts=7, never_on=(ValueError,)),
    "timeout": "10m",
    "activity_timeout": "1m",
    "cancel_grace": "7s",
    "on_lost": "fail",
    "on_shutdown": "fail",
    "dead_letters": False,
    "max_crashes": 2,
    "per_key": PerKey("order/{number}", 2, 3, "coalesce", "job", "5/1m", 2),
    "retention": {"completed": "1h", "failed": "2h", "dead": "3h", "other": "4h"},
    "queue": "letters",
    "concurrency": 3,
    "limit": Limit(active=3, rate="100/1m", burst=7),
    "fair": Fair("{currency}", weights={"EUR": 3}),
    "deadline": "1h",
    "capture_logs": False,
    "schema_version": 2,
}
#: What workers alone need: code, and where it runs.
OF_WORKERS = {"isolation", "config", "around"}
#: What a policy has from elsewhere than an option: the schemas, and decorators.
DERIVED = {"secrets", "hooks"}


def test_every_option_of_a_type_is_declared_here_or_not_part_of_a_contract() -> None:
    assert DeclareOptions.__annotations__.keys() == DECLARED.keys() | OF_WORKERS
    renamed = {"per_key": "key"}
    assert {each.name for each in fields(Policy)} == DERIVED | {
        renamed.get(each, each) for each in PolicyOptions.__annotations__
    }
    key, usual = PerKey("order/{number}"), DECLARED["per_key"]
    assert isinstance(usual, PerKey)
    for each in fields(KeyPolicy):  # each of them must survive the way through a contract
        changed = getattr(usual.policy(), each.name) != getattr(key.policy(), each.name)
        assert changed or each.name == "template"


@pytest.mark.parametrize("option", DECLARED)
def test_every_option_survives_the_way_through_a_contract(option: str) -> None:
    service = shop(**{option: DECLARED[option]})
    assert service.contract != shop().contract
    reader = Service("shop", "memory://")
    found = reader.declare_all(json.loads(service.contract.text()))["bill"].job_type
    assert reader.contract == service.contract
    (declared,) = service.job_types
    for name in ("policy", "queue", "concurrency", "limit", "fair", "deadline", "capture_logs"):
        assert getattr(found, name) == getattr(declared, name)
    assert found.schema_version == declared.schema_version


def test_secrets_survive_the_way_through_a_contract() -> None:
    service = Service("shop", "memory://")
    service.declare("pay", payload=Card, result=str)
    reader = Service("shop", "memory://")
    policy = reader.declare_all(service.contract.document())["pay"].job_type.policy
    assert policy.secrets == ("/payload/number",)


def test_hooks_survive_the_way_through_a_contract() -> None:
    service = shop()
    job = service.find("bill")

    def report(ended: Outcome) -> None: ...

    job.on_finished(queue="mails", schema_version=2, deadline="1h")(report)
    reader = Service("shop", "memory://")
    declared = reader.declare_all(service.contract.document())
    assert reader.contract == service.contract
    assert declared["bill"].job_type.policy == job.job_type.policy
    with pytest.raises(ConfigurationError, match="hook has no hooks"):
        declared["bill-on_finished"].on_failure(report)


def test_a_hook_whose_type_the_contract_does_not_have_waits_in_its_own_queue() -> None:
    document = {"jobs": {"sync": {"payload": {}, "hooks": [{"on": "failure", "type": "report"}]}}}
    declared = Service("shop", "memory://").declare_all(document)
    assert declared["sync"].job_type.policy.hooks == (Hook("failure", "report", "report"),)


async def test_a_producer_with_a_contract_alone_keeps_rates_and_tenants() -> None:
    options = {name: DECLARED[name] for name in ("per_key", "fair")}
    producer = Service("shop", "memory://")
    declared = producer.declare_all(shop(**options).contract.document())
    async with producer:
        ref = await declared["bill"].create({"number": 7, "currency": "EUR"})
        (found,) = (await (await producer.connection.engine()).load([JobId(ref.id)])).records
    assert found is not None
    assert found.definition.relations == Relations(tenant="EUR", weight=3)
    assert found.definition.policy.key == KeyPolicy(
        "order/{number}", 2, 3, "coalesce", "job", "5/1m", 2
    )


def test_a_contract_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "shop.json"
    file.write_text(json.dumps(shop().contract.document()))
    assert list(Service("shop", "memory://").declare_all(file)) == ["bill"]
    assert load_contract(str(file)) == shop().contract
    file.write_text("[]")
    with pytest.raises(ContractInvalid, match=r"shop\.json: This is not a contract"):
        load_contract(file)
    with pytest.raises(ContractInvalid, match="cannot be read"):
        load_contract(tmp_path / "none.json")


def test_the_contract_of_another_service_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="of service 'shop', and this is 'mail'"):
        Service("mail", "memory://").declare_all(shop().contract)


def test_defaults_of_the_form_become_options() -> None:
    document = {"jobs": {"sync": {"payload": {}, "keyConcurrency": {"key": ["a", "/b"]}}}}
    service = Service("shop", "memory://")
    policy = service.declare_all(document)["sync"].job_type.policy
    assert policy.key is not None
    assert (policy.on_lost, policy.key.template, policy.key.queued) == ("stale", "a/{b}", 0)
    assert policy.activity_timeout == 300_000_000
    assert service.contract == read_contract(document, "shop")
