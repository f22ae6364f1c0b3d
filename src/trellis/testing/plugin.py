"""The pytest plugin: the fixture `trellis_sandbox`.

pytest imports this module in every test run, so it imports nothing of Trellis until a test asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trellis.testing.sandboxes.sandbox import Sandbox


@pytest.fixture
def trellis_sandbox() -> Iterator[Sandbox]:
    """Every service on a memory engine with a manual clock, for this test alone.

    Run what was created with `run_all` (or `run_all_sync` in a plain test), look at it with
    `created`, make attempts fail with `fail_next`, let time pass with `advance`.
    """
    from trellis.testing.sandboxes.sandbox import sandbox  # noqa: PLC0415 - loaded when asked for

    with sandbox() as box:
        yield box
