"""Changes of jobs: the functions of operators, and the loop that applies commands.

Each function loads the job, decides (`core`), commits, and decides again if the job has changed in
between. `JobRef`, `Operator`, bulk actions, the command line, the worker's settler and maintenance
all use this module. May import `declaration` (ids), `engines` (the port) and `core`.

Repeating is safe: cancelling a job that is cancelled, or whose handler was already asked to stop,
changes nothing and returns the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from trellis.core import commands
from trellis.core.commands import Command
from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.job import Fence, Head, JobId, JobRecord, NewJob, build_record
from trellis.core.lifecycle import Refused, Stale, Transition, decide
from trellis.core.states import LIVE, WAITING, State
from trellis.declaration.ids import new_job_id
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Coalesced,
    CommitResult,
    Committed,
    Conflict,
    KeyRefused,
    LateResult,
    Note,
    Rejected,
    Replaced,
)
from trellis.errors import (
    AdmissionError,
    CommandRejected,
    ConflictPersists,
    KeyBusy,
    no_such_job,
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
    """The job changed again after each decision."""

    record: JobRecord


Decision: TypeAlias = Transition | Stale | Refused
Result: TypeAlias = Applied | Stale | Refused | KeyRefused | Missing | Contended


# -- functions of operators --------------------------------------------------------------------


async def cancel(
    engine: Engine,
    job_id: JobId,
    reason: str = "",
    *,
    force: bool = False,
    actor: str = "operator",
) -> JobRecord:
    """Stop a job: at once while it waits; while it runs, its handler is asked to stop.

    `force` ends a running attempt at once. A job that is cancelled, or was asked to stop, does not
    change; a job that has ended in another state raises `CommandRejected`.
    """
    return await apply(engine, job_id, commands.Cancel(reason, force, actor))


async def retry(engine: Engine, job_id: JobId, *, actor: str = "operator") -> JobRecord:
    """Run a failed job again, with all its attempts."""
    return await apply(engine, job_id, commands.Retry(actor))


async def replay(engine: Engine, job_id: JobId, *, actor: str = "operator") -> JobRecord:
    """Run a dead letter again, with all its attempts."""
    return await apply(engine, job_id, commands.Replay(actor))


async def dismiss(engine: Engine, job_id: JobId, *, actor: str = "operator") -> JobRecord:
    """Close a dead letter for good."""
    return await apply(engine, job_id, commands.Dismiss(actor))


async def release_key(
    engine: Engine,
    job_id: JobId,
    then: Literal["retry", "fail"] = "retry",
    *,
    actor: str = "operator",
) -> JobRecord:
    """Free the key that a lost attempt of this job blocks; the job is retried or fails."""
    return await apply(engine, job_id, commands.ReleaseKey(then, actor))


async def clone(engine: Engine, job_id: JobId) -> JobId:
    """Create a new job from the definition of another, linked to it; return its id.

    It has the same payload, policies, context and key; no delay, deadline, dedupe or idempotency
    key. The other job does not change.
    """
    record = (await engine.load([job_id])).records[0]
    if record is None:
        raise no_such_job(job_id)
    old = record.definition
    new = NewJob(
        id=new_job_id(),
        service=old.service,
        type=old.type,
        queue=old.queue,
        payload=old.payload,
        policy=old.policy,
        context=old.context,
        priority=old.priority,
        key=old.key,
        key_hash=old.key_hash,
        tags=old.tags,
        config=old.config,
        expect=old.expect,
        schema_version=old.schema_version,
        clone_of=old.id,
    )
    (answer,) = await engine.create([new])
    match answer:
        case Accepted() | Replaced():
            return new.id
        case Coalesced(existing):
            return existing
        case Rejected(reason, existing):
            raise AdmissionError(
                f"Job {job_id} cannot be cloned now ({reason}), because of job {existing}. "
                "Nothing was stored.",
                existing=existing,
            )


def is_in_effect(command: Command, head: Head) -> bool:
    """Return whether the job already is in the state that a refused command asks for."""
    if not isinstance(command, commands.Cancel):
        return False
    return head.state is State.CANCELLED or (head.state in LIVE and head.asked_at is not None)


def advice(command: Command, state: State, job_id: JobId) -> str:
    """Return a sentence with the command to use instead of a refused one; "" if there is none."""
    match command:
        case commands.Retry() | commands.Replay():
            return _advice_to_run_again(state, job_id)
        case commands.Cancel():
            return _advice_to_stop(state, job_id)
        case commands.Dismiss() if state in LIVE:
            return f"Stop it with: trellis jobs cancel {job_id}"
        case _:
            return ""


def _advice_to_run_again(state: State, job_id: JobId) -> str:
    if state in WAITING:
        return f"It waits to run anyway; see why with: trellis jobs why {job_id}"
    match state:
        case State.ACTIVE:
            return (
                f"Wait for its end with: trellis jobs wait {job_id}, or stop it with: "
                f"trellis jobs cancel {job_id}"
            )
        case State.DEAD:
            return f"Bring it back with: trellis dlq replay {job_id}"
        case State.FAILED:
            return f"Run it again with: trellis jobs retry {job_id}"
        case _:
            return f"Run one like it with: trellis jobs clone {job_id}"


def _advice_to_stop(state: State, job_id: JobId) -> str:
    if state is State.DEAD:
        return f"Close it for good with: trellis dlq dismiss {job_id}"
    return "It has ended already, so there is nothing to stop."


# -- commands ----------------------------------------------------------------------------------


async def apply(engine: Engine, job_id: JobId, command: Command) -> JobRecord:
    """Apply one command to one job; raise a typed error if it cannot be applied."""
    loaded = await engine.load([job_id])
    record = loaded.records[0]
    if record is None:
        raise no_such_job(job_id)
    (result,) = await apply_all(engine, [(record, command)], loaded.now)
    match result:
        case Applied(after):
            return after
        case Missing():
            raise no_such_job(job_id)
        case KeyRefused(reason, existing):
            raise KeyBusy(
                f"Job {job_id} cannot run again now ({reason}): job {existing} has its key.",
                existing=existing,
            )
        case Contended():
            raise ConflictPersists(
                f"Other processes changed job {job_id} at the same time, {_TRIES} times. Nothing "
                "was done. Try again.",
                job_id=job_id,
            )
        case Refused(head, reason):
            if is_in_effect(command, head):
                return JobRecord(record.definition, head)
            text = f"{reason} (job {job_id}) {advice(command, head.state, job_id)}"
            raise CommandRejected(text.rstrip(), job_id=job_id)
        case Stale(head):
            raise CommandRejected(
                f"The attempt has ended: job {job_id} is {head.state}.", job_id=job_id
            )


async def apply_all(
    engine: Engine, changes: Sequence[tuple[JobRecord, Command]], now: Instant
) -> list[Result]:
    """Apply each command to its job, as it was loaded at the engine's time `now`.

    A stale command leaves a note in the journal, unless the journal shows that an earlier try of
    the same command was committed and only its reply was lost.
    """
    decisions = [decide(record, command, now) for record, command in changes]
    transitions = [each for each in decisions if type(each) is Transition]
    answers = await engine.commit(transitions) if transitions else []
    if len(transitions) == len(changes) and all(type(each) is Committed for each in answers):
        return [_applied(each) for each in transitions]  # the usual case
    return await _decide_again(engine, changes, decisions, answers, now)


async def _decide_again(
    engine: Engine,
    changes: Sequence[tuple[JobRecord, Command]],
    decisions: Sequence[Decision],
    answers: Sequence[CommitResult],
    now: Instant,
) -> list[Result]:
    """Return the result of each command; decide again where a job has changed since its load."""
    results: list[Result] = [Missing()] * len(changes)
    tried: dict[int, list[Transition]] = {}
    positions: Sequence[int] = range(len(changes))
    for tries_left in reversed(range(_TRIES)):
        remaining = iter(answers)
        contended: dict[int, Contended] = {}
        for position, decision in zip(positions, decisions, strict=True):
            if isinstance(decision, Transition):
                tried.setdefault(position, []).append(decision)
                results[position] = result = _result_of(decision, next(remaining))
                if isinstance(result, Contended):
                    contended[position] = result
            elif isinstance(decision, Stale):
                results[position] = await _explain(
                    engine, changes[position], decision, tried.get(position, [])
                )
            else:
                results[position] = decision
        if not contended or not tries_left:
            break
        positions = list(contended)
        decisions = [decide(contended[each].record, changes[each][1], now) for each in positions]
        transitions = [each for each in decisions if isinstance(each, Transition)]
        answers = await engine.commit(transitions) if transitions else []
    return results


def _result_of(transition: Transition, answer: CommitResult) -> Result:
    """Return the result of a command from the answer of the engine."""
    match answer:
        case Committed():
            return _applied(transition)
        case KeyRefused():
            return answer
        case Conflict(record):
            return Missing() if record is None else Contended(record)


async def _explain(
    engine: Engine,
    change: tuple[JobRecord, Command],
    stale: Stale,
    tried: Sequence[Transition],
) -> Result:
    """Return `Applied` if an earlier try was committed; else note a late result, return `stale`."""
    record, command = change
    fence: Fence = command.fence  # type: ignore[union-attr] # only fenced commands can be stale
    for transition in tried:
        if await _is_stored(engine, transition):
            return Applied(JobRecord(record.definition, transition.head))
    late = LateResult(type(command).__name__)
    await engine.note([Note(record.definition.row, record.head.claims, fence, late)])
    return stale


async def _is_stored(engine: Engine, tried: Transition) -> bool:
    """Return whether the journal contains this decision, at any instant."""
    wanted = tried.event

    def without_time(event: Event) -> object:
        data = {name: value for name, value in (event.data or {}).items() if name != "run_at"}
        return event.kind, event.version, event.fence, data

    journal = await engine.journal(tried.definition.id)
    return any(without_time(event) == without_time(wanted) for event in journal)
