"""Find the job or worker that an operator names by a short id or a name.

A short id is the beginning or the end of an id, because ids made in the same moment begin alike. It
must match exactly one: when it matches several, the error lists them and nothing is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trellis.core.job import JobId, JobRecord, is_possible_id
from trellis.declaration import checks
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, SessionRecord
from trellis.errors import AmbiguousId, JobNotFound, WorkerNotFound, no_such_job

#: Characters of a whole id: a ULID.
ID_LENGTH: Final = 26
_SHOWN: Final = 5


async def resolve_job(engine: Engine, written: str) -> JobRecord:
    """Return the job with this id, or the only one whose id begins or ends with it."""
    text = checks.text("id", written, "01JC0000000000000000000000").strip().upper()
    if not text:
        raise JobNotFound(
            "An empty text is not the id of a job. Write its id, or the beginning or end of it. "
            "To see the ids: trellis jobs list",
            job_id=written,
        )
    if len(text) >= ID_LENGTH:
        loaded = await engine.load([JobId(text)])
        record = loaded.records[0]
        if record is None:
            raise no_such_job(text, removed=bool(loaded.removed))
        return record
    jobs = await _matching(engine, text) if is_possible_id(text) else ()
    if not jobs:
        raise JobNotFound(f"No job has an id that begins or ends with {written!r}.", job_id=written)
    if len(jobs) > 1:
        raise _ambiguous(written, jobs)
    return jobs[0]


async def _matching(engine: Engine, text: str) -> Sequence[JobRecord]:
    """Return the jobs whose id begins or ends with the text; some of them if they are many."""
    found: dict[JobId, JobRecord] = {}
    for where in (JobFilter(id_prefix=text), JobFilter(id_suffix=text)):
        page = await engine.find(where, limit=_SHOWN + 1)
        found |= {record.definition.id: record for record in page.jobs}
    return tuple(found.values())


def _ambiguous(written: str, jobs: Sequence[JobRecord]) -> AmbiguousId:
    ids = tuple(record.definition.id for record in jobs[:_SHOWN])
    listed = ", ".join(ids) + (", ..." if len(jobs) > _SHOWN else "")
    return AmbiguousId(
        f"{written!r} is the beginning or the end of several ids: {listed}. Write more of it.",
        candidates=ids,
    )


async def resolve_worker(engine: Engine, written: str) -> SessionRecord:
    """Return the worker process with this name, or the only one whose id begins with it."""
    sessions = [
        each for each in await engine.sessions() if each.is_worker and each.ended_at is None
    ]
    found = [each for each in sessions if each.info.name == written]
    found = found or [each for each in sessions if f"{each.id:016x}".startswith(written.lower())]
    if not found or not written:
        raise WorkerNotFound(
            f"No live worker is called {written!r} or has an id that begins with it. "
            "See them with: trellis workers"
        )
    if len(found) > 1:
        ids = ", ".join(f"{each.id:016x}" for each in found[:_SHOWN])
        raise WorkerNotFound(f"{written!r} matches several workers: {ids}. Write one id.")
    return found[0]
