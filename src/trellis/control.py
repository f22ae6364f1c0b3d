"""Apply commands to jobs: load, decide, commit, and decide again when the job changed meanwhile.

The only place where the loop around a conflict is written; the worker's settler, maintenance,
operators' tools and the server all come through here. May import `engines` (the port) and `core`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from trellis.core.commands import Command
from trellis.core.events import Event
from trellis.core.job import Fence, JobId, JobRecord
from trellis.core.lifecycle import Refused, Stale, Transition, decide
from trellis.core.spans import Instant
from trellis.engines.port import Engine
from trellis.engines.values import (
    CommitResult,
    Committed,
    Conflict,
    KeyRefused,
    LateResult,
    Note,
)
from trellis.errors import (
    CommandRejected,
    ConflictPersists,
    JobNotFound,
    KeyBusy,
)

_TRIES: Final = 5


class Applied(NamedTuple):
    """The command took effect."""

    record: JobRecord


class Missing(NamedTuple):
    """There is no such job."""


class Contended(NamedTuple):
    """The job changed again each time we decided."""

    record: JobRecord


Result: TypeAlias = Applied | Stale | Refused | KeyRefused | Missing | Contended


async def apply(engine: Engine, job_id: JobId, command: Command) -> JobRecord:
    """Apply one command to one job; raise a typed error if it cannot be."""
    loaded = await engine.load([job_id])
    record = loaded.records[0]
    result: Result = Missing()
    if record is not None:
        (result,) = await apply_all(engine, [(record, command)], loaded.now)
    match result:
        case Applied(after):
            return after
        case Missing():
            raise JobNotFound(
                f"There is no job {job_id}. It was never created, or retention removed it.",
                job_id=job_id,
            )
        case KeyRefused(reason, existing):
            raise KeyBusy(
                f"Job {job_id} cannot come back now ({reason}): job {existing} has its key.",
                existing=existing,
            )
        case Contended():
            raise ConflictPersists(f"Job {job_id} keeps changing; try again.", job_id=job_id)
        case Refused(_, reason):
            raise CommandRejected(f"{reason} (job {job_id})", job_id=job_id)
        case Stale(head):
            raise CommandRejected(
                f"The attempt is over: job {job_id} is {head.state}.", job_id=job_id
            )


async def apply_all(
    engine: Engine, asked: Sequence[tuple[JobRecord, Command]], now: Instant
) -> list[Result]:
    """Apply each command to its job, as last seen, at the engine's time `now`.

    A stale command of an attempt leaves a note in the journal, unless the journal shows that an
    earlier try of the same command, whose reply was lost, had succeeded.
    """
    results: list[Result] = [Missing()] * len(asked)
    tried: dict[int, list[Transition]] = {}
    open_items = list(enumerate(asked))
    for _ in range(_TRIES):
        decided: list[tuple[int, Transition]] = []
        for index, (seen, command) in open_items:
            decision = decide(seen, command, now)
            if isinstance(decision, Transition):
                decided.append((index, decision))
            elif isinstance(decision, Stale):
                results[index] = await _explain(
                    engine, asked[index], decision, tried.get(index, [])
                )
            else:
                results[index] = decision
        if not decided:
            break
        open_items = []
        answers = await engine.commit([transition for _, transition in decided])
        for (index, transition), answer in zip(decided, answers, strict=True):
            tried.setdefault(index, []).append(transition)
            results[index] = result = _meaning(transition, answer)
            if isinstance(result, Contended):
                open_items.append((index, (result.record, transition.command)))
    return results


def _meaning(transition: Transition, answer: CommitResult) -> Result:
    """Say what an engine's answer means for the command."""
    match answer:
        case Committed():
            return Applied(JobRecord(transition.definition, transition.head))
        case KeyRefused():
            return answer
        case Conflict(record):
            return Missing() if record is None else Contended(record)


async def _explain(
    engine: Engine,
    asked: tuple[JobRecord, Command],
    stale: Stale,
    tried: Sequence[Transition],
) -> Result:
    """Tell a lost reply (our own earlier try succeeded) from a late result, which is noted."""
    record, command = asked
    fence: Fence = command.fence  # type: ignore[union-attr] # only fenced commands can be stale
    for transition in tried:
        if await _is_stored(engine, transition):
            return Applied(JobRecord(record.definition, transition.head))
    late = LateResult(type(command).__name__)
    await engine.note([Note(record.definition.row, record.head.claims, fence, late)])
    return stale


async def _is_stored(engine: Engine, tried: Transition) -> bool:
    """Tell whether the journal holds this very decision, whatever moment it was stamped with."""
    wanted = tried.event

    def essence(event: Event) -> object:
        data = {name: value for name, value in (event.data or {}).items() if name != "run_at"}
        return event.kind, event.version, event.fence, data

    journal = await engine.journal(tried.definition.id)
    return any(essence(event) == essence(wanted) for event in journal)
