"""The check-up: every journal must fold to its head, and the engine reports its own health.

A job that changes while it is read is read again, so only a lasting mismatch is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from trellis.config import WorkerSettings
from trellis.core.fold import fold
from trellis.core.job import JobId, JobRecord
from trellis.engines.port import Engine
from trellis.engines.values import Health, JobFilter

_PAGE: Final = 200
_LOOKS: Final = 3
_EVERYTHING: Final = JobFilter()

Progress = Callable[[int, int], None]


class Mismatch(NamedTuple):
    """A job whose journal does not fold to its head."""

    job_id: str
    problem: str


class Diagnosis(NamedTuple):
    """What the check-up found."""

    health: Health
    #: How many jobs there are in each state.
    states: Mapping[str, int]
    #: How many journals were folded.
    checked: int
    mismatches: tuple[Mismatch, ...]
    #: The worker settings in force here.
    settings: WorkerSettings

    @property
    def is_sound(self) -> bool:
        """Whether every journal folds to its head."""
        return not self.mismatches


async def diagnose(
    engine: Engine,
    settings: WorkerSettings,
    progress: Progress = lambda _done, _total: None,
    *,
    journals: bool = True,
) -> Diagnosis:
    """Examine an open engine, calling `progress(done, total)`; journals only if asked for."""
    health = await engine.health()
    states = (await engine.count(_EVERYTHING, "state")).groups
    if not journals:
        return Diagnosis(health, states, 0, (), settings)
    total = sum(states.values())
    mismatches: list[Mismatch] = []
    checked = 0
    after: int | None = None
    while True:
        page = await engine.find(_EVERYTHING, after=after, limit=_PAGE)
        for record in page.jobs:
            problem = await _examine(engine, record)
            if problem is not None:
                mismatches.append(Mismatch(record.definition.id, problem))
            checked += 1
        progress(checked, max(total, checked))
        after = page.next_after
        if after is None:
            return Diagnosis(health, states, checked, tuple(mismatches), settings)


async def _examine(engine: Engine, record: JobRecord) -> str | None:
    """Return what is wrong with this job, if it is still wrong after a few reads."""
    job_id = record.definition.id
    current: JobRecord | None = record
    problem: str | None = None
    for _ in range(_LOOKS):
        if current is None:
            return None  # retention has removed it
        problem = await _compare(engine, job_id, current)
        if problem is None:
            return None
        current = (await engine.load([job_id])).records[0]
    return problem


async def _compare(engine: Engine, job_id: JobId, record: JobRecord) -> str | None:
    try:
        folded = fold(await engine.journal(job_id))
    except (ValueError, KeyError, TypeError) as error:
        return f"its journal cannot be read: {error}"
    if folded == record.head:
        return None
    if folded is None:
        return "it has no journal"
    differing = [
        f"{name} is {getattr(record.head, name)!r} but the journal says {value!r}"
        for name, value in folded._asdict().items()
        if getattr(record.head, name) != value
    ]
    return "; ".join(differing)
