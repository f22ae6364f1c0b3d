"""A new job from an old one's definition, linked to it; the old one stays as it is."""

from __future__ import annotations

from trellis.core.job import JobId, NewJob
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, Coalesced, Rejected, Replaced
from trellis.errors import AdmissionError, JobNotFound


async def clone(engine: Engine, job_id: JobId, new_id: JobId) -> JobId:
    """Create a new job from an old one's definition, linked to it; return its id.

    The same payload, policies, context and key; no delay, deadline, dedupe or idempotency key.
    """
    record = (await engine.load([job_id])).records[0]
    if record is None:
        raise JobNotFound(
            f"There is no job {job_id}. It was never created, or retention removed it.",
            job_id=job_id,
        )
    old = record.definition
    new = NewJob(
        id=new_id,
        service=old.service,
        type=old.type,
        queue=old.queue,
        payload=old.payload,
        policy=old.policy,
        context=old.context,
        priority=old.priority,
        key=old.key,
        key_hash=old.key_hash,
        tags=old.tags,
        config=old.config,
        expect=old.expect,
        schema_version=old.schema_version,
        clone_of=old.id,
    )
    (answer,) = await engine.create([new])
    match answer:
        case Accepted() | Replaced():
            return new_id
        case Coalesced(existing):
            return existing
        case Rejected(reason, existing):
            raise AdmissionError(
                f"Job {job_id} cannot be cloned now ({reason}); job {existing} is in the way.",
                existing=existing,
            )
