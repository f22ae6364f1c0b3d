"""Archives: expired jobs wait for their archiver, and exactly what it took is removed."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from dataclasses import replace

from trellis.core.audit import By
from trellis.core.commands import Complete, Fail
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobRecord
from trellis.core.policy import Policy, Retention
from trellis.core.retry import Retry
from trellis.engines.archive import KEEP_REMOVALS, Archived, ArchiveState
from trellis.engines.audit import AuditFilter
from trellis.engines.port import Engine
from trellis.testing.builders import a_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    claim_one,
    ids,
    settle,
    start,
    the,
    were_removed,
)
from trellis.testing.conformance.suite import EngineSuite

SHORT = Policy(
    retry=Retry.never(),
    retention=Retention(
        completed=10 * SECOND, failed=10 * SECOND, dead=10 * SECOND, other=10 * SECOND
    ),
)
BOOM = Failure("exception", "boom")


async def ended(engine: Engine, count: int = 1, service: str = "shop") -> list[JobRecord]:
    """Return completed jobs of a service that are kept for ten seconds."""
    session = await a_session(engine, "1d")
    taken = [
        await start(engine, session, a_job(policy=SHORT, service=service)) for _ in range(count)
    ]
    return [await settle(engine, each, Complete(fence_of(each))) for each in taken]


async def remove(engine: Engine, *records: JobRecord) -> int:
    """Remove jobs as an archiver's worker does."""
    taken = [Archived(each.definition.id, each.head.version) for each in records]
    return await engine.remove_archived(taken)


class TestArchive(EngineSuite):
    """A service that archives keeps its expired jobs until they are archived."""

    async def test_expired_jobs_wait_for_their_archive_and_others_do_not(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.set_archive("shop", on=True)
        kept, (other,) = await ended(engine, 3), await ended(engine, service="mail")
        assert await engine.archivable("shop", 10) == []
        clock.advance("10s")
        assert await engine.prune(100) == 4
        assert await engine.prune(100) == 0
        assert await were_removed(engine, other.definition.id) == [True]
        assert await engine.archivable("shop", 2) == kept[:2]
        assert await engine.archivable("shop", 10) == kept
        assert await engine.archivable("mail", 10) == []

    async def test_exactly_the_archived_jobs_are_removed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.set_archive("shop", on=True)
        first, second, third = await ended(engine, 3)
        fresh = await ended(engine)
        clock.advance("9s")
        (late,) = await ended(engine)
        clock.advance("1s")
        await engine.prune(100)
        assert await remove(engine, first, second, late) == 2
        assert await remove(engine, first, second) == 0
        assert await engine.archivable("shop", 10) == [third, *fresh]
        gone = await were_removed(engine, *ids([first, second, third, late]))
        assert gone == [True, True, False, False]

    async def test_a_job_that_runs_again_is_kept_for_its_new_end(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.set_archive("shop", on=True)
        session = await a_session(engine, "1d")
        taken = await start(engine, session, a_job(policy=SHORT))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        clock.advance("10s")
        await engine.prune(100)
        assert await engine.archivable("shop", 10) == [failed]
        revived = await settle(engine, failed, RetryJob())
        assert await remove(engine, failed) == 0  # between archiving and removing
        assert await engine.archivable("shop", 10) == []
        assert await the(engine, revived.definition.id) == revived
        again = await claim_one(engine, session)
        done = await settle(engine, again, Complete(fence_of(again)))
        clock.advance("9s")
        assert await engine.prune(100) == 0
        assert await engine.archivable("shop", 10) == []
        clock.advance("1s")
        assert await engine.prune(100) == 1
        assert await engine.archivable("shop", 10) == [done]
        assert await remove(engine, done) == 1

    async def test_a_job_that_ended_again_is_not_removed_as_the_old_one(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.set_archive("shop", on=True)
        session = await a_session(engine, "1d")
        taken = await start(engine, session, a_job(policy=SHORT))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        clock.advance("10s")
        await engine.prune(100)
        await settle(engine, failed, RetryJob())
        again = await claim_one(engine, session)
        done = await settle(engine, again, Complete(fence_of(again)))
        assert await remove(engine, failed) == 0
        assert await remove(engine, done) == 0
        assert await engine.archivable("shop", 10) == []
        assert await the(engine, done.definition.id) == done

    async def test_switched_off_it_removes_what_waits(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.set_archive("shop", on=True)
        waiting = await ended(engine, 3)
        clock.advance("10s")
        await engine.prune(100)
        await engine.set_archive("shop", on=False)
        later = await ended(engine)
        clock.advance("10s")
        assert await engine.prune(3) == 3
        assert await engine.prune(3) == 1
        assert all(await were_removed(engine, *ids([*waiting, *later])))

    async def test_operators_may_remove_a_job_that_waits(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.set_archive("shop", on=True)
        first, second = await ended(engine, 2)
        clock.advance("10s")
        await engine.prune(100)
        assert await engine.remove([first.definition.id]) == ["removed"]
        assert await engine.archivable("shop", 10) == [second]

    async def test_its_state_says_what_waits_and_since_when_it_fails(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        on = ArchiveState("shop", is_on=True, since=clock.now())
        assert await engine.archives() == []
        assert await engine.set_archive("shop", on=True, by=By("worker", "declared"))
        assert not await engine.set_archive("shop", on=True)
        assert not await engine.set_archive("mail", on=False)
        await ended(engine)
        clock.advance("10s")
        await engine.prune(100)
        expired = clock.now()
        clock.advance("1h")
        await engine.note_archive("shop", "OSError: disk full")
        failing = clock.now()
        clock.advance("1h")
        await engine.note_archive("shop", "OSError: still full")
        assert await engine.archives() == [
            on._replace(
                waiting_since=expired,
                failing_since=failing,
                failures=2,
                error="OSError: still full",
            )
        ]
        await engine.note_archive("shop", None)
        assert await engine.archives() == [on._replace(waiting_since=expired)]
        (entry,) = await engine.audit(AuditFilter())
        assert (entry.change.action, entry.change.target, entry.by.actor) == (
            "archive.on",
            "shop",
            "worker",
        )

    async def test_a_declaration_does_not_undo_what_an_operator_switched(
        self, engine: Engine
    ) -> None:
        by = By("worker", "declared")
        assert await engine.declare_archive("shop", by)
        assert not await engine.declare_archive("shop", by)
        assert await engine.set_archive("shop", on=False)
        assert not await engine.declare_archive("shop", by)
        assert [(each.service, each.is_on) for each in await engine.archives()] == [("shop", False)]
        entries = await engine.audit(AuditFilter())
        assert [(each.change.action, each.by.actor) for each in entries] == [
            ("archive.off", "operator"),
            ("archive.on", "worker"),
        ]

    async def test_removals_are_forgotten_after_a_while(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first = await ended(engine, 2)
        clock.advance("10s")
        await engine.prune(100)
        clock.advance_micros(KEEP_REMOVALS - SECOND)
        (late,) = await ended(engine)
        await engine.remove(ids([late]))
        await engine.prune(100)
        assert await were_removed(engine, *ids([*first, late])) == [True, True, True]
        clock.advance("1s")
        await engine.prune(1)
        assert sum(await were_removed(engine, *ids([*first, late]))) == 2
        await engine.prune(100)
        assert await were_removed(engine, *ids([*first, late])) == [False, False, True]

    async def test_an_idempotency_key_is_free_again_when_its_job_is_archived(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.set_archive("shop", on=True)
        session = await a_session(engine, "1d")
        new = a_job(policy=SHORT, idempotency_key="once")
        taken = await start(engine, session, new)
        done = await settle(engine, taken, Complete(fence_of(taken)))
        clock.advance("10s")
        await engine.prune(100)
        again = a_job(policy=replace(SHORT), idempotency_key="once")
        (answer,) = await engine.create([again])
        assert answer[0] == new.id  # it waits for its archive, and still counts
        await remove(engine, done)
        await start(engine, session, again)
