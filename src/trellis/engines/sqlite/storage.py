"""How SQLite writes one job for the shared verbs: a statement per table."""

from __future__ import annotations

from collections.abc import Sequence

from trellis.core.admission import check_new_job
from trellis.core.commands import Complete
from trellis.core.durations import Instant
from trellis.core.job import NewJob
from trellis.core.lifecycle import Transition
from trellis.core.states import WAITING
from trellis.core.timers import keep_until, look_at
from trellis.engines.sql import create
from trellis.engines.sql.rows import Row, encode_failure
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite import fast_create
from trellis.engines.sqlite.transaction import Transaction, journal
from trellis.engines.values import CreateResult


def create_jobs(tx: Transaction, jobs: Sequence[NewJob]) -> list[CreateResult]:
    """Admit and store new jobs: plain ones at once, the others after a look at each."""
    tx.topics.add("ready")
    results = fast_create.create_plain(tx, jobs)
    if results is None:
        checked = [check_new_job(new) for new in jobs]
        results = run_through(create.create(tx.shared, SqliteStorage(tx), checked))
    return results


class SqliteStorage:
    """Writes in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    async def insert(self, jobs: Sequence[NewJob]) -> None:
        """Store new jobs, in the order given."""
        fast_create.insert(self._tx, jobs)

    async def end(self, transition: Transition) -> bool:
        """End a live job; False if its guard does not hold."""
        if not self._tx.run("commit_end", *guard(transition)):
            return False
        self._tx.run("commit_outcome_full", *outcome_row(transition))
        journal(self._tx, transition.definition.row, transition.event)
        return True

    async def move(self, transition: Transition) -> bool:
        """Change a live job that stays live; False if its guard does not hold."""
        row = self._move_row(transition)
        if not self._tx.run("commit_move", *row, *guard(transition)):
            return False
        journal(self._tx, transition.definition.row, transition.event)
        return True

    def _move_row(self, transition: Transition) -> Row:
        head = transition.head
        return (
            self._availability(transition),
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


def success_row(transition: Transition) -> Row:
    """Return the columns of an outcome without an error."""
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
    """Return all columns of an outcome."""
    *most, result, until = success_row(transition)
    return (*most, encode_failure(transition.head.error), result, until)
