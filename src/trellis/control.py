"""Apply commands to jobs: load, decide, commit, and decide again when the job changed meanwhile.

The only place where the loop around a conflict is written; the worker's settler, maintenance,
operators' tools and the server all come through here. May import `engines` (the port) and `core`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from trellis.core.commands import Command
from trellis.core.events import Event
from trellis.core.job import Fence, JobId, JobRecord, build_record
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

#: Builds a named tuple from its fields in order and checks nothing; see `job.py`.
_make: Final = tuple.__new__
_TRIES: Final = 5


class Applied(NamedTuple):
    """The command took effect."""

    record: JobRecord


def _applied(transition: Transition) -> Applied:
    record = build_record(transition.definition, transition.head)
    return _make(Applied, (record,))  # half the cost of calling the class


class Missing(NamedTuple):
    """There is no such job."""


class Contended(NamedTuple):
    """The job changed again each time we decided."""

    record: JobRecord


Decision: TypeAlias = Transition | Stale | Refused
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
    decisions = [decide(record, command, now) for record, command in asked]
    transitions = [each for each in decisions if type(each) is Transition]
    answers = await engine.commit(transitions) if transitions else []
    if len(transitions) == len(asked) and all(type(each) is Committed for each in answers):
        return [_applied(each) for each in transitions]  # as nearly always
    return await _go_on(engine, asked, decisions, answers, now)


async def _go_on(
    engine: Engine,
    asked: Sequence[tuple[JobRecord, Command]],
    decisions: Sequence[Decision],
    answers: Sequence[CommitResult],
    now: Instant,
) -> list[Result]:
    """Say what each answer means, and decide again where a job has changed meanwhile."""
    results: list[Result] = [Missing()] * len(asked)
    tried: dict[int, list[Transition]] = {}
    places: Sequence[int] = range(len(asked))
    for tries_left in reversed(range(_TRIES)):
        given = iter(answers)
        contended: dict[int, Contended] = {}
        for place, decision in zip(places, decisions, strict=True):
            if isinstance(decision, Transition):
                tried.setdefault(place, []).append(decision)
                results[place] = result = _meaning(decision, next(given))
                if isinstance(result, Contended):
                    contended[place] = result
            elif isinstance(decision, Stale):
                results[place] = await _explain(
                    engine, asked[place], decision, tried.get(place, [])
                )
            else:
                results[place] = decision
        if not contended or not tries_left:
            break
        places = list(contended)
        decisions = [decide(contended[each].record, asked[each][1], now) for each in places]
        transitions = [each for each in decisions if isinstance(each, Transition)]
        answers = await engine.commit(transitions) if transitions else []
    return results


def _meaning(transition: Transition, answer: CommitResult) -> Result:
    """Say what an engine's answer means for the command."""
    match answer:
        case Committed():
            return _applied(transition)
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
