"""Ways to break the SQL engines on purpose; the suite must notice every one of them.

Each mutant is one small fault of the kind that real engines have had: a guard dropped from a
WHERE, a release forgotten, an order changed, a clock comparison off by one. Those of statements are
faults of SQLite's; those of the verbs in `engines.sql` are faults of both engines. A mutant changes
this process through a `MonkeyPatch`, whose undo restores the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from trellis.core.lifecycle import Transition
from trellis.engines.postgres import commit as postgres_batches
from trellis.engines.sql import commit, notes, slots
from trellis.engines.sql import transaction as shared
from trellis.engines.sql.rows import event_row
from trellis.engines.sqlite import commit as sqlite_batches
from trellis.engines.sqlite.transaction import STATEMENTS
from trellis.engines.values import CommitResult, Conflict

Mutant = Callable[[pytest.MonkeyPatch], None]


def _sql(*changes: tuple[str, str, str]) -> Mutant:
    """Replace a piece of text in statements; the piece must be there."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        for name, old, new in changes:
            if old not in STATEMENTS[name]:
                raise LookupError(f"{name}.sql has no {old!r} to mutate")
            patch.setitem(STATEMENTS, name, STATEMENTS[name].replace(old, new))

    return apply


def _journal_a_conflict(patch: pytest.MonkeyPatch) -> None:
    honest = commit.commit_one

    async def commit_one(
        tx: shared.Transaction, storage: shared.Storage, transition: Transition
    ) -> CommitResult:
        result = await honest(tx, storage, transition)
        if isinstance(result, Conflict) and result.record is not None:
            await tx.run("event_full", *event_row(transition.definition.row, transition.event))
        return result

    patch.setattr(commit, "commit_one", commit_one)


def _free_instead_of_linger(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slots, "slot_effect", lambda _: "free")


def _free_locks_instead_of_linger(patch: pytest.MonkeyPatch) -> None:
    for module in (commit, sqlite_batches, postgres_batches):
        patch.setattr(module, "may_run_on", lambda _: False)


def _believe_any_note(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(notes, "_is_current", lambda _job, _note: True)


MUTANTS: Final[dict[str, Mutant]] = {
    "drop the version guard": _sql(
        ("commit_end", "q.version = b.column2", "(q.version = b.column2 or true)"),
        ("success_outcome", "q.version = b.column2", "(q.version = b.column2 or true)"),
        ("commit_move", "version = ? and token", "(version = ? or true) and token"),
    ),
    "forget a slot release": _sql(("slot_free", "where id = ?", "where id = ? and false")),
    "claim in another order": _sql(
        ("claim_pick", "order by job", "order by job desc"),
        ("claim_pick_few", "order by job", "order by job desc"),
    ),
    "journal a conflict": _journal_a_conflict,
    "skip a due job": _sql(("due_scheduled", "x.job limit ?", "x.job limit ? offset 1")),
    "look too late": _sql(("due_jobs", "look_at <= ?", "look_at < ?")),
    "keep the dedupe mark after the claim": _sql(("claim_take", "dedupe = null,", "")),
    "free a slot whose handler may still run": _free_instead_of_linger,
    "free a lock whose handler may still run": _free_locks_instead_of_linger,
    "believe any note": _believe_any_note,
    "renew a session that was reaped": _sql(("session_renew", "and ended_at is null", "")),
    "claim under a session that was reaped": _sql(("session_lease", "and ended_at is null", "")),
    "reap by the wall clock": _sql(
        ("due_sessions", "lease_until <= ?", "opened_at + lease <= 1000 * ?")
    ),
    "count a slot once too often": _sql(("key_held", "count(*)", "count(*) - 1")),
    "forget when the job may run": _sql(("commit_move", "run_at = ?,", "run_at = ? * 0,")),
    "count a lock of an attempt that is over": _sql(
        ("lock_holder", "q.job is not null", "true"), ("lock_list", "q.job is not null", "true")
    ),
    "claim from a paused queue": _sql(("queue_settings", "queue, paused", "queue, 0")),
}
#: Faults in verbs that both SQL engines run.
SHARED: Final = (
    "believe any note",
    "journal a conflict",
    "free a slot whose handler may still run",
    "free a lock whose handler may still run",
)
