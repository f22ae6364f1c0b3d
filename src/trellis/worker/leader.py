"""The lock that the worker holds which does the upkeep for all."""

from __future__ import annotations

from typing import Final

LEADER: Final = "trellis/leader"
