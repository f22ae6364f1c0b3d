"""The pytest plugin: the fixture `trellis_sandbox`.

pytest imports this module in every test run, so it imports Trellis only when a test needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trellis.testing.sandboxes.sandbox import Sandbox


@pytest.fixture
def trellis_sandbox() -> Iterator[Sandbox]:
    """Every service on a memory engine with a manual clock, for one test.

    Run the created jobs with `run_all` (`run_all_sync` in a plain test), read them with `created`,
    make attempts fail with `fail_next`, let time pass with `advance`.
    """
    from trellis.testing.sandboxes.sandbox import sandbox  # noqa: PLC0415 - loaded when it is used

    with sandbox() as box:
        yield box
