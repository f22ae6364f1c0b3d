"""The contract of declared types, and types that are declared by a contract."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trellis import ConfigurationError, PayloadInvalid, PerKey, Retry, Service
from trellis.core.contracts import read_contract
from trellis.core.limits import Limit
from trellis.declaration.contract import contract_fingerprint, load_contract
from trellis.errors import ContractInvalid


@dataclass
class Order:
    """An order."""

    number: int
    currency: str = "EUR"


class Small(msgspec.Struct):
    number: int


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
