"""The service of the shop."""

from __future__ import annotations

from trellis import Service

app = Service("shop")
