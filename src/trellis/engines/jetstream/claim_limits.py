"""What limits let a claim pull and start.

A work message that was pulled cannot be put back in its place. So a claim first reads how many jobs
of each type the limits let start, and pulls no more. For that it must know in which queue the jobs
of a type wait: the process remembers it, or looks at the first work message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trellis.core.durations import Instant
from trellis.core.job import JobRecord
from trellis.core.limits import LimitSetting, Scope
from trellis.core.states import WAITING
from trellis.engines.demand import Demand
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.hints import job_of_work
from trellis.engines.jetstream.limits import LimitTable, lane_of
from trellis.engines.jetstream.link import Got
from trellis.engines.jetstream.settings import Openness
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import consumer_of
from trellis.engines.limits import Budget, Names, next_token, scopes_of

#: How many work messages are looked at to find one whose job waits for a token.
_LOOKS: Final = 8


class ClaimLimits:
    """The limits in force during one claim."""

    def __init__(
        self,
        store: Store,
        table: LimitTable,
        in_force: dict[Scope, LimitSetting],
        demands: Sequence[Demand],
    ) -> None:
        self._store, self._table, self._in_force = store, table, in_force
        self._demands = demands
        self._taken = 0
        self._budget: Budget | None = None
        #: Through which the states of the limits are read, for one round.
        self.draft = Draft(store)

    @classmethod
    async def read(
        cls, store: Store, table: LimitTable, demands: Sequence[Demand]
    ) -> ClaimLimits | None:
        """Return the limits of a claim; None: nothing limits it."""
        in_force = await table.in_force({demand.service for demand in demands})
        return cls(store, table, in_force, demands) if in_force else None

    # -- pulling -------------------------------------------------------------------------------

    async def begin(self, taken: Iterable[JobRecord]) -> None:
        """Read what may start now; these jobs have started already in this claim."""
        limited = (self._is_limited(lane_of(each.definition)) for each in taken)
        self._taken = sum(limited)
        self.draft = Draft(self._store)
        lanes = await self._lanes()
        self._budget = await self._table.budget(self.draft, self._in_force, lanes, self._rest)

    def room(self, service: str, job_type: str) -> int | None:
        """Return how many more jobs of a type may be pulled; None: any number."""
        lane = self._widest(service, job_type)
        return None if lane is None or self._budget is None else self._budget.room(lane)

    def pull(self, service: str, job_type: str, number: int) -> None:
        """Count jobs that are to be pulled; a negative number of them were not there."""
        lane = self._widest(service, job_type)
        if lane is not None and self._budget is not None:
            self._budget.take(lane, number)

    def _widest(self, service: str, job_type: str) -> Names | None:
        """Return the lane of a type of which most jobs may start; None: any number may."""
        lanes = self._lanes_of(service, job_type)
        rooms = {lane: self._budget.room(lane) for lane in lanes if self._budget is not None}
        if not rooms or None in rooms.values():
            return None
        return max(rooms, key=lambda lane: rooms[lane] or 0)

    @property
    def _rest(self) -> list[Demand]:
        """The demands, without what this claim has started of limited lanes."""
        return [
            each if each.free is None else each._replace(free=each.free - self._taken)
            for each in self._demands
        ]

    # -- starting ------------------------------------------------------------------------------

    async def admit(self, draft: Draft, records: Sequence[JobRecord]) -> list[bool]:
        """Say which of these claimed jobs may start, and stage that they do."""
        lanes = [lane_of(each.definition) for each in records]
        for each in records:
            self._table.learn(each.definition)
        budget = await self._table.budget(draft, self._in_force, set(lanes), self._rest)
        if budget is None:
            return [True] * len(records)
        answers = []
        for lane in lanes:
            room = budget.room(lane)
            answers.append(room is None or room > 0)
            if answers[-1]:
                budget.take(lane)
        started = [each for each, may in zip(records, answers, strict=True) if may]
        await self._table.start(draft, self._in_force, budget, started)
        return answers

    # -- tokens --------------------------------------------------------------------------------

    async def end(self, openness: Openness) -> Instant | None:
        """Return when a rate lets the next job start that waits and was demanded."""
        await self.begin(())
        if self._budget is None:
            return None
        # Buckets of a rate that was changed must be stored again, to fill by the new rate.
        await self._table.start(self.draft, self._in_force, self._budget, ())
        await self.draft.write()  # refused: another claim does it
        token_times = self._budget.token_times()
        waiting = [
            lane
            for demand in self._demands if token_times
            for job_type in demand.types
            if (lane := await self._waiting(demand, job_type, openness)) is not None
        ]  # fmt: skip
        return next_token(token_times, waiting)

    async def _waiting(self, demand: Demand, job_type: str, openness: Openness) -> Names | None:
        """Return the lane of the first due job of a type that no worker has pulled."""
        work = self._store.subjects.work
        consumer = consumer_of(demand.service, job_type)
        info = await self._store.link.api(f"CONSUMER.INFO.{work}.{consumer}")
        sequence: int = info["delivered"]["stream_seq"]
        for _ in range(min(info["num_pending"], _LOOKS)):
            got = await self._next_work(demand.service, job_type, sequence + 1)
            if got is None:
                return None
            sequence = got.sequence
            current = await self._job_of(got)
            if current is None or current.head.state not in WAITING:
                continue
            service, queue, _ = lane = lane_of(current.definition)
            is_wanted = (not demand.queues or queue in demand.queues) and (
                (service, queue) not in openness.paused
            )
            if is_wanted and current.head.run_at <= self._store.time.now():
                return lane
        return None

    # -- queues of types -----------------------------------------------------------------------

    def _is_limited(self, lane: Names) -> bool:
        return any(scope in self._in_force for scope in scopes_of(lane))

    async def _lanes(self) -> list[Names]:
        """Return the lanes of the demanded types."""
        lanes = []
        for demand in self._demands:
            has_queue = any(
                scope.kind == "queue" and scope.service == demand.service
                for scope in self._in_force
            )
            for job_type in demand.types:
                if has_queue and not self._table.queues_of(demand.service, job_type):
                    await self._learn(demand.service, job_type)
                lanes += self._lanes_of(demand.service, job_type)
        return lanes

    def _lanes_of(self, service: str, job_type: str) -> list[Names]:
        queues = self._table.queues_of(service, job_type) or {""}
        return [(service, queue, job_type) for queue in sorted(queues)]

    async def _learn(self, service: str, job_type: str) -> None:
        """Learn in which queue the jobs of a type wait, from the first work message."""
        got = await self._next_work(service, job_type, 1)
        current = None if got is None else await self._job_of(got)
        if current is not None:
            self._table.learn(current.definition)

    async def _next_work(self, service: str, job_type: str, sequence: int) -> Got | None:
        subjects = self._store.subjects
        return await self._store.link.next(
            subjects.work, subjects.work_of(service, job_type), sequence
        )

    async def _job_of(self, got: Got) -> Current | None:
        """Return the job of a stored work message."""
        job = job_of_work(self._store.subjects, got.headers)
        found = None if job is None else await self._store.read(job)
        return found if isinstance(found, Current) else None
