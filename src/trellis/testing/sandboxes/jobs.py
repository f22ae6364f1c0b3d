"""The jobs of a sandbox as tests read them: with decoded payload and result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from trellis.core.durations import to_datetime
from trellis.core.job import JobRecord
from trellis.core.states import SUCCEEDED, State
from trellis.declaration.codec import Codec
from trellis.declaration.job_type import JobType
from trellis.engines.values import Outcome
from trellis.errors import PayloadInvalid

P_co = TypeVar("P_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class CreatedJob(Generic[P_co, R_co]):
    """A job that was created, in its present state."""

    id: str
    #: `service/type`.
    type: str
    payload: P_co
    state: State
    #: Attempts used.
    attempt: int
    #: The result; None before it has completed.
    result: R_co | None
    #: The message of the last failure.
    error: str | None
    created_at: datetime
    #: It does not start (again) before this time.
    run_at: datetime
    deadline: datetime | None
    priority: int
    key: str | None
    tags: Mapping[str, str]


def created_job(
    record: JobRecord, outcome: Outcome | None, job_type: JobType | None
) -> CreatedJob[Any, Any]:
    """Return the job, decoded by its type; as plain data if its type is not known."""
    definition, head = record
    has_result = outcome is not None and outcome.state in SUCCEEDED
    result = outcome.result if outcome is not None and has_result else None
    codecs = (None, None) if job_type is None else (job_type.payload, job_type.result)
    return CreatedJob(
        id=definition.id,
        type=f"{definition.service}/{definition.type}",
        payload=_read(definition.payload, codecs[0], "payload"),
        state=head.state,
        attempt=head.attempt,
        result=None if result is None else _read(result, codecs[1], "result"),
        error=None if head.error is None else head.error.message,
        created_at=to_datetime(definition.created_at),
        run_at=to_datetime(head.run_at),
        deadline=None if definition.deadline_at is None else to_datetime(definition.deadline_at),
        priority=definition.priority,
        key=definition.key,
        tags=dict(definition.tags),
    )


def _read(text: str, codec: Codec | None, what: str) -> Any:  # noqa: ANN401 - P or R, by the codec
    if codec is not None:
        try:
            return codec.decode(text, what)
        except PayloadInvalid:
            pass  # stored by another service with the same name
    return json.loads(text)
