"""Contracts: what a file may say, what its silence means, and that nothing is lost in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from tests.core.contract_strategies import contracts
from trellis.core.contracts import Contract, parse_contract, read_contract
from trellis.errors import ContractInvalid, ContractTooNew, InvalidName

#: As the design of the form has it.
SYNC: dict[str, Any] = {
    "payload": {"type": "object", "properties": {"origin": {"type": "string"}}},
    "concurrency": 4,
    "keyConcurrency": {"key": ["zendesk", "/origin", "tickets"], "maxActive": 1},
    "queue": {"maxQueuedPerKey": 1, "whenFull": "reject"},
}


def contract(entry: dict[str, Any], **more: Any) -> Contract:  # noqa: ANN401 - JSON
    return read_contract({"service": "shop", "jobs": {"sync": entry}, **more})


def test_what_a_file_leaves_out_has_a_default() -> None:
    entry = contract(SYNC).jobs["sync"]
    assert (entry["maxDeliver"], entry["ackWaitMs"]) == (5, 300_000)
    assert entry["backoffMs"] == [5000, 30_000, 120_000, 600_000, 1_800_000]
    assert (entry["onLost"], entry["onShutdown"], entry["dlq"]) == ("stale", "requeue", True)
    assert entry["keyConcurrency"]["key"] == "zendesk/{origin}/tickets"
    keyed = {"payload": {}, "keyConcurrency": {"key": ["a"]}}
    entry = contract(keyed).jobs["sync"]
    assert entry["queue"] == {"maxQueuedPerKey": 0, "whenFull": "reject"}
    assert entry["keyConcurrency"]["maxActive"] == 1


def test_a_job_without_a_key_is_run_again_when_its_worker_is_lost() -> None:
    assert contract({"payload": {}}).jobs["sync"]["onLost"] == "retry"


@pytest.mark.parametrize(("stale", "lost"), [("fail-stale", "stale"), ("block", "block")])
def test_a_stale_policy_is_what_happens_to_a_lost_job(stale: str, lost: str) -> None:
    key = {"key": ["a"], "stalePolicy": stale}
    found = contract({"payload": {}, "keyConcurrency": key})
    assert found.jobs["sync"]["onLost"] == lost
    assert found.document()["jobs"]["sync"]["keyConcurrency"]["stalePolicy"] == stale


@given(contracts)
def test_a_contract_that_is_written_and_read_is_the_same(written: Contract) -> None:
    assert parse_contract(written.text()) == written
    assert parse_contract(json.dumps(written.document())) == written


def test_fields_of_newer_versions_and_other_programs_are_kept() -> None:
    found = contract({"payload": {}, "fairness": {"by": "tenant"}}, rpc={"ping": {}})
    document = json.loads(found.text())
    assert document["rpc"] == {"ping": {}}
    assert document["jobs"]["sync"]["fairness"] == {"by": "tenant"}


def test_a_template_that_is_no_list_is_written_as_a_text() -> None:
    found = contract({"payload": {}, "keyConcurrency": {"key": "user-{id}"}})
    assert found.document()["jobs"]["sync"]["keyConcurrency"]["key"] == "user-{id}"


def test_a_contract_of_a_newer_format_is_refused() -> None:
    with pytest.raises(ContractTooNew, match="Upgrade Trellis here"):
        read_contract({"format": "trellis.jobs/2", "service": "shop", "jobs": {}})


@pytest.mark.parametrize(
    "document", [[], {}, {"jobs": []}, {"jobs": {}, "format": "openapi/3"}, {"jobs": {}}, 7]
)
def test_a_document_that_is_no_contract_is_refused(document: Any) -> None:  # noqa: ANN401 - JSON
    with pytest.raises(ContractInvalid):
        read_contract(document)


def test_a_file_that_is_not_json_is_refused() -> None:
    with pytest.raises(ContractInvalid, match="not JSON"):
        parse_contract("jobs: {}")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"maxDeliver": 0}, "jobs.sync.maxDeliver is 0. Write a whole number of at least 1"),
        ({"maxDeliver": True}, "maxDeliver"),
        ({"backoffMs": []}, "backoffMs"),
        ({"ackWaitMs": "5m"}, 'jobs.sync.ackWaitMs is "5m"'),
        ({"onLost": "forget"}, "one of retry, fail, stale, block"),
        ({"dlq": "yes"}, "true or false"),
        ({"retry": {"factor": 0}}, "a number above 0"),
        ({"retry": []}, "retry is not an object"),
        ({"keyConcurrency": {}}, "keyConcurrency.key"),
        ({"keyConcurrency": {"key": ["{a}"]}}, "has braces"),
        ({"keyConcurrency": {"key": ["a"], "stalePolicy": "drop"}}, "fail-stale, block"),
        (
            {"keyConcurrency": {"key": ["a"], "stalePolicy": "block"}, "onLost": "fail"},
            "contradict",
        ),
        (
            {"keyConcurrency": {"key": ["a"], "heartbeatIntervalMs": 9, "heartbeatTtlMs": 9}},
            "must exceed",
        ),
        ({"queue": {"whenFull": "wait"}}, "the type has no keyConcurrency"),
        ({"limit": {"active": 0}}, "a limit, like"),
        ({"hooks": [{"on": "monday", "type": "a"}]}, "a list of hooks"),
        ({"keyConcurrency": {"key": ["a"], "rate": "often"}}, "null or a rate"),
        ({"keyConcurrency": {"key": ["a"], "burst": 3}}, "sync.keyConcurrency: .*burst"),
        ({"fair": "{a}"}, "fair is not an object"),
        ({"fair": {}}, "fair.template"),
        ({"fair": {"template": "{a"}}, "sync.fair.template: .* is not a key template"),
        ({"fair": {"template": ["/a"], "weights": {"gold": 0}}}, "from 1 to 1000 by tenant"),
        ({"fair": {"template": ["/a"], "weights": ["gold"]}}, "from 1 to 1000 by tenant"),
        ({"payload": "Order"}, "a JSON schema"),
    ],
)
def test_a_wrong_field_is_named(field: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractInvalid, match=message):
        contract({"payload": {}, **field})


def test_names_are_checked() -> None:
    with pytest.raises(InvalidName):
        read_contract({"service": "shop", "jobs": {"a b": {"payload": {}}}})
