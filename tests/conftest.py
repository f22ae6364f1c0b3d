"""What all tests share."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

pytest.register_assert_rewrite("trellis.testing.conformance", "trellis.testing.model")

#: How many tests of the conformance suite were collected, per engine, before any was deselected.
COLLECTED: Final = pytest.StashKey[Counter[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count the conformance tests per engine."""
    counted: Counter[str] = Counter()
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "engine_name" in callspec.params:
            counted[callspec.params["engine_name"]] += 1
    config.stash[COLLECTED] = counted
