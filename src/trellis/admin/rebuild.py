"""Making the projection again from the first message.

Everything that was projected is removed in one transaction, with the place in the streams. Runtimes
that are running see that and project from the beginning, together with this program; a crash leaves
a projection that the next runtime continues. Until it has caught up, lists are not complete.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from trellis.admin.projector import Projector
from trellis.admin.runtime import AdminRuntime
from trellis.errors import EngineUnavailable

_LOOK: Final = 0.05


class Progress(NamedTuple):
    """How far a rebuild is."""

    place: int
    end: int
    seconds: float

    @property
    def rate(self) -> float:
        """Messages in a second."""
        return self.place / self.seconds if self.seconds else 0.0


async def rebuild(runtime: AdminRuntime, report: Callable[[Progress], None]) -> Progress:
    """Project everything that the streams have now; return how long that took.

    `report` is called now and then, about the stream of the jobs.
    """
    began = time.monotonic()
    await runtime.projection.erase()
    end, end_of_state = await runtime.jobs.last(), await runtime.state.last()
    while (place := await _place(runtime, runtime.jobs)) < end:
        if runtime.failure is not None:
            raise runtime.failure
        with suppress(EngineUnavailable):
            end = min(end, await runtime.jobs.last())  # the stream may be made again
        report(Progress(place, end, time.monotonic() - began))
        await asyncio.sleep(_LOOK)
    # Sessions and declared types are fewer, but their projector may look later.
    while await _place(runtime, runtime.state) < end_of_state:  # noqa: ASYNC110 - it is a row
        await asyncio.sleep(_LOOK)
    return Progress(end, end, time.monotonic() - began)


async def _place(runtime: AdminRuntime, projector: Projector) -> int:
    """Return what the projection has; the projector may not know yet that it was erased."""
    projector.wake()
    found = await runtime.projection.place(projector.stream)
    return 0 if found is None else found.sequence
