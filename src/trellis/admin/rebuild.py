"""Making the projection again from the first message.

Everything that was projected is removed in one transaction, with the place in the streams. Runtimes
that are running see that and project from the beginning, together with this program; a crash leaves
a projection that the next runtime continues. Until it has caught up, lists are not complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from trellis.admin.runtime import AdminRuntime

_LOOK: Final = 0.05


async def rebuild(runtime: AdminRuntime, report: Callable[[int, int], None]) -> int:
    """Project everything that the stream of the jobs has now; return its last sequence.

    `report` is called with the place and the end, now and then.
    """
    await runtime.projection.erase()
    end = await runtime.jobs.last()
    while (place := await runtime.projection.place(runtime.jobs.stream)) < end:
        report(place, end)
        runtime.jobs.wake()
        await asyncio.sleep(_LOOK)
    await runtime.answers.catch_up()
    report(end, end)
    return end
