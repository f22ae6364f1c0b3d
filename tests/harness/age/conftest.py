"""Databases with our tables in them, one for each test."""

from __future__ import annotations

from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
