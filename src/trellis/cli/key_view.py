"""One key on one screen: of each type that has it, who holds it and who waits for it."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from trellis.cli.escaping import visible
from trellis.cli.listing import COLUMNS, job_row
from trellis.cli.place import operate
from trellis.cli.spoken import counted
from trellis.cli.tables import write_table
from trellis.cli.writing import write_json, write_line
from trellis.core.durations import to_datetime
from trellis.core.states import LIVE
from trellis.insight.views import JobView, KeyView, as_json
from trellis.operations.operator import Operator

_SHOWN: Final = 20


class KeyAndJobs(NamedTuple):
    """A key of one type, and the newest of the jobs that hold it or wait for it."""

    key: KeyView
    jobs: list[JobView]
    now: datetime


def show_key(url: str | None, key: str, *, machine: bool) -> None:
    """Write all that is known about a key."""
    found = operate(url, lambda jobs: _gather(jobs, key))
    if machine:
        write_json([_document(each) for each in found])
        return
    for each in found:
        write_line(visible(_summary(each.key)))
        write_table(COLUMNS, (job_row(job, each.now) for job in each.jobs))


async def _gather(jobs: Operator, key: str) -> list[KeyAndJobs]:
    now = to_datetime(await jobs.engine.now())
    found = []
    for each in await jobs.key(key):
        chosen = jobs.find(service=each.service, type=each.type, key=key, state=sorted(LIVE))
        found.append(KeyAndJobs(each, list((await chosen.page(limit=_SHOWN)).jobs), now))
    return found


def _document(found: KeyAndJobs) -> dict[str, object]:
    return {**as_json(found.key), "jobs": [as_json(job) for job in found.jobs]}


def _summary(key: KeyView) -> str:
    said = f"Key {key.key!r} of {key.service}/{key.type}: held by {counted(len(key.holders))}, "
    said += f"{key.waiting:,} waiting"
    if not key.blocked:
        return f"{said}."
    return f"{said}; blocked by a lost attempt. Free it with: trellis keys release {key.holders[0]}"
