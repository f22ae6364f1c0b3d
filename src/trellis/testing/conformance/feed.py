"""The feed: every event once, in commit order, from any cursor; losses are reported."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import pytest

from trellis.core.commands import Complete, Fail
from trellis.core.commands import Retry as RetryJob
from trellis.core.events import Event
from trellis.core.fold import fold
from trellis.core.job import Failure, JobId, JobRecord
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.engines.feed import NOW, Changes, Expired, FeedEntry
from trellis.engines.port import Engine
from trellis.engines.values import LateResult, Note
from trellis.errors import CursorInvalid
from trellis.testing.builders import a_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    journal,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import Another, EngineSuite, needs

_ALL = 1000
_LOOKS = 2000


async def read(engine: Engine, after: str | None, limit: int = _ALL) -> Changes:
    """Read a page that must be complete."""
    page = await engine.changes(after, limit)
    assert isinstance(page, Changes), page
    assert len(page.entries) <= limit
    return page


async def read_until(engine: Engine, after: str | None, count: int) -> list[FeedEntry]:
    """Read until there are this many: short transactions of the engine may hold an event back."""
    found: list[FeedEntry] = []
    for _ in range(_LOOKS):
        page = await read(engine, after)
        found += page.entries
        after = page.cursor
        if len(found) >= count:
            return found
    raise AssertionError(f"The feed has {len(found)} events, not {count}.")


async def _history(engine: Engine) -> list[JobRecord]:
    """Make eleven events of three jobs, one of them about a late result."""
    session = await a_session(engine, "1h")
    policy = Policy(retry=Retry.never())
    first = await start(engine, session, a_job(policy=policy, tags=(("tenant", "acme"),)))
    second = await start(engine, session, a_job(policy=policy))
    await settle(engine, second, complete(second))
    failed = await settle(
        engine, first, Fail(fence_of(first), Failure("exception", "boom"), retryable=False)
    )
    await settle(engine, failed, RetryJob())
    late = LateResult("complete", None)
    await engine.note([Note(first.definition.row, first.head.claims, fence_of(first), late)])
    third = await start(engine, session, a_job(type="refund", queue="refunds"))
    await settle(engine, third, complete(third))
    return [await the(engine, each.definition.id) for each in (first, second, third)]


async def _journals(engine: Engine, records: list[JobRecord]) -> dict[JobId, list[Event]]:
    return {record.definition.id: await journal(engine, record) for record in records}


def _by_job(entries: list[FeedEntry]) -> dict[JobId, list[Event]]:
    found: dict[JobId, list[Event]] = {}
    for entry in entries:
        found.setdefault(entry.job_id, []).append(entry.event)
    return found


class TestFeed(EngineSuite):
    """All events of all jobs, in commit order."""

    async def test_an_empty_feed_has_a_cursor(self, engine: Engine) -> None:
        page = await read(engine, None)
        assert (page.entries, page.is_last) == ((), True)
        record = await accept_one(engine, a_job())
        (entry,) = await read_until(engine, page.cursor, 1)
        assert (entry.job_id, entry.event) == (
            record.definition.id,
            (await journal(engine, record))[0],
        )

    async def test_every_event_appears_once_and_in_order(self, engine: Engine) -> None:
        records = await _history(engine)
        journals = await _journals(engine, records)
        entries = await read_until(engine, None, sum(map(len, journals.values())))
        assert _by_job(entries) == journals
        assert len({entry.cursor for entry in entries}) == len(entries)
        assert [(e.service, e.type, e.queue, e.tags) for e in (entries[0], entries[-1])] == [
            ("shop", "invoice", "invoices", (("tenant", "acme"),)),
            ("shop", "refund", "refunds", ()),
        ]
        for record in records:
            assert fold(_by_job(entries)[record.definition.id]) == record.head

    async def test_a_later_commit_comes_later(self, engine: Engine) -> None:
        created = [(await accept_one(engine, a_job())).definition.id for _ in range(5)]
        assert [entry.job_id for entry in await read_until(engine, None, 5)] == created

    async def test_the_feed_can_be_resumed_after_every_event(self, engine: Engine) -> None:
        journals = await _journals(engine, await _history(engine))
        entries = await read_until(engine, None, sum(map(len, journals.values())))
        for place, entry in enumerate(entries):
            rest = (await read(engine, entry.cursor)).entries
            assert list(rest) == entries[place + 1 :]

    async def test_pages_of_any_size_give_the_same_events(self, engine: Engine) -> None:
        journals = await _journals(engine, await _history(engine))
        entries = await read_until(engine, None, sum(map(len, journals.values())))
        for size in (1, 2, 3, len(entries), len(entries) + 1):
            found: list[FeedEntry] = []
            page = await read(engine, None, size)
            while True:
                found += page.entries
                if page.is_last:
                    break
                page = await read(engine, page.cursor, size)
            assert found == entries

    async def test_a_batch_has_an_order_too(self, engine: Engine) -> None:
        jobs = [a_job(priority=place % 3) for place in range(30)]
        await accept(engine, *jobs)
        entries = await read_until(engine, None, 30)
        assert [entry.job_id for entry in entries] == [new.id for new in jobs]
        (after,) = (await read(engine, entries[16].cursor, 1)).entries
        assert after == entries[17]

    async def test_from_now_on_leaves_out_what_was(self, engine: Engine) -> None:
        await accept_one(engine, a_job())
        await read_until(engine, None, 1)
        page = await read(engine, NOW)
        assert (page.entries, page.is_last) == ((), True)
        record = await accept_one(engine, a_job())
        (entry,) = await read_until(engine, page.cursor, 1)
        assert entry.job_id == record.definition.id

    async def test_the_cursor_moves_on_without_events(self, engine: Engine) -> None:
        await accept_one(engine, a_job())
        await read_until(engine, None, 1)
        page = await read(engine, (await read(engine, None)).cursor)
        assert page.entries == ()
        assert (await read(engine, page.cursor)).entries == ()

    @pytest.mark.parametrize("text", ["", "x", "12", "s1", "p1.2.3", "z0.0", "s-1.0", "now "])
    async def test_a_text_that_is_no_cursor_is_refused(self, engine: Engine, text: str) -> None:
        with pytest.raises(CursorInvalid):
            await engine.changes(text)

    @needs("processes")
    async def test_a_cursor_is_valid_in_other_processes(
        self, engine: Engine, another: Another
    ) -> None:
        await _history(engine)
        entries = await read_until(engine, None, 11)
        other = await another()
        try:
            assert list((await read(other, entries[4].cursor)).entries) == entries[5:]
        finally:
            await other.close()


class TestFeedLosses(EngineSuite):
    """Events go with their job; a reader that had yet to see them is told."""

    async def _ended(self, engine: Engine) -> JobRecord:
        taken = await start(engine, await a_session(engine, "1h"), a_job())
        return await settle(engine, taken, Complete(fence_of(taken)))

    async def test_a_reader_that_has_lost_events_is_told(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        kept = await accept_one(engine, a_job(type="refund"))
        (first,) = await read_until(engine, None, 1)
        removed = await self._ended(engine)
        entries = await read_until(engine, first.cursor, 3)
        ended_at = clock.now()
        clock.advance("1s")
        assert await engine.remove([removed.definition.id]) == ["removed"]
        for place, entry in enumerate([first, *entries[:-1]]):
            answer = await engine.changes(entry.cursor)
            assert isinstance(answer, Expired), place
            assert answer.until == ended_at
            assert (await read(engine, answer.cursor)).entries == ()
        assert (await read(engine, entries[-1].cursor)).entries == ()
        assert [each.job_id for each in (await read(engine, None)).entries] == [kept.definition.id]

    async def test_a_reader_that_has_seen_all_loses_nothing(self, engine: Engine) -> None:
        removed = await self._ended(engine)
        entries = await read_until(engine, None, 3)
        assert await engine.remove([removed.definition.id]) == ["removed"]
        record = await accept_one(engine, a_job())
        (entry,) = await read_until(engine, entries[-1].cursor, 1)
        assert entry.job_id == record.definition.id

    async def test_a_reader_from_the_beginning_may_stop_and_go_on(self, engine: Engine) -> None:
        kept = await accept(engine, a_job(type="refund"), a_job(type="refund"))
        removed = await self._ended(engine)
        await read_until(engine, None, 5)
        await engine.remove([removed.definition.id])
        first, second = (await read(engine, None)).entries
        assert [first.job_id, second.job_id] == [each.definition.id for each in kept]
        assert (await read(engine, first.cursor)).entries == (second,)
        again = await self._ended(engine)
        await read_until(engine, second.cursor, 3)
        await engine.remove([again.definition.id])
        assert isinstance(await engine.changes(first.cursor), Expired)

    async def test_retention_is_a_loss_too(self, engine: Engine, clock: ManualClock) -> None:
        before = (await read(engine, NOW)).cursor
        await self._ended(engine)
        await read_until(engine, before, 3)
        clock.advance("30d")
        assert await engine.prune(100) == 1
        assert isinstance(await engine.changes(before), Expired)

    async def test_positions_of_removed_events_are_not_given_again(self, engine: Engine) -> None:
        removed = await self._ended(engine)
        cursor = (await read_until(engine, None, 3))[-1].cursor
        for _ in range(3):
            await engine.remove([removed.definition.id])
            removed = await self._ended(engine)
            entries = await read_until(engine, cursor, 3)
            assert [entry.job_id for entry in entries] == [removed.definition.id] * 3
            cursor = entries[-1].cursor

    async def test_a_cursor_that_is_ahead_of_the_store_is_reported(self, engine: Engine) -> None:
        await accept_one(engine, a_job())
        (entry,) = await read_until(engine, None, 1)
        ahead = f"{entry.cursor[0]}{2**61}.7"
        answer = await engine.changes(ahead)
        assert isinstance(answer, Expired)
        assert answer.until is None
        assert (await read(engine, answer.cursor)).entries == (entry,)
