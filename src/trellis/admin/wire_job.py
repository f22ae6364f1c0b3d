"""Jobs as the RPC `Jobs.*` shows them to programs in any language."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trellis.core.durations import Instant, to_datetime
from trellis.core.job import JobRecord
from trellis.declaration.secrets import masked
from trellis.engines.jetstream.message import LEVELS
from trellis.engines.operating import JobFacts
from trellis.engines.port import Engine
from trellis.engines.values import Activity, LogEntry

#: How many of the latest log lines a single job is shown with.
LINES = 200


def iso(at: Instant | None) -> str | None:
    """Return a moment as RFC 3339."""
    if at is None:
        return None
    return to_datetime(at).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def wire_jobs(engine: Engine, records: Sequence[JobRecord]) -> list[dict[str, Any]]:
    """Return jobs of a list: without progress and log lines."""
    facts = await engine.facts([each.definition.id for each in records])
    return [_wire(each, facts.get(each.definition.id)) for each in records]


async def wire_job(engine: Engine, record: JobRecord) -> dict[str, Any]:
    """Return one job, with the progress of its latest attempt and the end of its log."""
    job_id = record.definition.id
    (job,) = await wire_jobs(engine, [record])
    activity, lines = await engine.activity(job_id), list[LogEntry]()
    while page := await engine.logs(job_id, lines[-1].number if lines else 0):
        lines = (lines + page)[-LINES:]
    return job | _reported(activity, lines)


def written(answer: object) -> bytes:
    """Return an answer as it is sent."""
    return json.dumps(answer, ensure_ascii=False).encode()


def shortened(job: dict[str, Any], excess: int) -> dict[str, Any]:
    """Return a job without what makes its answer too large by so many bytes.

    That are lines of its log, the oldest first, then its result, then its payload.
    """
    lines = list(job.get("logs", ()))
    while lines and excess > 0:
        excess -= len(written(lines.pop(0))) + len(", ")
    job = job | {"logs": lines} if lines else {n: v for n, v in job.items() if n != "logs"}
    if excess > 0 and "result" in job:
        excess -= len(written(job.pop("result")))
    return job | {"payload": None} if excess > 0 else job


def _wire(record: JobRecord, facts: JobFacts | None) -> dict[str, Any]:
    definition, head = record
    updated_at = definition.created_at if facts is None else facts.updated_at
    job: dict[str, Any] = {
        "id": definition.id,
        "service": definition.service,
        "type": definition.type,
        "state": head.state.value,
        "payload": json.loads(masked(definition.payload, definition.policy, "payload")),
        "createdAt": iso(definition.created_at),
        "updatedAt": iso(updated_at),
        "tries": head.attempt,
        "maxTries": definition.policy.retry.attempts,
    }
    given = {
        "startedAt": iso(None if facts is None else facts.started_at),
        "completedAt": iso(head.finished_at),
        "lastError": None if head.error is None else head.error.message,
        "deadline": iso(definition.deadline_at),
    }
    if facts is not None and facts.result is not None:
        job["result"] = json.loads(masked(facts.result, definition.policy, "result"))
    if definition.key is not None:
        slot = {} if head.fence is None else {"slotToken": head.fence.attempt_id}
        job["concurrency"] = {"key": definition.key, "keyHash": definition.key_hash} | slot
    return job | {name: value for name, value in given.items() if value is not None}


def _reported(activity: Activity | None, lines: Sequence[LogEntry]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if activity is not None and activity.progress is not None:
        parts = activity.progress._asdict().items()
        found["progress"] = {name: value for name, value in parts if value is not None}
    if lines:
        found["logs"] = [
            {
                "timestamp": iso(line.at),
                "level": LEVELS.get(line.level, "info"),
                "message": line.message,
            }
            for line in lines
        ]
    return found
