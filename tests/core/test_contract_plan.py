"""The plan of a contract change: every change is an update or a migration, by its rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.core.contract_strategies import OTHERS, contracts, mutations
from trellis.core.contract_plan import RULED_FIELDS, Change, plan
from trellis.core.contracts import KNOWN_FIELDS, Contract, read_contract

OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}
KEYED: dict[str, Any] = {
    "keyConcurrency": {"key": ["user", "/a"], "maxActive": 2},
    "queue": {"maxQueuedPerKey": 5},
}


def contract(**fields: Any) -> Contract:  # noqa: ANN401 - JSON
    return read_contract({"service": "shop", "jobs": {"sync": {"payload": OBJECT, **fields}}})


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    return list(plan(contract(**before), contract(**after)).changes)


def kinds(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{each.path.removeprefix('jobs.sync.')} {each.kind}" for each in changes(before, after)
    ]


def test_every_field_has_a_rule() -> None:
    assert KNOWN_FIELDS == RULED_FIELDS == OTHERS.keys()


@given(contracts)
def test_nothing_changes_between_equal_contracts(same: Contract) -> None:
    assert plan(same, same).changes == ()


@given(contracts)
def test_every_change_of_one_field_is_classified(before: Contract) -> None:
    for name in before.jobs:
        for path, after in mutations(before, name):
            (change,) = plan(before, after).changes
            field = "backoffMs" if path.startswith("retry.") and path in BACKOFF else path
            assert change.path == f"jobs.{name}.{field}"
            assert change.kind in {"update", "migration"}
            assert change.why


BACKOFF = {"retry.shape", "retry.factor", "retry.capMs"}


@given(contracts, contracts)
def test_a_change_there_and_back_names_the_same_fields(one: Contract, other: Contract) -> None:
    there, back = plan(one, other).changes, plan(other, one).changes
    assert [each.path for each in there] == [each.path for each in back]
    assert [(each.before, each.after) for each in there] == [
        (each.after, each.before) for each in back
    ]


def test_the_first_deployment_only_adds() -> None:
    assert [each.kind for each in plan(None, contract()).changes] == ["update"]


def test_adding_a_type_is_an_update_and_removing_one_a_migration() -> None:
    none = read_contract({"service": "shop", "jobs": {}})
    assert [each.kind for each in plan(none, contract()).changes] == ["update"]
    assert [each.kind for each in plan(contract(), none).changes] == ["migration"]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ({"maxDeliver": 3}, {"maxDeliver": 4}),
        ({"ackWaitMs": 3}, {"ackWaitMs": 4}),
        ({"ackWaitMs": 3}, {"ackWaitMs": None}),
        ({"timeoutMs": 3}, {"timeoutMs": 4}),
        ({"deadlineMs": 3}, {"deadlineMs": None}),
        ({"backoffMs": [3, 9]}, {"backoffMs": [3, 10]}),
        ({"backoffMs": [3, 9]}, {"backoffMs": [5], "retry": {"shape": "exponential"}}),
        ({"maxCrashes": 1}, {"maxCrashes": 2}),
        ({"retentionMs": {"dead": 1}}, {"retentionMs": {"dead": 2}}),
        ({"dlq": False}, {"dlq": True}),
        ({"retry": {"on": ["OSError"]}}, {"retry": {"on": []}}),
        ({"retry": {"on": ["OSError"]}}, {"retry": {"on": ["KeyError", "OSError"]}}),
        ({"retry": {"neverOn": ["OSError"]}}, {"retry": {"neverOn": []}}),
    ],
    ids=str,
)
def test_more_is_an_update_and_less_a_migration(low: dict[str, Any], high: dict[str, Any]) -> None:
    assert [each.kind for each in changes(low, high)] == ["update"]
    assert [each.kind for each in changes(high, low)] == ["migration"]


def test_concurrency_may_change_at_any_time() -> None:
    assert kinds({"concurrency": 4}, {"concurrency": 1}) == ["concurrency update"]
    assert kinds({"concurrency": 1}, {"concurrency": 4}) == ["concurrency update"]


def test_limits_only_delay_jobs_but_a_hook_that_is_gone_is_missed() -> None:
    limit, hook = {"limit": {"active": 1}}, {"hooks": [{"on": "failure", "type": "report"}]}
    assert kinds({}, limit) == kinds(limit, {}) == ["limit update"]
    assert kinds({}, hook) == ["hooks update"]
    assert kinds(hook, {}) == ["hooks migration"]


def test_a_shorter_list_of_delays_is_compared_by_what_jobs_wait() -> None:
    assert kinds({"backoffMs": [1, 5, 9]}, {"backoffMs": [1, 5]}) == ["backoffMs migration"]
    assert kinds({"backoffMs": [1, 5, 5]}, {"backoffMs": [1, 5]}) == ["backoffMs update"]


def test_adding_or_removing_a_key_is_a_migration() -> None:
    assert kinds({}, {**KEYED, "onLost": "retry"}) == ["keyConcurrency migration"]
    assert kinds({**KEYED, "onLost": "retry"}, {}) == ["keyConcurrency migration"]


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("keyConcurrency.maxActive", 1, "migration"),
        ("keyConcurrency.maxActive", 3, "update"),
        ("keyConcurrency.key", ["other", "/a"], "migration"),
        ("keyConcurrency.hold", "job", "migration"),
        ("queue.maxQueuedPerKey", 4, "migration"),
        ("queue.maxQueuedPerKey", None, "update"),
    ],
)
def test_the_limits_of_a_key_may_only_be_relaxed(field: str, value: object, kind: str) -> None:
    outer, _, inner = field.partition(".")
    after = {**KEYED, outer: {**KEYED[outer], inner: value}}
    assert kinds(KEYED, after) == [f"{field} {kind}"]


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [
        ({}, {"rate": "100/1m"}, "migration"),
        ({"rate": "100/1m"}, {}, "update"),
        ({"rate": "100/1m"}, {"rate": "2/1s"}, "migration"),  # fewer of them at once
        ({"rate": "100/1m"}, {"rate": "2/1s", "burst": 100}, "update"),
        ({"rate": "2/1s", "burst": 100}, {"rate": "100/1m"}, "migration"),
        ({"rate": "2/1s", "burst": 2}, {"rate": "2/1s"}, "update"),
        ({"rate": "2/1s"}, {"rate": "2/1s", "burst": 1}, "migration"),
    ],
    ids=str,
)
def test_the_rate_of_a_key_may_only_be_relaxed(
    was: dict[str, Any], now: dict[str, Any], kind: str
) -> None:
    before, after = (
        {**KEYED, "keyConcurrency": {**KEYED["keyConcurrency"], **rate}} for rate in (was, now)
    )
    assert {each.kind for each in changes(before, after)} == {kind}


def test_a_new_source_of_tenants_is_a_migration() -> None:
    fair, other = ({"fair": {"template": [each]}} for each in ("/a", "/b"))
    weighted = {"fair": {"template": ["/a"], "weights": {"gold": 3}}}
    assert kinds({}, weighted) == ["fair migration"]
    assert kinds(weighted, {}) == ["fair update"]
    assert kinds(fair, other) == ["fair.template migration"]
    assert kinds(fair, weighted) == kinds(weighted, fair) == ["fair.weights update"]


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [
        ("reject", "coalesce", "update"),
        ("reject", "replace-oldest", "update"),
        ("reject", "wait", "update"),
        ("coalesce", "wait", "update"),
        ("coalesce", "reject", "migration"),
        ("replace-oldest", "reject", "migration"),
        ("wait", "reject", "migration"),
        ("wait", "coalesce", "migration"),
        ("coalesce", "replace-oldest", "migration"),
    ],
)
def test_what_a_full_key_does_may_only_be_relaxed(was: str, now: str, kind: str) -> None:
    before, after = ({**KEYED, "queue": {"whenFull": word}} for word in (was, now))
    assert kinds(before, after) == [f"queue.whenFull {kind}"]


def test_disabling_dead_letters_matters_only_where_there_are_some() -> None:
    before, after = contract(dlq=True), contract(dlq=False)
    assert plan(before, after, frozenset()).migrations == ()
    assert len(plan(before, after, frozenset({"sync"})).migrations) == 1
    assert len(plan(before, after).migrations) == 1


def test_a_renamed_queue_and_another_end_of_lost_jobs_are_migrations() -> None:
    assert kinds({}, {"queueName": "other"}) == ["queueName migration"]
    assert kinds({}, {"onLost": "fail"}) == ["onLost migration"]
    assert kinds({"onShutdown": "fail"}, {}) == ["onShutdown migration"]


def test_a_payload_may_be_wider_but_not_narrower() -> None:
    required = {"payload": {**OBJECT, "required": ["a"]}}
    assert kinds(required, {}) == ["payload update"]
    (change,) = changes({}, required)
    assert (change.kind, change.why) == (
        "migration",
        "Waiting jobs may be refused: a: it is required now.",
    )
    assert kinds({"result": {}}, {"result": {"type": "string"}}) == ["result migration"]
    assert kinds({"result": {"type": "string"}}, {"result": None}) == ["result update"]
    assert kinds({"payload": None}, {}) == ["payload migration"]


def test_a_higher_schema_version_with_upgraders_is_an_update() -> None:
    narrow = {"payload": {"type": "integer"}, "schemaVersion": 3}
    assert kinds({}, {**narrow, "upgradesFrom": [1, 2]}) == [
        "payload update",
        "schemaVersion update",
        "upgradesFrom update",
    ]
    assert kinds({}, {**narrow, "upgradesFrom": [2]})[1] == "schemaVersion migration"
    assert kinds({"schemaVersion": 2}, {"schemaVersion": 1}) == ["schemaVersion migration"]


def test_an_upgrader_that_is_gone_is_a_migration() -> None:
    both, one = ({"schemaVersion": 3, "upgradesFrom": each} for each in ([1, 2], [2]))
    assert kinds(both, one) == ["upgradesFrom migration"]


def test_what_a_newer_version_wrote_is_never_dropped_silently() -> None:
    assert kinds({"fairness": 1}, {}) == ["fairness migration"]
    assert kinds({}, {"fairness": 1}) == ["fairness migration"]
    newer = contract()._replace(extra={"limits": {"sync": 3}})
    (change,) = plan(newer, contract()).changes
    assert (change.path, change.kind) == ("limits", "migration")
    assert "newer version" in change.why
    assert plan(contract(), newer).changes == ()
