"""Ways to break the SQL engines on purpose; the suite must notice every one of them.

Each mutant is one small fault of the kind that real engines have had: a guard dropped from a
WHERE, a release forgotten, an order changed, a clock comparison off by one. Those of statements are
faults of SQLite's; those of the verbs in `engines.sql` are faults of both engines. A mutant changes
this process through a `MonkeyPatch`, whose undo restores the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pytest

from trellis.core import fairness as core_fairness
from trellis.core.durations import Instant
from trellis.core.fairness import Ranked, Share, Turn
from trellis.core.lifecycle import Transition
from trellis.engines.audit import By, Change
from trellis.engines.contracts import ContractRecord, NewContract
from trellis.engines.postgres import commit as postgres_batches
from trellis.engines.sql import (
    audit,
    commit,
    contracts,
    fairness,
    followups,
    limits,
    notes,
    slots,
)
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


def _forget_lingering(patch: pytest.MonkeyPatch) -> None:
    async def linger(tx: shared.Transaction, transition: Transition) -> None: ...

    patch.setattr(limits, "linger", linger)


def _spend_nothing(patch: pytest.MonkeyPatch) -> None:
    async def spend(*_: object) -> None: ...

    patch.setattr(limits, "spend", spend)


def _free_locks_instead_of_linger(patch: pytest.MonkeyPatch) -> None:
    for module in (commit, sqlite_batches, postgres_batches):
        patch.setattr(module, "may_run_on", lambda _: False)


def _believe_any_note(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(notes, "_is_current", lambda _job, _note: True)


def _record_no_decision(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(audit, "recorded", lambda _: None)


def _record_a_conflict(patch: pytest.MonkeyPatch) -> None:
    honest = followups.conflict

    async def conflict(tx: shared.Transaction, transition: Transition) -> Conflict:
        await audit.record_decisions(tx, [transition])
        return await honest(tx, transition)

    for module in (commit, followups):
        patch.setattr(module, "conflict", conflict)


def _forget_the_virtual_time(patch: pytest.MonkeyPatch) -> None:
    honest = core_fairness.give_ranks

    def give_ranks(
        turns: Sequence[Turn[int]],
        _heads: Mapping[int, Instant],
        shares: Mapping[tuple[int, str], Share],
        now: Instant,
    ) -> Ranked[int]:
        return honest(turns, {}, shares, now)

    patch.setattr(fairness, "give_ranks", give_ranks)


def _count_cancelled_jobs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core_fairness, "_end_of", lambda share, virtual: share.end if share else virtual)


def _store_any_contract(patch: pytest.MonkeyPatch) -> None:
    honest = contracts.put

    async def put(tx: shared.Transaction, new: NewContract, by: By) -> ContractRecord | None:
        last = next(iter(await contracts.contracts(tx, new.service, 1)), None)
        return await honest(tx, new._replace(after=0 if last is None else last.number), by)

    patch.setattr(contracts, "put", put)


def _audit_no_acceptance(patch: pytest.MonkeyPatch) -> None:
    async def record(_tx: shared.Transaction, _change: Change, _by: By) -> None: ...

    patch.setattr(contracts, "record", record)


MUTANTS: Final[dict[str, Mutant]] = {
    "archive a job that runs again": _sql(
        ("archive_page", "exists (select 1 from trellis_queue l where l.job = q.job)", "0"),
        ("archive_look", "r.availability is not null", "0"),
    ),
    "expire a job twice": _sql(("archive_unkeep", "keep_until = null", "keep_until = keep_until")),
    "forget removals too early": _sql(
        ("prune_removals", "removed_at <= ?", "removed_at - 1000000 <= ?"),
        ("prune_removals_peek", "removed_at <= ?", "removed_at - 1000000 <= ?"),
    ),
    "skip an event of the feed after each page": _sql(
        ("feed_read", "e.seq > b.after", "e.seq > b.after + (b.after > 0)")
    ),
    "repeat an event of the feed": _sql(("feed_read", "e.seq > b.after", "e.seq >= b.after")),
    "give the number of a removed event again": _sql(
        ("feed_raise", "set job = 0", "set job = job")
    ),
    "keep the first removed event instead of the last": _sql(
        ("feed_raise", "select max(seq)", "select min(seq)")
    ),
    "drop the version guard": _sql(
        ("commit_end", "q.version = b.column2", "(q.version = b.column2 or true)"),
        ("success_outcome", "q.version = b.column2", "(q.version = b.column2 or true)"),
        ("commit_move", "version = ? and token", "(version = ? or true) and token"),
    ),
    "forget a slot release": _sql(("slot_free", "where id = ?", "where id = ? and false")),
    "claim in another order": _sql(
        ("claim_pick", "order by coalesce(rank, run_at), job", "order by job"),
        ("claim_pick_few", "order by coalesce(rank, run_at), job", "order by job"),
    ),
    "hand slots over in another order": _sql(
        (
            "key_next",
            "order by case when s.aging is null then -l.priority else 0 end,",
            "order by q.job,",
        )
    ),
    "journal a conflict": _journal_a_conflict,
    "skip a due job": _sql(("due_scheduled", "x.job limit ?", "x.job limit ? offset 1")),
    "look too late": _sql(("due_jobs", "look_at <= ?", "look_at < ?")),
    "keep the dedupe mark after the claim": _sql(
        ("claim_take", "dedupe = case when dedupe_unfinished then dedupe end,", "")
    ),
    "clear the dedupe mark of an unfinished job": _sql(
        ("claim_take", "case when dedupe_unfinished then dedupe end", "null")
    ),
    "forget the period of a dedupe mark": _sql(
        ("create_known", "j.dedupe_until > wanted.now", "j.dedupe_until < wanted.now")
    ),
    "free a slot whose handler may still run": _free_instead_of_linger,
    "free a lock whose handler may still run": _free_locks_instead_of_linger,
    "believe any note": _believe_any_note,
    "mix the items of attempts": _sql(("read_items", "select i.claim,", "select 1,")),
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
    "leave commands out of the audit": _record_no_decision,
    "record a conflict in the audit": _record_a_conflict,
    "begin a page of the audit with the last entry again": _sql(
        ("audit_list", "a.number < (", "a.number <= (")
    ),
    "record a second request to drain": _sql(("session_draining", "select draining", "select 0")),
    "forget the virtual time": _forget_the_virtual_time,
    "forget where a share ends": _sql(("fair_shares", "s.end_at,", "0,")),
    "count cancelled jobs against their tenant": _count_cancelled_jobs,
    "give every retry its old turn": _sql(
        ("commit_move", "rank = case when run_at = ? then rank end", "rank = coalesce(rank, ?)"),
        ("commit_move", "(rank is null or run_at <> ?)", "(rank is null or 0 * ?)"),
    ),
    "claim from a paused queue": _sql(("claim_settings", "where paused", "where 0")),
    "count a limit once too rarely": _sql(
        (
            "limit_use",
            "(select count(*) from counted cross",
            "(select count(*) / 2 from counted cross",
        )
    ),
    "count only the lanes of one limit": _sql(
        ("limit_use", "counted.id = l.id and q.session", "counted.lane = 1 and q.session")
    ),
    "forget what lingers under a limit": _forget_lingering,
    "spend no token of a rate": _spend_nothing,
    "refill a bucket by another clock": _sql(
        ("limit_use", "coalesce(k.full_at, 0)", "coalesce(k.full_at / 1000, 0)")
    ),
    "replace a contract that another has stored": _store_any_contract,
    "leave an acceptance out of the audit": _audit_no_acceptance,
    "list contracts from the first on": _sql(("contract_list", "c.number desc", "c.number")),
    "trim one contract too many": _sql(("contract_trim", "number <= ?", "number <= ? + 1")),
    "fire a schedule that has changed": _sql(("schedule_lock", "version = ?", "version >= ? * 0")),
    "store a schedule over a newer one": _sql(
        ("schedule_set", "and version = ?", "and version >= ? * 0")
    ),
    "forget which slots were decided": _sql(("slot_known", "slot in (", "slot + 1 in (")),
    "fire a slot too late": _sql(("schedule_due", "next_slot <= ?", "next_slot < ?")),
    "end a watched job without what follows": _sql(
        ("commit_end", "(b.column4 or not q.watched)", "true"),
        ("success_outcome", "and not q.watched", ""),
    ),
    "forget a member that has not finished": _sql(
        ("batch_complete", "m.finished_at is null", "m.finished_at is null and m.linked")
    ),
    "finish a member twice": _sql(("member_finish", "and finished_at is null", "")),
    "finish an open batch": _sql(("batch_complete", "b.sealed_at is not null", "true")),
    "release a job whose prerequisites have not all ended": _sql(
        ("dependency_waits", "d.ended is null", "d.ended is null and false")
    ),
    "forget to watch a prerequisite": _sql(
        ("dependency_watch", "watched = 1", "watched = 0 + watched")
    ),
    "let a changed job start before its prerequisites": _sql(
        ("commit_repark", "d.ended is null", "d.ended is not null")
    ),
    "hand on no result": _sql(
        ("dependency_payload", "payload = ?", "payload = coalesce(null, payload, ?)")
    ),
    "remove a job that another one needs": _sql(
        ("prune_pick", "where d.prerequisite = o.job", "where d.prerequisite = -o.job")
    ),
}
#: Faults in verbs that both SQL engines run.
SHARED: Final = (
    "forget the virtual time",
    "count cancelled jobs against their tenant",
    "believe any note",
    "leave commands out of the audit",
    "replace a contract that another has stored",
    "leave an acceptance out of the audit",
    "record a conflict in the audit",
    "journal a conflict",
    "free a slot whose handler may still run",
    "free a lock whose handler may still run",
    "forget what lingers under a limit",
    "spend no token of a rate",
)
