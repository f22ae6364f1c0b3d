"""One thing done to many jobs, batch by batch, counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from trellis import control
from trellis.core.commands import Command
from trellis.core.job import JobId
from trellis.core.lifecycle import Refused, Stale
from trellis.engines.port import Engine
from trellis.engines.values import KeyRefused, Removal
from trellis.errors import AdmissionError, JobNotFound
from trellis.operations.choosing import Source

_KEPT_REFUSALS: Final = 20

Became = Literal["done", "refused", "missing"]
#: Hears how many jobs have been looked at so far.
Progress = Callable[[int], None]


def silent(_done: int) -> None:
    """Tell nobody."""


@dataclass(slots=True)
class Tally:
    """What became of the jobs of a bulk action."""

    done: int = 0
    #: Their state or policy does not allow it.
    refused: int = 0
    #: Not there, or removed meanwhile.
    missing: int = 0
    #: The first refusals: id and reason.
    refusals: list[tuple[str, str]] = field(default_factory=list)
    #: The ids of those it was done to; of the new jobs for a clone.
    ids: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many were looked at."""
        return self.done + self.refused + self.missing

    def note(self, job_id: str, became: Became, why: str = "") -> None:
        """Count one."""
        match became:
            case "done":
                self.done += 1
                self.ids.append(job_id)
            case "missing":
                self.missing += 1
            case "refused":
                self.refused += 1
                if len(self.refusals) < _KEPT_REFUSALS:
                    self.refusals.append((job_id, why))


async def apply_to(engine: Engine, source: Source, command: Command, progress: Progress) -> Tally:
    """Apply a command to each job."""
    tally = Tally()
    async for now, jobs in source.batches(engine):
        asked = [(record, command) for _, record in jobs if record is not None]
        results = iter(await control.apply_all(engine, asked, now))
        for job_id, record in jobs:
            result = control.Missing() if record is None else next(results)
            tally.note(job_id, *_meaning(command, job_id, result))
        progress(tally.total)
    return tally


def _meaning(command: Command, job_id: JobId, result: control.Result) -> tuple[Became, str]:
    match result:
        case control.Applied():
            return "done", ""
        case control.Missing():
            return "missing", ""
        case Refused(head, reason):
            if control.is_in_effect(command, head):
                return "done", ""
            advice = control.advice(command, head.state, job_id)
            return "refused", f"{reason} {advice}".rstrip()
        case KeyRefused(reason, existing):
            return "refused", f"Its key is taken ({reason}): job {existing} has it."
        case control.Contended():
            return "refused", "It kept changing; try again."
        case Stale(head):
            return "refused", f"It is {head.state}."


async def clone_each(engine: Engine, source: Source, progress: Progress) -> Tally:
    """Create a new job from each one's definition."""
    tally = Tally()
    async for _, jobs in source.batches(engine):
        for job_id, _ in jobs:
            try:
                tally.note(await control.clone(engine, job_id), "done")
            except JobNotFound:
                tally.note(job_id, "missing")
            except AdmissionError as error:
                tally.note(job_id, "refused", str(error))
        progress(tally.total)
    return tally


_REMOVED: Final[dict[Removal, tuple[Became, str]]] = {
    "removed": ("done", ""),
    "live": ("refused", "It has not ended; cancel it first."),
    "missing": ("missing", ""),
}


async def remove_each(engine: Engine, source: Source, progress: Progress) -> Tally:
    """Remove each job that has ended."""
    tally = Tally()
    async for _, jobs in source.batches(engine):
        ids = [job_id for job_id, _ in jobs]
        for job_id, removal in zip(ids, await engine.remove(ids), strict=True):
            tally.note(job_id, *_REMOVED[removal])
        progress(tally.total)
    return tally
