"""Ways to break the SQL engines on purpose; the suite must notice every one of them.

Each mutant is one small fault of the kind that real engines have had: a guard dropped from a
WHERE, a release forgotten, an order changed, a clock comparison off by one. Those of statements are
faults of SQLite's, if they do not say otherwise; those of the verbs in `engines.sql` are faults of
both engines (`SHARED`). A mutant changes this process through a `MonkeyPatch`, whose undo restores
the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pytest

from trellis.core import batches as core_batches
from trellis.core import dependencies as core_dependencies
from trellis.core import fairness as core_fairness
from trellis.core import followups as core_followups
from trellis.core.batches import Batch
from trellis.core.commands import Cancel, Resolve
from trellis.core.dependencies import Judgement, Link
from trellis.core.durations import Instant, Micros
from trellis.core.fairness import Ranked, Share, Turn
from trellis.core.job import Fence, JobRecord, NewJob
from trellis.core.lifecycle import Transition
from trellis.core.limits import Use
from trellis.core.schedules import Schedule, Step
from trellis.engines import schedules as engine_schedules
from trellis.engines.audit import By, Change
from trellis.engines.contracts import ContractRecord, NewContract
from trellis.engines.postgres import commit as postgres_batches
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.statements import statements
from trellis.engines.schedules import SlotRecord
from trellis.engines.sql import (
    audit,
    batches,
    commit,
    contracts,
    dependencies,
    fairness,
    followups,
    limits,
    notes,
    schedules,
    slots,
)
from trellis.engines.sql import transaction as shared
from trellis.engines.sql.rows import event_row
from trellis.engines.sqlite import claim as sqlite_claim
from trellis.engines.sqlite import commit as sqlite_batches
from trellis.engines.sqlite.transaction import STATEMENTS
from trellis.engines.values import CommitResult, Conflict

Mutant = Callable[[pytest.MonkeyPatch], None]


def _sql(*changes: tuple[str, str, str]) -> Mutant:
    """Replace a piece of text in statements of SQLite; the piece must be there."""
    return lambda patch: _replace(patch, STATEMENTS, changes)


def _postgres(*changes: tuple[str, str, str]) -> Mutant:
    """Replace a piece of text in statements of PostgreSQL."""
    return lambda patch: _replace(patch, statements("trellis"), changes)


def _replace(
    patch: pytest.MonkeyPatch, known: dict[str, str], changes: Iterable[tuple[str, str, str]]
) -> None:
    for name, old, new in changes:
        if old not in known[name]:
            raise LookupError(f"{name}.sql has no {old!r} to mutate")
        patch.setitem(known, name, known[name].replace(old, new))


def _both(*mutants: Mutant) -> Mutant:
    """Make the same fault in both engines."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        for mutant in mutants:
            mutant(patch)

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


def _edit_at_any_time(patch: pytest.MonkeyPatch) -> None:
    honest = schedules.advance_schedule

    async def advance_schedule(
        tx: shared.Transaction,
        storage: shared.Storage,
        step: Step,
        change: Change | None,
        by: By,
    ) -> list[SlotRecord] | None:
        return await honest(tx, storage, step._replace(until=None), change, by)

    patch.setattr(schedules, "advance_schedule", advance_schedule)


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


# -- hooks, batches, schedules, dependencies ---------------------------------------------------


def _drop_hooks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(followups, "hook_jobs", lambda _: [])


def _forget_the_generation(patch: pytest.MonkeyPatch) -> None:
    honest = core_followups.derived_id
    patch.setattr(
        core_followups, "derived_id", lambda source, _, purpose: honest(source, 0, purpose)
    )


def _fire_a_cancelled_batch(patch: pytest.MonkeyPatch) -> None:
    def finish(batch: Batch, now: Instant, *, succeeded: bool) -> tuple[Batch, NewJob | None]:
        return core_batches.finish(batch._replace(cancelled_at=None), now, succeeded=succeeded)

    patch.setattr(batches, "finish", finish)


def _fire_outside_of_the_outer_batch(patch: pytest.MonkeyPatch) -> None:
    def finish(batch: Batch, now: Instant, *, succeeded: bool) -> tuple[Batch, NewJob | None]:
        new = batch.new._replace(parent=None)
        after, job = core_batches.finish(batch._replace(new=new), now, succeeded=succeeded)
        return after._replace(new=batch.new), job

    patch.setattr(batches, "finish", finish)


def _prune_members(patch: pytest.MonkeyPatch) -> None:
    async def prune(_tx: shared.Transaction, _limit: int) -> None: ...

    patch.setattr(batches, "prune", prune)


def _stop_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batches, "stops_the_rest", lambda _batch, _state: False)


def _let_any_attempt_spawn(patch: pytest.MonkeyPatch) -> None:
    async def current_spawners(_tx: shared.Transaction, jobs: Sequence[NewJob]) -> set[Fence]:
        return {new.spawner for new in jobs if new.spawner is not None}

    patch.setattr(batches, "current_spawners", current_spawners)


def _believe_any_leader(patch: pytest.MonkeyPatch) -> None:
    async def lock(_tx: shared.Transaction, _schedule: Schedule) -> bool:
        return True

    patch.setattr(schedules, "_lock", lock)


def _forget_the_jobs_of_slots(patch: pytest.MonkeyPatch) -> None:
    def advanced(step: Step, records: Sequence[SlotRecord]) -> Schedule:
        return engine_schedules.advanced(step, records)._replace(live=())

    patch.setattr(schedules, "advanced", advanced)


def _start_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    def judge(links: Iterable[Link], payload: str | None = None) -> Judgement:
        judgement = core_dependencies.judge(links, payload)
        return Resolve(payload) if isinstance(judgement, Cancel) else judgement

    patch.setattr(dependencies, "judge", judge)


def _cancel_only_the_next(patch: pytest.MonkeyPatch) -> None:
    honest = dependencies.follow

    async def follow(
        tx: shared.Transaction, storage: shared.Storage, ended: Sequence[dependencies.Ended]
    ) -> tuple[list[Transition], int]:
        _, links = await honest(tx, storage, ended)
        return [], links

    patch.setattr(dependencies, "follow", follow)


def _hand_on_nothing(patch: pytest.MonkeyPatch) -> None:
    async def payload(_tx: shared.Transaction, _record: JobRecord) -> str | None:
        return None

    patch.setattr(dependencies, "_payload", payload)


def _drop_the_backlog(patch: pytest.MonkeyPatch) -> None:
    async def postpone(_tx: shared.Transaction, _ended: Sequence[dependencies.Ended]) -> None: ...

    patch.setattr(dependencies, "postpone", postpone)


# -- limits and order --------------------------------------------------------------------------


def _count_nothing(patch: pytest.MonkeyPatch) -> None:
    honest = limits.read_uses

    async def read_uses(
        tx: shared.Transaction, numbers: Sequence[int], counted: Sequence[int]
    ) -> dict[int, Use]:
        found = await honest(tx, numbers, counted)
        return {number: use._replace(running=0) for number, use in found.items()}

    patch.setattr(limits, "read_uses", read_uses)


def _ignore_aging(patch: pytest.MonkeyPatch) -> None:
    honest = core_fairness.claim_order

    def claim_order(priority: int, rank: Instant, _aging: Micros | None) -> tuple[int, int]:
        return honest(priority, rank, None)

    async def read_aging(_registry: Registry, _link: object) -> None: ...

    patch.setattr(sqlite_claim, "claim_order", claim_order)
    patch.setattr(Registry, "read_aging", read_aging)


MUTANTS: Final[dict[str, Mutant]] = {
    "drop the hooks of a job": _drop_hooks,
    "give the hooks of all generations one id": _forget_the_generation,
    "create the fan-in job of a cancelled batch": _fire_a_cancelled_batch,
    "leave a fan-in job out of the outer batch": _fire_outside_of_the_outer_batch,
    "remove members of an unfinished batch": _both(
        _prune_members,
        _sql(("prune_pick", "where m.job = o.job and", "where m.job = -o.job and")),
        _postgres(("prune_pick", "where m.job = o.job)", "where m.job = -o.job)")),
    ),
    "let the rest of a failed batch go on": _stop_nothing,
    "let an attempt that is over spawn": _let_any_attempt_spawn,
    "fire whatever another leader has decided": _believe_any_leader,
    "forget the jobs of earlier slots": _forget_the_jobs_of_slots,
    "start a job after its prerequisite failed": _start_after_a_failure,
    "leave what follows a cancelled job waiting": _cancel_only_the_next,
    "hand no result on to the next job": _hand_on_nothing,
    "forget the links beyond the first page": _drop_the_backlog,
    "count nothing that runs in a claim": _count_nothing,
    "ignore aging": _ignore_aging,
    "spend no token of a key": _both(
        _sql(("key_bucket_put", "full_at = excluded.full_at", "full_at = 0")),
        _postgres(("key_bucket_put", "full_at = excluded.full_at", "full_at = 0")),
    ),
    "read the feed past transactions that still run": _postgres(
        ("feed_end", "pg_snapshot_xmin", "pg_snapshot_xmax")
    ),
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
            "order by g.has_slot desc, case when s.aging is null then -l.priority else 0 end,",
            "order by g.has_slot desc, q.job,",
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
    "trim the deployed contract": _sql(("contract_trim", "c.number is not (", "-1 is not (")),
    "give a result no tenant": _sql(
        ("dependency_tenant", "tenant = ?", "tenant = iif(0, ?, null)")
    ),
    "inherit the tenant of the last member": _sql(
        ("batch_first", "m.job limit", "m.job desc limit")
    ),
    "ignore a second declaration": _sql(("type_declare", "or replace", "or ignore")),
    "fire a schedule that has changed": _sql(("schedule_lock", "version = ?", "version >= ? * 0")),
    "edit a schedule after a slot became due": _edit_at_any_time,
    "forget which slots were decided": _sql(("slot_known", "slot in (", "slot + 1 in (")),
    "fire a slot too late": _sql(("schedule_due", "next_slot <= ?", "next_slot < ?")),
    "end a watched job without what follows": _sql(
        ("commit_end", "(b.column4 or not q.watched)", "true"),
        ("success_outcome", "and not q.watched", ""),
    ),
    "forget a member that has not finished": _sql(
        ("batch_complete", "m.finished_at is null", "m.finished_at is null and m.linked")
    ),
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
#: Faults that only PostgreSQL can have.
OF_POSTGRES: Final = ("read the feed past transactions that still run",)
#: Faults in verbs that both SQL engines run.
SHARED: Final = (
    "drop the hooks of a job",
    "give the hooks of all generations one id",
    "create the fan-in job of a cancelled batch",
    "leave a fan-in job out of the outer batch",
    "remove members of an unfinished batch",
    "let the rest of a failed batch go on",
    "let an attempt that is over spawn",
    "fire whatever another leader has decided",
    "forget the jobs of earlier slots",
    "start a job after its prerequisite failed",
    "leave what follows a cancelled job waiting",
    "hand no result on to the next job",
    "forget the links beyond the first page",
    "count nothing that runs in a claim",
    "ignore aging",
    "spend no token of a key",
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
    "edit a schedule after a slot became due",
    "spend no token of a rate",
)
