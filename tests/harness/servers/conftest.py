"""The servers' own tests run on them."""

from __future__ import annotations

from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures and a hook, listed there
