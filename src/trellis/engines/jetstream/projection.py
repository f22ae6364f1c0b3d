"""Verbs that need an index over all jobs: they are asked of the admin runtime.

The runtime keeps a projection of the stream in a SQL engine and answers the same verbs from it. A
request names the last sequence that this process has written, and is answered once the projection
has come so far. Without a runtime, jobs are created, run and settled all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from nats import errors as nats_errors

from trellis.core.durations import Instant
from trellis.core.job import JobId, JobRecord
from trellis.engines.calls import port_verbs
from trellis.engines.feed import Changes, Expired
from trellis.engines.jetstream.batches import BatchTable
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.limits import Names
from trellis.engines.operating import RATE_EVENTS, JobFacts, Rates
from trellis.engines.values import Counts, GroupBy, JobFilter, Page
from trellis.errors import CapabilityMissing, CursorInvalid, EngineError, EngineUnavailable

_ANSWER: Final = 30.0
_VERBS: Final = port_verbs("commit", "watch")
_ERROR: Final = "Nats-Service-Error"
#: By what members of a batch can be counted, and how many are read at once.
_GROUPS: Final = frozenset({"state", "type", "queue", "service"})
_PAGE: Final = 500
#: The code of the error, if it is one of Trellis.
KIND_HEADER: Final = "Trellis-Error"


class Projection:
    """The admin runtime, as the engine asks it."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link, self._subjects = link, subjects

    async def ask(self, name: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401
        """Call a verb of the port on the projection."""
        verb = _VERBS[name]
        try:
            answer = await self._link.ask(
                self._subjects.internal(name), verb.write(*arguments, **options), _ANSWER
            )
        except (nats_errors.NoRespondersError, nats_errors.TimeoutError) as error:
            raise EngineUnavailable(
                f"{name} needs the projection of the jobs, and no program answers for it. Nothing "
                "was changed; jobs run on without it. Start `trellis jobs serve`."
            ) from error
        headers = answer.headers or {}
        refused = headers.get(_ERROR)
        if refused is not None:
            if headers.get(KIND_HEADER) == CursorInvalid.code:
                raise CursorInvalid(refused)
            raise EngineError(f"The admin runtime refused {name}: {refused}")
        return verb.read_answer(answer.data)


class ProjectedVerbs:
    """The verbs that the projection answers as they are."""

    _projection: Projection
    _batches: BatchTable

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""
        if where.batch is not None:
            return await self._find_members(where, after, limit)
        page: Page = await self._projection.ask("find", where, after=after, limit=limit)
        return page

    async def _find_members(self, where: JobFilter, after: int | None, limit: int) -> Page:
        """Return a page of matching members of a batch: the projection does not know which."""
        members = await self._batches.members(where.batch or "")
        rows = {job.definition.row for job, _ in members}
        found: list[JobRecord] = []
        while True:
            page: Page = await self._projection.ask(
                "find", where._replace(batch=None), after=after, limit=limit
            )
            found += [each for each in page.jobs if each.definition.row in rows]
            after = page.next_after
            if len(found) > limit:
                last = found[limit - 1].definition.row
                return Page(page.as_of, tuple(found[:limit]), last)
            if after is None:
                return Page(page.as_of, tuple(found), None)

    async def count(self, where: JobFilter, *group_by: GroupBy) -> Counts:
        """Count matching jobs per combination of groups."""
        if where.batch is not None:
            return await self._count_members(where, group_by)
        counts: Counts = await self._projection.ask("count", where, *group_by)
        return counts

    async def _count_members(self, where: JobFilter, group_by: Sequence[GroupBy]) -> Counts:
        """Count matching members of a batch."""
        if any(each not in _GROUPS for each in group_by):
            raise CapabilityMissing(
                "Members of a batch on NATS JetStream can be counted by state, type, queue and "
                "service only."
            )
        numbers: Counter[tuple[str, ...]] = Counter()
        after: int | None = None
        while True:
            page = await self._find_members(where, after, _PAGE)
            for definition, head in page.jobs:
                names = {
                    "state": head.state.value,
                    "type": definition.type,
                    "queue": definition.queue,
                    "service": definition.service,
                }
                numbers[tuple(names[str(each)] for each in group_by)] += 1
            after = page.next_after
            if after is None:
                return Counts(page.as_of, dict(sorted(numbers.items())))

    async def ahead(self, job_id: JobId, types: Sequence[str], limit: int) -> dict[Names, int]:
        """Count the claimable jobs of these types that a claim takes before this one."""
        counts: dict[Names, int] = await self._projection.ask("ahead", job_id, types, limit)
        return counts

    async def facts(self, ids: Sequence[JobId]) -> dict[JobId, JobFacts]:
        """Return facts about these jobs."""
        facts: dict[JobId, JobFacts] = await self._projection.ask("facts", ids)
        return facts

    async def rates(self, limit: int = RATE_EVENTS) -> Rates:
        """Return what has happened recently."""
        rates: Rates = await self._projection.ask("rates", limit)
        return rates

    async def changes(self, after: str | None = None, limit: int = 1000) -> Changes | Expired:
        """Return events after a cursor, in the order of the projection."""
        changes: Changes | Expired = await self._projection.ask("changes", after, limit)
        return changes

    async def next_due(self) -> Instant | None:
        """Return the earliest run time among the waiting jobs; None too if no program answers.

        The server hints at jobs whose time has come in any case.
        """
        try:
            moment: Instant | None = await self._projection.ask("next_due")
        except EngineUnavailable:
            return None
        return moment
