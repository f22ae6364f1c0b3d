"""Ways to break what `trellis demo` promises; the demo must notice every one of them.

Each is a small fault in the product, never in the demo: a rule of the lifecycle, a guard of the
engine, or what a worker or a guardian does. It is put into every process of a demo before anything
else runs there (`sitecustomize`), when `DEMO_MUTANT` names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from trellis import control
from trellis.core import lifecycle, transitions
from trellis.core.commands import Command, Complete, Fail, FencedCommand, Snooze
from trellis.core.durations import Instant
from trellis.core.events import Event, EventKind
from trellis.core.job import Failure, Fence, JobRecord
from trellis.core.lifecycle import Refused, Stale, Transition
from trellis.core.retry import Retry
from trellis.engines.sql.rows import Row
from trellis.engines.sqlite import transaction
from trellis.engines.sqlite.transaction import STATEMENTS
from trellis.engines.values import DueJob
from trellis.worker import maintenance, outcomes, supervisor
from trellis.worker.attempt import Attempt
from trellis.worker.guardian import settle_dead, shutdown
from trellis.worker.shared_status import Running

VARIABLE: Final = "DEMO_MUTANT"


class Mutant(NamedTuple):
    """A fault, and the scene that shows it."""

    scene: str
    apply: Callable[[], None]
    #: What it breaks is not the scene's promise, but that of the journals.
    in_journals: bool = False


def given_up(fence: Fence | None) -> Fail:
    assert fence is not None
    return Fail(fence, Failure("lost", "given up"), retryable=False)


def forget_a_settlement() -> None:
    honest = outcomes.returned

    def returned(attempt: Attempt, result: object) -> FencedCommand:
        if result == 7 and attempt.record.head.claims == 1:
            return Snooze(attempt.fence, 0, attempt.started_at)
        return honest(attempt, result)

    outcomes.returned = returned


def wait_for_nothing() -> None:
    setattr(Retry, "delay", lambda _policy, _attempt, _roll: 0)  # noqa: B010 - a frozen class


def count_no_slot() -> None:
    assert "count(*)" in STATEMENTS["key_held"]
    STATEMENTS["key_held"] = STATEMENTS["key_held"].replace("count(*)", "0 * count(*)")


def change_rule(
    old: Callable[..., Any], new: Callable[..., Any] | None, event: EventKind | None = None
) -> None:
    for lines in lifecycle._TABLE.values():
        for state, rules in lines.items():
            lines[state] = tuple(
                (holds, new, event or kind) if change is old and new else (holds, change, kind)
                for holds, change, kind in rules
                if change is not old or new
            )


def write_no_dead_letter() -> None:
    change_rule(transitions.failed_dead, transitions.failed, EventKind.FAILED)


def count_no_crash() -> None:
    change_rule(transitions.crash_loop_dead, None)


def give_up_what_crashed() -> None:
    def judge(_: JobRecord, running: Running, __: frozenset[Fence]) -> FencedCommand:
        return given_up(running.fence)

    setattr(settle_dead, "crash_commands", lambda *_: judge)  # noqa: B010 - with any arguments


def give_up_what_is_lost() -> None:
    def lost(job: DueJob, _: Instant) -> Command:
        return given_up(job.record.head.fence)

    maintenance._lost = lost


def believe_any_attempt() -> None:
    honest = lifecycle.decide

    def decide(record: JobRecord, command: Command, now: Instant) -> Transition | Stale | Refused:
        fence = record.head.fence
        if isinstance(command, Complete) and fence is not None:
            command = Complete(fence, command.result, command.item_errors, command.started_at)
        return honest(record, command, now)

    setattr(control, "decide", decide)  # noqa: B010 - the name it was imported under


def stop_too_late() -> None:
    shutdown._AFTER_GRACE = supervisor._INTERRUPT_LIMIT = 9.0  # type: ignore[misc]


def journal_something_else() -> None:
    honest = transaction.shape

    def shape(job: int, event: Event) -> tuple[str, Row]:
        if event.kind is EventKind.COMPLETED:
            event = event._replace(version=event.version + 1)
        return honest(job, event)

    transaction.shape = shape
    later = STATEMENTS["success_event"].replace("q.version + 1", "q.version + 2")
    assert later != STATEMENTS["success_event"]
    STATEMENTS["success_event"] = later


MUTANTS: Final = {
    "a settlement is forgotten": Mutant("burst", forget_a_settlement),
    "a retry waits for nothing": Mutant("retry", wait_for_nothing),
    "slots of a key are not counted": Mutant("in-turn", count_no_slot),
    "a job out of attempts is given up": Mutant("dead-letter", write_no_dead_letter),
    "crashes are not counted": Mutant("crash", count_no_crash),
    "a guardian gives up what crashed": Mutant("process-killed", give_up_what_crashed),
    "what a lost worker held is given up": Mutant("worker-killed", give_up_what_is_lost),
    "any attempt may settle a job": Mutant("zombie", believe_any_attempt),
    "work is handed back too late": Mutant("stuck", stop_too_late),
    "the journal skips a version": Mutant("retry", journal_something_else, in_journals=True),
}


def apply_mutant() -> None:
    """Put the fault into this process."""
    name = os.environ.get(VARIABLE)
    if name:
        MUTANTS[name].apply()
