"""Whether anybody is there to do the work: so that waiting in vain can say why."""

from __future__ import annotations

import json

from trellis.contract.declaration import JobType
from trellis.engines.port import Engine


async def nobody_works(engine: Engine, job_type: JobType) -> bool:
    """Tell whether no live worker session names this job type."""
    name = f"{job_type.service}/{job_type.name}"
    return not any(
        name in json.loads(session.info.details).get("types", ())
        for session in await engine.sessions()
        if session.ended_at is None and not session.lapsed
    )


def missing_worker(job_type: JobType) -> str:
    """Say how to start a worker for this job type."""
    name = f"{job_type.service}/{job_type.name}"
    return f"No worker for {name} is running. Start one: trellis worker your_module:service"
