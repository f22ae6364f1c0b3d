"""Verbs that need an index over all jobs: they are asked of the admin runtime.

The runtime keeps a projection of the stream in a SQL engine and answers the same verbs from it,
once the projection has what the streams had when the request came. Without a runtime, jobs are
created, run and settled all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from nats import errors as nats_errors
from nats.aio.msg import Msg

from trellis.core.batches import Batch
from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.engines.batches import BatchFilter
from trellis.engines.calls import Verb, build_verb, port_verbs
from trellis.engines.feed import Changes, Expired
from trellis.engines.jetstream.answers import unanswered
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.message import UNREADABLE
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.limits import Names
from trellis.engines.operating import RATE_EVENTS, Rates
from trellis.engines.projection import Keeper, KnownJob, Lag
from trellis.engines.projection import Projection as ProjectionPort
from trellis.engines.values import Counts, GroupBy, Health, JobFilter, Page
from trellis.errors import CursorInvalid, EngineClosed, EngineError, ProjectionUnavailable

#: Seconds until a request counts as unanswered: longer than an admin runtime waits for its
#: projection. One that is killed does not say so, and maintenance waits for its answer.
_ANSWER: Final = 12.0
#: Seconds within which a node of a cluster knows which programs answer at other nodes.
_JOINING: Final = 0.3
_PAUSE: Final = 0.05
#: Seconds behind from which on the doctor warns.
_BEHIND: Final = 10.0
#: Verbs that only a projection has. Those of the same names in the port go by the engine's clock;
#: the projection, whose database may be on another machine, is told the time.
OWN_VERBS: Final = ("due", "known", "past_retention", "promote")
_ERROR: Final = "Nats-Service-Error"
#: The code of the error, if it is one of Trellis.
KIND_HEADER: Final = "Trellis-Error"


def projected_verbs() -> dict[str, Verb]:
    """Return the verbs that a projection may be asked: those of the port, and its own."""
    own = {name: build_verb(name, getattr(ProjectionPort, name)) for name in OWN_VERBS}
    return port_verbs("commit", "watch") | own | {"lag": build_verb("lag", Keeper.lag)}


_VERBS: Final = projected_verbs()


class Projection:
    """The admin runtime, as the engine asks it."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link, self._subjects = link, subjects

    async def ask(self, name: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401
        """Call a verb of the port on the projection."""
        verb = _VERBS[name]
        answer = self._answer(name, verb.write(*arguments, **options))
        return await self._read(verb, answer)

    async def known(self, ids: Sequence[JobId], wait: float) -> list[KnownJob]:
        """Return those of these jobs that the projection has now.

        Raise `EngineError` if there is no answer within so many seconds.
        """
        verb, subject = _VERBS["known"], self._subjects.internal("known")
        answer = self._link.ask_in_parts(subject, verb.write(ids), wait)
        known: list[KnownJob] = await self._read(verb, answer)
        return known

    @staticmethod
    async def _read(verb: Verb, answering: Awaitable[list[Msg]]) -> Any:  # noqa: ANN401 - as `ask`
        name = verb.name
        try:
            answer = await answering
        except (nats_errors.NoRespondersError, nats_errors.TimeoutError) as error:
            raise ProjectionUnavailable(
                "No admin runtime answers, and lists, counts and deadlines of jobs on NATS need "
                "one. Nothing was changed; jobs run on. Start `trellis jobs serve`."
            ) from error
        except nats_errors.ConnectionClosedError as error:
            raise EngineClosed("The engine was closed during a request.") from error
        except (nats_errors.Error, OSError) as error:
            raise unanswered(name, error) from error
        headers = answer[0].headers or {}
        refused = headers.get(_ERROR)
        if refused is not None:
            if headers.get(KIND_HEADER) == CursorInvalid.code:
                raise CursorInvalid(refused)
            raise EngineError(f"The admin runtime refused {name}: {refused}")
        try:
            return verb.read_answer(b"".join(part.data for part in answer))
        except UNREADABLE as error:
            raise EngineError(
                f"The answer of the admin runtime to {name} cannot be read: {error}. Let it have "
                "the same version of Trellis as this program."
            ) from error

    async def _answer(self, name: str, body: bytes) -> list[Msg]:
        end = time.monotonic() + _JOINING
        while True:
            try:
                subject = self._subjects.internal(name)
                return await self._link.ask_in_parts(subject, body, _ANSWER)
            except nats_errors.NoRespondersError:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(_PAUSE)


async def with_lag(health: Health, projection: Projection) -> Health:
    """Return what is known of the health with how far the projection is behind."""
    try:
        lags: list[Lag] = await projection.ask("lag")
    except EngineError as error:
        return health._replace(facts={**health.facts, "projection": str(error)})
    behind = [each for each in lags if each.messages]
    words = [
        f"{each.messages:,} messages of {each.stream} ({each.seconds:.1f} s) behind"
        for each in behind
    ]
    facts = {**health.facts, "projection": "; ".join(words) or "up to date"}
    if any(each.seconds > _BEHIND for each in behind):
        warning = (
            f"The projection is {'; '.join(words)}: lists and counts are that old, and deadlines "
            "pass late. See the log of `trellis jobs serve`; it may be made again."
        )
        return health._replace(facts=facts, warnings=(*health.warnings, warning))
    return health._replace(facts=facts)


class ProjectedVerbs:
    """The verbs that the projection answers as they are, but for the time."""

    _store: Store
    _projection: Projection

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""
        page: Page = await self._projection.ask("find", where, after=after, limit=limit)
        return page._replace(as_of=self._store.time.now())

    async def count(self, where: JobFilter, *group_by: GroupBy) -> Counts:
        """Count matching jobs per combination of groups."""
        counts: Counts = await self._projection.ask("count", where, *group_by)
        return counts._replace(as_of=self._store.time.now())

    async def batches(
        self, where: BatchFilter, *, after: int | None = None, limit: int = 50
    ) -> list[Batch]:
        """Return a page of batches, the newest first."""
        page: list[Batch] = await self._projection.ask("batches", where, after=after, limit=limit)
        return page

    async def projection_lag(self) -> list[Lag]:
        """Return how far the projection is behind each of its streams."""
        lags: list[Lag] = await self._projection.ask("lag")
        return lags

    async def ahead(self, job_id: JobId, types: Sequence[str], limit: int) -> dict[Names, int]:
        """Count the claimable jobs of these types that a claim takes before this one."""
        counts: dict[Names, int] = await self._projection.ask("ahead", job_id, types, limit)
        return counts

    async def rates(self, limit: int = RATE_EVENTS) -> Rates:
        """Return what has happened recently."""
        rates: Rates = await self._projection.ask("rates", limit)
        return rates._replace(as_of=self._store.time.now())

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
        except ProjectionUnavailable:
            return None
        return moment
