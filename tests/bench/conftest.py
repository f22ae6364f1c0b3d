"""One test measures on a real server."""

from __future__ import annotations

from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures and a hook, listed there
