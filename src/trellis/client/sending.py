"""Sending new jobs to the engine so that a lost reply or a busy moment makes no second job.

A repeated call of the program would make new ids, and with them new jobs. Only here, where the ids
are known, can a call be repeated without harm: the engine stores each id once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from trellis.core.job import NewJob
from trellis.engines.port import Engine
from trellis.engines.values import CreateResult
from trellis.errors import DiskFull, EngineClosed, EngineUnavailable, OutcomeUnknown

_PAUSES: Final = (0.05, 0.2, 0.5)


async def send(engine: Engine, jobs: Sequence[NewJob]) -> list[CreateResult]:
    """Store these jobs, trying a few times; raise if the engine is closed, full or stays away."""
    pauses = iter(_PAUSES)
    doubt: OutcomeUnknown | None = None
    while True:
        try:
            return await engine.create(jobs)
        except (OutcomeUnknown, EngineUnavailable) as error:
            if isinstance(error, OutcomeUnknown):
                doubt = error
            pause = next(pauses, None)
            if pause is None or isinstance(error, DiskFull | EngineClosed):
                if doubt is None or doubt is error:
                    raise
                # An earlier try may have stored them: a later one that did not must not deny it.
                raise doubt from error
        await asyncio.sleep(pause)
