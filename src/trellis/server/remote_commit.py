"""Commits of remote programs: the server decides each command itself and stores its own decision.

A remote program sends the command and the version and fence that it decided against, never a head.
If the job is still at that version, the same rules lead to the same decision; otherwise the answer
is a conflict with the job as it is, as from every engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from trellis.core.commands import Command
from trellis.core.durations import SECOND, Instant
from trellis.core.job import JobId, JobRecord
from trellis.core.lifecycle import Transition, decide
from trellis.engines.http.protocol import Decided
from trellis.engines.port import Engine
from trellis.engines.values import CommitResult, Conflict

#: The time of a decision may be this old: a batch waits while the one before it is stored.
_OLDEST: Final = 60 * SECOND
#: How many claimed jobs a server process remembers.
_REMEMBERED: Final = 10_000

#: Raises if the caller may not give one of these commands to its job.
Check = Callable[[Sequence[tuple[JobRecord, Command]]], Awaitable[None]]


class ClaimedJobs:
    """Jobs that were claimed through this process, so that they need not be loaded to be settled.

    A claimed job changes only together with its version, and the engine compares the version when
    it stores a decision: a decision about a job that has changed is a conflict, as ever.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._records: dict[JobId, JobRecord] = {}

    def add(self, records: Iterable[JobRecord]) -> None:
        """Remember these jobs; forget the oldest."""
        self._records |= {record.definition.id: record for record in records}
        for job_id in list(self._records)[: max(0, len(self._records) - _REMEMBERED)]:
            del self._records[job_id]

    async def take(
        self, wanted: Sequence[Decided]
    ) -> tuple[Instant, dict[JobId, JobRecord | None]]:
        """Return the engine's time and the jobs of these commands; load those not remembered."""
        jobs: dict[JobId, JobRecord | None] = {}
        for each in wanted:
            record = self._records.pop(each.job_id, None)
            if record is not None and (record.head.version, record.head.fence) == each[1:3]:
                jobs[each.job_id] = record
        unknown = list(dict.fromkeys(e.job_id for e in wanted if e.job_id not in jobs))
        if not unknown:
            return await self._engine.now(), jobs
        loaded = await self._engine.load(unknown)
        return loaded.now, jobs | dict(zip(unknown, loaded.records, strict=True))


async def commit(
    engine: Engine, claimed: ClaimedJobs, wanted: Sequence[Decided], check: Check
) -> list[CommitResult]:
    """Decide and store these commands, each separately; one answer each."""
    now, jobs = await claimed.take(wanted)
    known = [(record, each.command) for each in wanted if (record := jobs[each.job_id])]
    await check(known)
    transitions: list[Transition | None] = []
    met: list[JobRecord | None] = []
    for each in wanted:
        record = jobs[each.job_id]
        transition = _decide(record, each, now)
        met.append(record)
        transitions.append(transition)
        if transition is not None:  # the next command for this job follows this one
            jobs[each.job_id] = JobRecord(transition.definition, transition.head)
    stored = [each for each in transitions if each is not None]
    answers = iter(await engine.commit(stored) if stored else ())
    results: list[CommitResult] = []
    refused: dict[JobId, JobRecord | None] = {}
    for each, transition, record in zip(wanted, transitions, met, strict=True):
        if transition is None:
            results.append(Conflict(refused.get(each.job_id, record)))
            continue
        result = next(answers)
        results.append(result)
        if isinstance(result, Conflict):  # so what was decided after it is wrong too
            refused[each.job_id] = result.record
    return results


def _decide(record: JobRecord | None, wanted: Decided, now: Instant) -> Transition | None:
    """Return the decision; None if the job is not as the caller saw it."""
    if record is None:
        return None
    head = record.head
    if (head.version, head.fence) != (wanted.version, wanted.fence):
        return None
    decision = decide(record, wanted.command, _moment(record, wanted.at, now))
    return decision if isinstance(decision, Transition) else None


def _moment(record: JobRecord, at: Instant, now: Instant) -> Instant:
    """Return the time of the decision: the caller's, while it can be true, else the present."""
    definition, head = record
    latest = max(
        definition.created_at, head.claimed_at or 0, head.asked_at or 0, head.finished_at or 0
    )
    return at if max(latest, now - _OLDEST) <= at <= now else now
