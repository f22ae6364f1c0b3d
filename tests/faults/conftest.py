"""A server to crash."""

from __future__ import annotations

from tests.servers.fixtures import *  # noqa: F403 - fixtures are found by name
