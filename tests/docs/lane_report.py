"""A plugin of pytest that prints the lane of every test that is collected."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Print each test behind its lane."""
    for item in items:
        lane = "short" if item.get_closest_marker("long") is None else "long"
        print(f"{lane}\t{item.nodeid}")
