"""What the queue policy of a key decided about jobs, as `Jobs.Get` and `Jobs.GetKey` show it.

`created` names the job that was replaced, and `skipped` the one that took its place. A request that
was rejected or merged is no job: only its creator gets the reason and the existing job.
"""

from __future__ import annotations

import json
from typing import Any, Final

from trellis.admin.wire_job import iso
from trellis.core.events import EventKind
from trellis.core.job import JobId, JobRecord
from trellis.core.states import State
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import JobName
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter

#: How many of the replaced jobs of a key are shown, the newest ones.
REPLACED: Final = 20


async def wire_policy(tables: Engine, store: Store, record: JobRecord) -> dict[str, Any]:
    """Return the member `queuePolicy` of a job that has a key; nothing for another job."""
    definition, head = record
    if definition.key is None:
        return {}
    job = JobName(definition.service, definition.type, definition.id)
    subject = store.subjects.event(job, EventKind.CREATED.value)
    created = await store.link.last(store.subjects.jobs, subject)
    sent = {} if created is None else json.loads(created.body)
    policy = {"outcome": "accepted"} | sent.get("queuePolicy", {})
    if head.state is State.SKIPPED:
        policy |= await _replacement(tables, definition.id)
    return {"queuePolicy": policy}


async def wire_replaced(tables: Engine, names: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Return the newest jobs of a key that were replaced: by which job, and when."""
    service, job_type, key = names
    where = JobFilter(services=(service,), types=(job_type,), key=key, states=(State.SKIPPED,))
    page = await tables.find(where, limit=REPLACED)
    return [
        {
            "jobId": definition.id,
            "skippedAt": iso(head.finished_at),
            **await _replacement(tables, definition.id),
        }
        for definition, head in page.jobs
    ]


async def _replacement(tables: Engine, job_id: JobId) -> dict[str, Any]:
    """Return why a job was skipped, and for which other one."""
    for event in reversed(await tables.journal(job_id)):
        if event.kind is EventKind.SKIPPED and event.data is not None:
            return {"reason": "replaced", "replacedByJobId": event.data["replaced_by"]}
    return {}
