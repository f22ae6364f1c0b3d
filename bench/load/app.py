"""The jobs of the load run."""

from __future__ import annotations

from typing import Final

from trellis import Service

#: The tag of the last job.
LAST: Final = "last-of-the-run"

service = Service("load")


@service.job
async def step(number: int) -> int:
    """Do nothing but return."""
    return number
