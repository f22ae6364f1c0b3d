"""Running a handler as a function, for tests and tries: no engine, no lease, no retries."""

from __future__ import annotations

import asyncio
from typing import Any

from trellis.contract.declaration import JobType
from trellis.contract.signature import Handler
from trellis.core.context import fresh_context
from trellis.core.job import Fence, JobId, JobRecord, NewJob, SessionId, claimed_record, define
from trellis.engines.values import NoteBody
from trellis.errors import ConfigurationError
from trellis.worker.active import ActiveJob, Surroundings
from trellis.worker.attempt import Attempt
from trellis.worker.local_type import LocalType
from trellis.worker.lock_desk import NobodyElse
from trellis.worker.log import JobLog
from trellis.worker.notes import NoteWriter


class _NoNotes(NoteWriter):
    """Hears everything and keeps nothing."""

    def __init__(self) -> None:
        """Need no engine."""

    def add(self, attempt: Attempt, body: NoteBody) -> None:
        """Keep nothing."""


async def run_inline(job_type: JobType, payload: object) -> Any:  # noqa: ANN401 - the handler's
    """Validate the payload, call the handler here and return what it returns."""
    handler = job_type.handler
    if handler is None:
        raise ConfigurationError(
            f"{job_type!r} has no handler in this program; import the module that defines it."
        )
    text = job_type.payload.encode(payload)
    value = job_type.payload.decode(text)
    result = handler.function(*_arguments(job_type, handler, value, text))
    return await result if asyncio.iscoroutine(result) else result


def _arguments(job_type: JobType, handler: Handler, value: object, text: str) -> tuple[object, ...]:
    if handler.takes == "nothing":
        return ()
    if handler.takes == "payload":
        return (value,)
    attempt = Attempt(_record(job_type, text), Fence(SessionId(1), 1), LocalType(job_type), 0.0)
    notes = _NoNotes()
    return (
        ActiveJob(value, attempt, Surroundings(notes, locks=NobodyElse()), JobLog(attempt, notes)),
    )


def _record(job_type: JobType, payload: str) -> JobRecord:
    new = NewJob(
        id=JobId("INLINE"),
        service=job_type.service,
        type=job_type.name,
        queue=job_type.queue,
        payload=payload,
        policy=job_type.policy,
        context=fresh_context("inline", 1, 1),
    )
    return claimed_record(
        define(new, row=0, now=0),
        session=SessionId(1),
        token=1,
        claimed_at=0,
        version=2,
        generation=0,
        attempt=1,
        claims=1,
        crashes=0,
        run_at=0,
    )
