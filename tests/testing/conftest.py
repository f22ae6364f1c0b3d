"""A fresh shop for every test."""

from __future__ import annotations

import pytest

from tests.testing import shop


@pytest.fixture(autouse=True)
def an_empty_shop() -> None:
    shop.SENT.clear()
    shop.OPENED.clear()
