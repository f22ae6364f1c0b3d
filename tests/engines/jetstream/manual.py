"""The JetStream engine with a clock that a test moves.

The server's own clock fires the schedules of jobs that are not due yet. Here the engine fires them
by the clock of the test instead, before it catches up.
"""

from __future__ import annotations

from collections.abc import Sequence

from trellis.core.job import JobRecord, Relations, SessionId
from trellis.engines.demand import Demand
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.jetstream.link import Message
from trellis.engines.jetstream.subjects import consumer_of, schedule_time
from trellis.engines.values import Claimed, JobFilter, Page

#: How often the view of a consumer is looked at. Messages that it gave up stay out of it.
_LOOKS = 200


class ManualEngine(JetStreamEngine):
    """The engine of a test."""

    async def catch_up(self) -> None:
        """Publish what is due by the clock of the test, then catch up."""
        later, now = f"{self._subjects.prefix}.later.>", schedule_time(self._store.time.now())
        for got in await self._link.last_many(self._subjects.later, [later]):
            if got.headers["Nats-Schedule"] <= now:
                await self._link.write(Message(got.headers["Nats-Schedule-Target"], got.body))
                await self._link.api(
                    f"STREAM.PURGE.{self._subjects.later}", {"filter": got.subject}
                )
        await super().catch_up()

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Claim after catching up."""
        await self.catch_up()
        for demand in demands:
            for job_type in demand.types:
                await self._until_consumer_sees(demand.service, job_type)
        return await super().claim(session, demands, limit)

    async def _until_consumer_sees(self, service: str, job_type: str) -> None:
        """Wait until the consumer of a type knows of its work: its leader may be a replica."""
        await self._lanes.provide_consumer(service, job_type)
        subject, stream = self._subjects.work_of(service, job_type), self._subjects.work
        for _ in range(_LOOKS):
            wanted = {"subjects_filter": subject}
            state = (await self._link.api(f"STREAM.INFO.{stream}", wanted))["state"]
            consumer = f"CONSUMER.INFO.{stream}.{consumer_of(service, job_type)}"
            info = await self._link.api(consumer)
            known = info["num_pending"] + info["num_ack_pending"]
            if known >= (state.get("subjects") or {}).get(subject, 0):
                return

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return all jobs, without an index: enough to check their journals."""
        if where != JobFilter(**{name: getattr(where, name) for name in _PLAIN}):
            return await super().find(where, after=after, limit=limit)
        filters = f"{self._subjects.prefix}.jobs.*.*.*.created"
        found = await self._link.following(self._subjects.jobs, filters, 1, 100_000)
        jobs = [await self._store.at_row(got.sequence) for got in found]
        records = [each.record for each in reversed(jobs) if each is not None]
        matching = tuple(each for each in records if _matches(each, where))
        return Page(self._store.time.now(), matching, None)


class ServedEngine(ManualEngine):
    """The engine of a test beside which an admin runtime answers."""

    find = JetStreamEngine.find


_PLAIN = ("services", "types", "queues", "states", "parent", "schedule")


def _matches(record: JobRecord, where: JobFilter) -> bool:
    definition, head = record
    relations = definition.relations or Relations()
    return (
        (not where.services or definition.service in where.services)
        and (not where.types or definition.type in where.types)
        and (not where.queues or definition.queue in where.queues)
        and (not where.states or head.state in where.states)
        and where.parent in {None, relations.parent}
        and where.schedule in {None, relations.schedule}
    )
