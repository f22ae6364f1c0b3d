"""How SQLite writes one job for the shared verbs: a statement per table."""

from __future__ import annotations

from collections.abc import Sequence

from trellis.core.admission import check_new_job
from trellis.core.commands import Complete
from trellis.core.durations import Instant
from trellis.core.job import Definition, NewJob
from trellis.core.lifecycle import Transition
from trellis.core.states import WAITING
from trellis.core.timers import keep_until, look_at
from trellis.engines.audit import By
from trellis.engines.sql import create
from trellis.engines.sql.rows import Row, encode_failure, encode_ids, lane_of
from trellis.engines.sql.slots import hand_over
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite import fast_create
from trellis.engines.sqlite.transaction import Transaction, journal, journal_many, shape_many
from trellis.engines.values import CreateResult


def create_jobs(
    tx: Transaction, jobs: Sequence[NewJob], by: By | None = None
) -> list[CreateResult]:
    """Admit and store new jobs: plain ones at once, the others after a look at each."""
    tx.topics.add("ready")
    results = fast_create.create_plain(tx, jobs) if by is None else None
    if results is None:
        checked = [check_new_job(new) for new in jobs]
        results = run_through(create.create(tx.shared, SqliteStorage(tx), checked, by))
    return results


class SqliteStorage:
    """Writes in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    async def insert(self, jobs: Sequence[NewJob]) -> None:
        """Store new jobs, in the order given."""
        fast_create.insert(self._tx, jobs)

    async def insert_following(self, jobs: Sequence[NewJob]) -> None:
        """Store jobs that follow others; give those with keys their slots."""
        fast_create.insert(self._tx, jobs, ranked=False)
        await hand_over(self._tx.shared, (new.key_hash for new in jobs))

    async def end(self, transition: Transition) -> bool:
        """End a live job that is not watched; False if its guard does not hold."""
        return bool(self._end([transition], watched=False))

    async def end_watched(self, transitions: Sequence[Transition]) -> set[int]:
        """End live jobs; return the numbers of those whose guards held."""
        return self._end(transitions, watched=True)

    def _end(self, transitions: Sequence[Transition], *, watched: bool) -> set[int]:
        tx = self._tx
        policies = policies_in_force(tx, transitions)
        ended = [each for each in transitions if tx.run("commit_end", *guard(each), watched)]
        rows = [outcome_row(each) for each in ended]
        tx.run_sparse("commit_outcome_full", [(*row, policies.get(row[0])) for row in rows])
        journal_many(tx, shape_many((each.definition.row, each.event) for each in ended))
        return {each.definition.row for each in ended}

    async def move(self, transition: Transition) -> bool:
        """Change a live job that stays live; False if its guard does not hold."""
        row = self._move_row(transition)
        if not self._tx.run("commit_move", *row, *guard(transition)):
            return False
        journal(self._tx, transition.definition.row, transition.event)
        return True

    async def redefine(self, definition: Definition) -> None:
        """Store the queue, priority and attempts of a live job."""
        lane = self._tx.registry.lane_number(self._tx, lane_of(definition))
        self._tx.run("adjust_job", lane, definition.attempts, definition.row)
        self._tx.run("adjust_queue", lane, lane, lane, definition.row)

    def _move_row(self, transition: Transition) -> Row:
        head = transition.head
        return (
            head.state in WAITING,
            head.run_at,
            self._availability(transition),
            head.run_at,
            head.state,
            head.version,
            head.generation,
            head.attempt,
            head.claims,
            head.crashes,
            head.run_at,
            *(head.fence or (None, None)),
            head.claimed_at,
            head.asked_at,
            head.blocked,
            head.suspect,
            encode_failure(head.error),
            look_at(transition.definition, head, self._seen_at(transition)),
        )

    def _availability(self, transition: Transition) -> str:
        definition, head = transition.definition, transition.head
        if head.state not in WAITING:
            return "claimed"
        if head.run_at > self._tx.now:
            return "scheduled"
        return "ready" if definition.key_hash is None else "waiting_for_slot"

    def _seen_at(self, transition: Transition) -> Instant | None:
        """Return the last sign of life of an attempt that continues."""
        if transition.head.fence is None:
            return None
        row = self._tx.one("commit_seen_at", transition.definition.row)
        return row[0] if row else None


def guard(transition: Transition) -> Row:
    """Return what must still be true of the job: its version and token."""
    before = transition.before
    token = None if before.fence is None else before.fence.token
    return (transition.definition.row, before.version, token)


def policies_in_force(tx: Transaction, transitions: Sequence[Transition]) -> dict[int, int | None]:
    """Return the numbers of the policies in force of these live jobs, by job."""
    jobs = encode_ids([each.definition.row for each in transitions])
    return {job: policy for job, policy in tx.rows("commit_policies", jobs)}  # noqa: C416


def success_row(transition: Transition) -> Row:
    """Return the columns of an outcome without an error, except the policy."""
    head, command = transition.head, transition.command
    started_at: Instant | None = getattr(command, "started_at", None)
    return (
        transition.definition.row,
        head.generation,
        head.state._value_,
        head.version,
        head.attempt,
        head.claims,
        head.crashes,
        head.run_at,
        started_at,
        head.finished_at,
        command.result if isinstance(command, Complete) else None,
        keep_until(transition.definition, head),
    )


def outcome_row(transition: Transition) -> Row:
    """Return all columns of an outcome, except the policy."""
    *most, result, until = success_row(transition)
    return (*most, encode_failure(transition.head.error), result, until)
