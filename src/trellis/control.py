"""Changes of jobs: the functions of operators, and the loop that applies commands.

Each function loads the job, decides (`core`), commits, and decides again if the job has changed in
between. `JobRef`, `Operator`, bulk actions, the command line, the worker's settler and maintenance
all use this module. May import `declaration` (ids), `engines` (the port) and `core`.

Repeating is safe: cancelling a job that is cancelled, or whose handler was already asked to stop,
changes nothing and returns the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from trellis.core import commands
from trellis.core.admission import check_attempts, check_priority
from trellis.core.batches import ACTOR, REST_CANCELLED, Batch
from trellis.core.commands import Command
from trellis.core.durations import Instant
from trellis.core.events import Event, EventKind
from trellis.core.job import Fence, Head, JobId, JobRecord, NewJob, build_record
from trellis.core.lifecycle import Refused, Stale, Transition, decide
from trellis.core.names import check_queue
from trellis.core.states import LIVE, WAITING, State
from trellis.declaration import checks
from trellis.declaration.ids import new_job_id
from trellis.declaration.options import check_options
from trellis.engines.audit import OPERATOR, By
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
    ConfigurationError,
    ConflictPersists,
    KeyBusy,
    no_such_batch,
    no_such_job,
)

#: Builds a named tuple from its fields in order and checks nothing; see `job.py`.
_make: Final = tuple.__new__
_TRIES: Final = 5
#: Members of a batch that are changed in one call, and how many such calls cancel a batch.
_PAGE: Final = 500
_PAGES: Final = 1000


class Applied(NamedTuple):
    """The command took effect, at this moment."""

    record: JobRecord
    at: Instant


def _applied(transition: Transition) -> Applied:
    record = build_record(transition.definition, transition.head)
    return _make(Applied, (record, transition.event.at))  # half the cost of calling the class


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


class AdjustOptions(TypedDict, total=False):
    """What an operator may change of a job that waits or runs; None changes nothing."""

    #: The queue it waits in.
    queue: str | None
    #: From -4 (last) to 4 (first).
    priority: int | None
    #: It starts no earlier than this moment (an aware datetime); not for a running job. A moment
    #: that has passed by the engine's clock means at once, and never postpones.
    run_at: datetime | None
    #: How many attempts it has in all.
    attempts: int | None
    #: The reason, for the journal and the audit.
    reason: str


async def adjust(
    engine: Engine,
    job_id: JobId,
    *,
    actor: str = "operator",
    **options: Unpack[AdjustOptions],
) -> JobRecord:
    """Move a live job to another queue, or change its priority, due time or attempts.

    The due time of a running job cannot change; a job that has ended raises `CommandRejected`.
    """
    return await apply(engine, job_id, adjustment(actor, **options))


def adjustment(actor: str, **options: Unpack[AdjustOptions]) -> commands.Adjust:
    """Return the command; raise `ConfigurationError` if a value is not allowed."""
    check_options(options, AdjustOptions, "adjust")
    queue, priority = options.get("queue"), options.get("priority")
    run_at, attempts = options.get("run_at"), options.get("attempts")
    if queue is None and priority is None and run_at is None and attempts is None:
        raise ConfigurationError(
            "Nothing to change was given, so nothing was stored. Give queue=, priority=, run_at= "
            "or attempts=."
        )
    if queue is not None:
        check_queue(queue)
    if priority is not None:
        check_priority(priority)
    if attempts is not None:
        check_attempts(attempts)
    moment = None if run_at is None else checks.instant("run_at", run_at)
    reason = options.get("reason", "")
    return commands.Adjust(queue, priority, moment, attempts, actor, reason)


async def retry(engine: Engine, job_id: JobId, by: By = OPERATOR) -> JobRecord:
    """Run a failed job again, with all its attempts."""
    return await apply(engine, job_id, commands.Retry(*by))


async def retry_items(engine: Engine, job_id: JobId, by: By = OPERATOR) -> JobRecord:
    """Run a job again for its failed items; what its attempts have finished still counts."""
    if not await engine.items(job_id) and (await engine.load([job_id])).records[0] is not None:
        raise CommandRejected(
            f"Job {job_id} has reported no items, so it cannot run again for some of them. Nothing "
            f"was changed. Run all of it again with: trellis jobs retry {job_id}",
            job_id=job_id,
        )
    return await apply(engine, job_id, commands.RetryItems(*by))


async def replay(engine: Engine, job_id: JobId, by: By = OPERATOR) -> JobRecord:
    """Run a dead letter again, with all its attempts."""
    return await apply(engine, job_id, commands.Replay(*by))


async def dismiss(engine: Engine, job_id: JobId, by: By = OPERATOR) -> JobRecord:
    """Close a dead letter for good."""
    return await apply(engine, job_id, commands.Dismiss(*by))


async def release_key(
    engine: Engine,
    job_id: JobId,
    then: Literal["retry", "fail"] = "retry",
    by: By = OPERATOR,
) -> JobRecord:
    """Free the key that a lost attempt of this job blocks; the job is retried or fails."""
    return await apply(engine, job_id, commands.ReleaseKey(then, by.actor, reason=by.reason))


async def clone(engine: Engine, job_id: JobId, by: By = OPERATOR) -> JobId:
    """Create a new job from the definition of another, linked to it; return its id.

    It has the same payload, policies, context and key; no delay, deadline, dedupe or idempotency
    key. The other job does not change.
    """
    record = (await engine.load([job_id])).records[0]
    if record is None:
        raise no_such_job(job_id)
    old = record.definition
    source = old.relations and old.relations.payload_from
    if source is not None and not await _has_payload(engine, job_id):
        raise CommandRejected(
            f"Job {job_id} has no payload to clone: it was to take the result of job {source}, "
            "which was not handed on. Nothing was stored. Clone the first job of the chain instead "
            "and create the others behind it.",
            job_id=job_id,
        )
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
        attempts=old.attempts,
        timeout=old.timeout,
        relations=None if old.relations is None else old.relations.of_tenant,
    )
    (answer,) = await engine.create([new], by)
    match answer:
        case Accepted() | Replaced():
            return new.id
        case Coalesced(existing):
            return existing
        case Rejected(reason, existing):
            because = "" if existing is None else f", because of job {existing}"
            raise AdmissionError(
                f"Job {job_id} cannot be cloned now ({reason}){because}. Nothing was stored.",
                existing=existing,
            )


async def _has_payload(engine: Engine, job_id: JobId) -> bool:
    """Return whether the result of another job was handed on to this one."""
    return any(event.kind is EventKind.RESOLVED for event in await engine.journal(job_id))


async def seal_batch(engine: Engine, batch_id: str, by: By) -> Batch:
    """Let an open batch finish once its members have; a sealed one does not change."""
    batch = await engine.seal_batch(batch_id, by)
    if batch is None:
        raise no_such_batch(batch_id)
    return batch


async def cancel_batch(engine: Engine, batch_id: str, by: By) -> Batch:
    """Cancel the members that wait, ask those that run to stop, and create no fan-in job.

    If this is interrupted, maintenance cancels the rest. Raises `CommandRejected` if the batch has
    finished.
    """
    batch = await engine.cancel_batch(batch_id, by)
    if batch is None:
        raise no_such_batch(batch_id)
    if batch.state == "finished":
        raise CommandRejected(
            f"Batch {batch_id} has finished, so it cannot be cancelled. Nothing was changed.",
            job_id=batch_id,
        )
    await cancel_stopped_members(engine)
    return batch


async def cancel_stopped_members(engine: Engine, pages: int = _PAGES) -> int:
    """Cancel the unfinished members of batches that stop, page by page; return how many."""
    command = commands.Cancel(REST_CANCELLED, actor=ACTOR)
    asked = 0
    for _ in range(pages):
        due = await engine.due("batches", _PAGE)
        if not due.jobs:
            break
        await apply_all(engine, [(job.record, command) for job in due.jobs], due.now)
        asked += len(due.jobs)
    return asked


async def retry_failed_members(engine: Engine, batch_id: str, by: By) -> int:
    """Run the members of a batch that failed or are dead again; return how many."""
    if await engine.batch(batch_id) is None:
        raise no_such_batch(batch_id)
    revivals: dict[State, Command] = {
        State.FAILED: commands.Retry(*by),
        State.DEAD: commands.Replay(*by),
    }
    after = revived = 0
    while page := await engine.members(batch_id, after, _PAGE):
        after = page[-1].record.definition.row
        changes = [
            (member.record, revivals[member.record.head.state])
            for member in page
            if member.record.head.state in revivals
        ]
        results = await apply_all(engine, changes, await engine.now())
        revived += sum(isinstance(result, Applied) for result in results)
    return revived


def is_in_effect(command: Command, head: Head) -> bool:
    """Return whether the job already is in the state that a refused command asks for."""
    if not isinstance(command, commands.Cancel):
        return False
    return head.state is State.CANCELLED or (head.state in LIVE and head.asked_at is not None)


def advice(command: Command, state: State, job_id: JobId) -> str:
    """Return a sentence with the command to use instead of a refused one; "" if there is none."""
    match command:
        case commands.Retry() | commands.RetryItems() | commands.Replay():
            return _advice_to_run_again(state, job_id)
        case commands.Cancel():
            return _advice_to_stop(state, job_id)
        case commands.Adjust():
            return _advice_to_adjust(state, job_id)
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
        case State.COMPLETED_WITH_ERRORS:
            return f"Run its failed items again with: trellis jobs retry --failed-items {job_id}"
        case _:
            return f"Run one like it with: trellis jobs clone {job_id}"


def _advice_to_adjust(state: State, job_id: JobId) -> str:
    if state is State.ACTIVE:
        return "It runs now: its queue, priority and attempts can change, its due time cannot."
    return f"It has ended. {_advice_to_run_again(state, job_id)}"


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
        case Applied(after, _):
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
    return await _decide_again(engine, changes, decisions, answers)


async def _decide_again(
    engine: Engine,
    changes: Sequence[tuple[JobRecord, Command]],
    decisions: Sequence[Decision],
    answers: Sequence[CommitResult],
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
        # Read again: the time of the first look may be before the change that was lost to.
        now = await engine.now()
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
            return _applied(transition)
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
