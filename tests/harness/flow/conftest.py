"""A server to crash, as for the other campaign."""

from __future__ import annotations

from tests.harness.faults.conftest import *  # noqa: F403 - fixtures are found by name
