"""Upgraders: which are refused, and how they turn an old payload into a new one."""

from __future__ import annotations

from typing import Any

import pytest

from trellis import ConfigurationError, Service
from trellis.declaration.upgrades import Upgrades
from trellis.errors import PayloadTooNew, UpgradeFailed, UpgradeMissing
from trellis.worker.local_type import LocalType


def add(name: str) -> Any:  # noqa: ANN401 - an upgrader
    return lambda old: {**old, name: True}


def test_steps_are_applied_in_turn() -> None:
    upgrades = Upgrades("shop/bill", 4)
    for version in (3, 1, 2):
        upgrades.add(version, add(f"from_{version}"))
    assert upgrades.versions == (1, 2, 3)
    assert upgrades.apply('{"a":1}', 1) == '{"a":1,"from_1":true,"from_2":true,"from_3":true}'
    assert upgrades.apply('{"a":1}', 3) == '{"a":1,"from_3":true}'


def test_the_oldest_versions_may_be_given_up() -> None:
    upgrades = Upgrades("shop/bill", 3)
    upgrades.add(2, add("x"))
    assert upgrades.versions == (2,)
    with pytest.raises(UpgradeMissing, match="no upgrader from version 1"):
        upgrades.apply("{}", 1)


def test_a_gap_between_steps_is_refused_before_a_job_runs() -> None:
    service = Service("shop", "memory://")

    @service.job(schema_version=4)
    def bill(order: int) -> None: ...

    bill.upgrade(from_version=1)(add("x"))
    bill.upgrade(from_version=3)(add("x"))
    with pytest.raises(ConfigurationError, match="none from version 2"):
        LocalType(bill.job_type)


@pytest.mark.parametrize(
    ("version", "message"),
    [(2, "Raise schema_version to 3"), (5, "Raise schema_version to 6"), (0, "at least 1")],
)
def test_a_step_that_leads_nowhere_is_refused(version: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Upgrades("shop/bill", 2).add(version, add("x"))


def test_two_upgraders_from_one_version_are_refused() -> None:
    upgrades = Upgrades("shop/bill", 2)
    upgrades.add(1, add("x"))
    with pytest.raises(ConfigurationError, match="already has an upgrader from version 1"):
        upgrades.add(1, add("y"))


def test_an_upgrader_is_a_plain_function() -> None:
    async def upgrade(old: Any) -> Any:  # noqa: ANN401 - plain data
        return old

    with pytest.raises(ConfigurationError, match="write it with `def`"):
        Upgrades("shop/bill", 2).add(1, upgrade)


def test_a_version_must_be_a_number_from_one() -> None:
    service = Service("shop", "memory://")
    with pytest.raises(ConfigurationError, match="schema_version"):
        service.declare("bill", payload=int, result=int, schema_version=0)


@pytest.mark.parametrize("upgrade", [lambda old: old["gone"], lambda _: {1, 2}])
def test_an_upgrader_that_fails_says_which_it_was(upgrade: Any) -> None:  # noqa: ANN401 - an upgrader
    upgrades = Upgrades("shop/bill", 2)
    upgrades.add(1, upgrade)
    with pytest.raises(UpgradeFailed, match="from schema version 1 failed with"):
        upgrades.apply("{}", 1)


def test_a_newer_payload_is_not_read() -> None:
    with pytest.raises(PayloadTooNew, match="schema version 3, and this program knows"):
        Upgrades("shop/bill", 2).apply("{}", 3)
