"""What claims and completions cost, as the server counts it: pages touched, index entries read."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import psycopg

from trellis.core.durations import SECOND
from trellis.core.job import SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.engines.demand import Demand
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import Claimed, Committed
from trellis.testing.builders import a_demand, a_worker
from trellis.testing.builders import complete as completion

_PAGES: Final = """
    select sum(coalesce(heap_blks_read, 0) + coalesce(heap_blks_hit, 0)
      + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0))
    from pg_statio_user_tables where schemaname = 'trellis'
"""
_ENTRIES: Final = """
    select idx_tup_read from pg_stat_user_indexes where indexrelname = 'queue_ready'
"""
_FLUSH: Final = "select pg_stat_force_next_flush()"


def keep_vacuum_away(sql: psycopg.Connection[Any], tables: Iterable[str]) -> None:
    """Let no vacuum of these tables touch pages or read rows while they are counted."""
    for table in tables:
        sql.execute(f"alter table trellis.{table} set (autovacuum_enabled = off)")
    # A vacuum of the database summarizes new pages for this index, whatever its table says.
    sql.execute("alter index trellis.event_feed set (autosummarize = off)")


class Cost(NamedTuple):
    """What one claim cost."""

    pages: int
    #: Entries read in the index that claims go by.
    entries: int
    jobs: int


@dataclass
class Meter:
    """Claims through an engine and asks the server what that took."""

    engine: PostgresEngine
    sql: psycopg.Connection[Any]
    session: SessionId
    demands: Sequence[Demand]

    @classmethod
    async def of(
        cls,
        engine: PostgresEngine,
        sql: psycopg.Connection[Any],
        demands: Sequence[Demand] = (a_demand(limit=1000),),
    ) -> Meter:
        """Return a meter with a session of its own."""
        session = await engine.open_session(a_worker(), 3600 * SECOND)
        return cls(engine, sql, session.id, demands)

    async def claim(self, limit: int = 100) -> tuple[Cost, Claimed]:
        """Claim, and say what it cost."""
        pages, entries = await self._counted()
        claimed = await self.engine.claim(self.session, self.demands, limit)
        pages_after, entries_after = await self._counted()
        return Cost(pages_after - pages, entries_after - entries, len(claimed.jobs)), claimed

    async def claim_and_complete(self, limit: int = 100) -> Cost:
        """Claim and complete, and say what the claim cost."""
        cost, claimed = await self.claim(limit)
        await complete(self.engine, claimed)
        return cost

    async def pages_of(self, call: Awaitable[object]) -> int:
        """Await a call of the engine; return how many pages it touched."""
        before, _ = await self._counted()
        await call
        return (await self._counted())[0] - before

    async def _counted(self) -> tuple[int, int]:
        # Each connection counts for itself, and tells when told to.
        await self.engine._hot.query(_FLUSH)
        return self._number(_PAGES), self._number(_ENTRIES)

    def _number(self, query: str) -> int:
        row = self.sql.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])


async def complete(engine: PostgresEngine, claimed: Claimed) -> None:
    """Complete all that was claimed."""
    decisions = [decide(each, completion(each), claimed.now) for each in claimed.jobs]
    answers = await engine.commit([each for each in decisions if isinstance(each, Transition)])
    assert answers == [Committed()] * len(claimed.jobs)
