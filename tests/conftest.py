"""What all tests share."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import settings

from tests.harness import warden
from tests.harness.signals import nothing_ignored_by_children
from trellis import telemetry

pytest.register_assert_rewrite("trellis.testing.conformance", "trellis.testing.model")

# No test is judged by its duration; `--hypothesis-profile` replaces this.
settings.register_profile("without_deadline", deadline=None)
settings.load_profile("without_deadline")

#: How many tests of the conformance suite were collected, per engine, before any was deselected.
COLLECTED: Final = pytest.StashKey[Counter[str]]()


def pytest_configure() -> None:
    """End what the tests start with the process that runs them, even if that is killed."""
    warden.watch()


@pytest.fixture(scope="session", autouse=True)
def _default_signals() -> Iterator[None]:
    """Start programs with the signals a terminal gives them, also under `nohup`."""
    with nothing_ignored_by_children():
        yield


@pytest.fixture(autouse=True)
def _no_telemetry_of_other_tests() -> Iterator[None]:
    """Leave telemetry as the settings have it: an application of the server switches metrics on."""
    yield
    telemetry.current.reset()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count the conformance tests per engine; begin with the tests that take longest.

    These have a timeout of their own. Begun last, one of them would run alone at the end.
    """
    counted: Counter[str] = Counter()
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "engine_name" in callspec.params:
            counted[callspec.params["engine_name"]] += 1
    config.stash[COLLECTED] = counted
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def pytest_collection_finish() -> None:
    """Let the collector of garbage skip the tests themselves: they stay until the end."""
    gc.freeze()
