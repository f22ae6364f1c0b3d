"""What each rule does: the next head, and the data of its event.

The data must let `fold` build the same head. A transition that leaves `active` always removes the
fence, so the attempt that had it can never write again.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from trellis.core.commands import (
    Adjust,
    Cancel,
    Claim,
    Command,
    Complete,
    Crash,
    Dismiss,
    Exhaust,
    Fail,
    LoseLease,
    OperatorCommand,
    ReleaseKey,
    Replay,
    Resolve,
    Retry,
    RetryItems,
    Skip,
    Snooze,
)
from trellis.core.durations import Instant
from trellis.core.events import Data, JsonValue
from trellis.core.fairness import with_tenant
from trellis.core.job import Definition, Failure, Head, ended_head
from trellis.core.policy import OnLost
from trellis.core.states import State

# Nearly every job ends in this state, and reading a member of an enum takes as long as a tuple.
_COMPLETED: Final = State.COMPLETED
#: Builds a named tuple from its fields in order and checks nothing; see `job.py`.
_make: Final = tuple.__new__
#: Why an attempt failed whose worker was stopped and whose policy is `on_shutdown="fail"`.
SHUT_DOWN: Final = Failure("shutdown", "Worker received SIGTERM")
C = TypeVar("C", bound=Command)
Change: TypeAlias = tuple[Head, Data | None]


class Case(NamedTuple, Generic[C]):
    """One job, one command, one instant."""

    definition: Definition
    head: Head
    command: C
    now: Instant


def build_case(definition: Definition, head: Head, command: C, now: Instant) -> Case[C]:
    """Return a case, at half the cost of calling the class."""
    return _make(Case, (definition, head, command, now))


AnyCase: TypeAlias = Case[Any]


def on_lost(case: AnyCase) -> OnLost:
    """Return what to do with a lost attempt: as its policy says, or as the operator chose."""
    if isinstance(case.command, ReleaseKey):
        return case.command.then
    return case.definition.policy.on_lost


def started(case: Case[Claim]) -> Change:
    """Lease the job: a new fence, one more attempt."""
    head = case.head
    after = Head(
        state=State.ACTIVE,
        version=head.version + 1,
        generation=head.generation,
        attempt=head.attempt + 1,
        claims=head.claims + 1,
        crashes=head.crashes,
        run_at=head.run_at,
        fence=case.command.fence,
        claimed_at=case.now,
        suspect=head.suspect,
        error=head.error,
    )
    return after, None


def _end(case: AnyCase, state: State, error: Failure | None, crashes: int | None = None) -> Head:
    head = case.head
    return ended_head(head, state, case.now, error, head.crashes if crashes is None else crashes)


def _wait(
    case: AnyCase,
    run_at: Instant,
    error: Failure | None,
    *,
    give_back: bool = False,
    crashes: int | None = None,
    suspect: bool = False,
) -> Change:
    head = case.head
    attempt = head.attempt - 1 if give_back else head.attempt
    data: dict[str, JsonValue] = {"run_at": run_at}
    if error is not None:
        data["error"] = list(error)
    if give_back:
        data["attempt"] = attempt
    if crashes is not None:
        data["crashes"] = crashes
    if suspect:
        data["suspect"] = True
    after = Head(
        state=State.RETRY,
        version=head.version + 1,
        generation=head.generation,
        attempt=attempt,
        claims=head.claims,
        crashes=head.crashes if crashes is None else crashes,
        run_at=run_at,
        suspect=suspect,
        error=error or head.error,
    )
    return after, data


def completed(case: Case[Complete]) -> Change:
    """End with a result."""
    head = case.head
    return ended_head(head, _COMPLETED, case.now, None, head.crashes), None


def completed_with_errors(case: Case[Complete]) -> Change:
    """End with a result and some failed items."""
    head = _end(case, State.COMPLETED_WITH_ERRORS, None)
    return head, {"item_errors": case.command.item_errors}


def failed_retry(case: Case[Fail]) -> Change:
    """Wait for the next attempt: the delay of the handler, else that of the policy."""
    command = case.command
    delay = command.delay
    if delay is None:
        delay = case.definition.policy.retry.delay(case.head.attempt, command.roll)
    return _wait(case, case.now + delay, command.error)


def failed(case: Case[Fail]) -> Change:
    """End as failed."""
    return _failure(case, State.FAILED, case.command.error)


def failed_dead(case: Case[Fail]) -> Change:
    """End as a dead letter."""
    return _failure(case, State.DEAD, case.command.error)


def _failure(case: AnyCase, state: State, error: Failure, crashes: int | None = None) -> Change:
    data: dict[str, JsonValue] = {"error": list(error)}
    if crashes is not None:
        data["crashes"] = crashes
    if isinstance(case.command, ReleaseKey):
        data |= _asked_by(case.command)
    return _end(case, state, error, crashes), data


def snoozed(case: Case[Snooze]) -> Change:
    """Wait as long as the handler asked; the attempt does not count, `suspect` is kept."""
    run_at = case.now + case.command.delay
    return _wait(case, run_at, None, give_back=True, suspect=case.head.suspect)


def released(case: AnyCase) -> Change:
    """Hand the attempt back; it keeps its due time, does not count, and stays `suspect`."""
    return _wait(case, case.head.run_at, None, give_back=True, suspect=case.head.suspect)


def suspected(case: Case[Crash]) -> Change:
    """Hand the attempt back; it keeps its due time, does not count, and next runs alone."""
    error = Failure("crash", case.command.evidence)
    return _wait(case, case.head.run_at, error, give_back=True, suspect=True)


def shut_down(case: AnyCase) -> Change:
    """Fail because the worker shuts down and the policy is `on_shutdown="fail"`."""
    return _failure(case, State.FAILED, SHUT_DOWN)


def _loss(case: AnyCase) -> tuple[Failure, int | None]:
    command = case.command
    match command:
        case Crash():
            return Failure("crash", command.evidence), case.head.crashes + 1
        case LoseLease():
            return Failure("lease_lost", command.message), None
        case _:
            return Failure("lease_lost", "An operator released the key."), None


def lost_retry(case: AnyCase) -> Change:
    """Wait for the next attempt after a lost one."""
    error, crashes = _loss(case)
    delay = case.definition.policy.retry.delay(case.head.attempt, case.command.roll)
    after, data = _wait(case, case.now + delay, error, crashes=crashes)
    if isinstance(case.command, ReleaseKey):
        return after, {**(data or {}), **_asked_by(case.command)}
    return after, data


def lost_dead(case: AnyCase) -> Change:
    """End as a dead letter because the last attempt was lost."""
    error, crashes = _loss(case)
    return _failure(case, State.DEAD, error, crashes)


def lost_failed(case: AnyCase) -> Change:
    """Fail because the attempt was lost."""
    error, crashes = _loss(case)
    return _failure(case, State.FAILED, error, crashes)


def lost_stale(case: AnyCase) -> Change:
    """End as stale because the attempt was lost; the next job of the key may run."""
    error, crashes = _loss(case)
    return _failure(case, State.STALE, error, crashes)


def blocked(case: AnyCase) -> Change:
    """Keep fence and slot until the same worker or an operator ends the attempt."""
    error, crashes = _loss(case)
    head = case.head
    data: dict[str, JsonValue] = {"error": list(error)}
    if crashes is not None:
        data["crashes"] = crashes
    after = head._replace(
        version=head.version + 1,
        blocked=True,
        error=error,
        crashes=head.crashes if crashes is None else crashes,
    )
    return after, data


def crash_loop_dead(case: Case[Crash]) -> Change:
    """End as a dead letter because the job has crashed its process too often."""
    return _failure(case, State.DEAD, _crash_loop(case), case.head.crashes + 1)


def crash_loop_failed(case: Case[Crash]) -> Change:
    """Fail because the job has crashed its process too often."""
    return _failure(case, State.FAILED, _crash_loop(case), case.head.crashes + 1)


def _crash_loop(case: Case[Crash]) -> Failure:
    count = case.head.crashes + 1
    times = "once" if count == 1 else f"{count} times"
    return Failure("crash_loop", f"Crashed its process {times}: {case.command.evidence}")


def cancelled(case: AnyCase) -> Change:
    """End as cancelled."""
    command = case.command
    data: Data | None = None
    if isinstance(command, Cancel | ReleaseKey):
        data = _asked_by(command)
    return _end(case, State.CANCELLED, case.head.error), data


def cancel_requested(case: Case[Cancel]) -> Change:
    """Record that the running attempt is asked to stop."""
    head = case.head
    return head._replace(version=head.version + 1, asked_at=case.now), _asked_by(case.command)


def _asked_by(command: OperatorCommand) -> dict[str, JsonValue]:
    """Return who asked, and why if a reason was given."""
    reason: dict[str, JsonValue] = {"reason": command.reason} if command.reason else {}
    return {"actor": command.actor, **reason}


def adjusted(case: Case[Adjust]) -> Change:
    """Record what an operator changed; the definition changes too, see `redefine`."""
    head, command = case.head, case.command
    data: dict[str, JsonValue] = {
        name: value
        for name in ("queue", "priority", "attempts")
        if (value := getattr(command, name)) is not None
    }
    run_at = head.run_at
    if command.run_at is not None:
        # A time that is not in the future means at once: it never postpones.
        run_at = min(run_at, command.run_at) if command.run_at <= case.now else command.run_at
        data["run_at"] = run_at
    after = head._replace(version=head.version + 1, run_at=run_at)
    if was := _defined(case.definition, data):
        data["was"] = was
    return after, data | _asked_by(command)


def _defined(definition: Definition, names: Container[str]) -> dict[str, JsonValue]:
    """Return the values of the definition that have one of these names, before they change."""
    values: dict[str, JsonValue] = {
        "queue": definition.queue,
        "priority": definition.priority,
        "attempts": definition.policy.retry.attempts,
    }
    return {name: value for name, value in values.items() if name in names}


def resolved(case: Case[Resolve]) -> Change:
    """Let a job start whose prerequisites have ended; before this moment it was not due."""
    head = case.head
    run_at = max(head.run_at, case.now)
    data: dict[str, JsonValue] = {"run_at": run_at}
    if case.command.payload is not None and case.definition.relations is not None:
        data["payload_from"] = case.definition.relations.payload_from
    return head._replace(version=head.version + 1, run_at=run_at), data


def redefine(definition: Definition, command: Adjust | Resolve) -> Definition:
    """Return the definition after an operator's change, or with the payload handed on to it."""
    if isinstance(command, Resolve):
        text = command.payload
        if text is None:
            return definition
        return definition._replace(payload=text, relations=with_tenant(definition.relations, text))
    attempts, policy = definition.attempts, definition.policy
    if command.attempts is not None:
        attempts = command.attempts
        policy = replace(policy, retry=replace(policy.retry, attempts=attempts))
    return definition._replace(
        queue=definition.queue if command.queue is None else command.queue,
        priority=definition.priority if command.priority is None else command.priority,
        attempts=attempts,
        policy=policy,
    )


def expired(case: AnyCase) -> Change:
    """End because the deadline passed."""
    return _end(case, State.EXPIRED, case.head.error), None


def skipped(case: Case[Skip]) -> Change:
    """End because a newer job has replaced this one."""
    return _end(case, State.SKIPPED, None), {"replaced_by": case.command.replaced_by}


def exhausted_dead(case: Case[Exhaust]) -> Change:
    """End as a dead letter because the store gave up delivering the job."""
    return _failure(case, State.DEAD, Failure("exhausted", case.command.evidence))


def exhausted_failed(case: Case[Exhaust]) -> Change:
    """Fail because the store gave up delivering the job."""
    return _failure(case, State.FAILED, Failure("exhausted", case.command.evidence))


def revived(case: Case[Retry] | Case[RetryItems] | Case[Replay]) -> Change:
    """Run the same job again, with all its attempts."""
    head = case.head
    after = Head(
        state=State.PENDING,
        version=head.version + 1,
        generation=head.generation + 1,
        attempt=0,
        claims=head.claims,
        crashes=0,
        run_at=case.now,
    )
    data = _asked_by(case.command)
    if isinstance(case.command, RetryItems):
        data["failed_items"] = True
    return after, data


def dismissed(case: Case[Dismiss]) -> Change:
    """Close a dead letter; its error is kept."""
    return _end(case, State.DISMISSED, case.head.error), _asked_by(case.command)
