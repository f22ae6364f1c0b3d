"""Tests of the shop that Django's test runner runs, on the engine itself."""

from __future__ import annotations

from django.test import TransactionTestCase  # type: ignore[import-untyped]

from tests.django.shop.orders.jobs import ship


class WithoutSandbox(TransactionTestCase):  # type: ignore[misc] # Django has no types
    """Creates a job outside of any transaction, so the engine keeps its connection open."""

    def test_a_job_is_stored(self) -> None:
        assert ship.create_sync("pears").status_sync().state == "pending"
