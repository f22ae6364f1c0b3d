"""Exporting the jobs of a NATS deployment to another store, after it was sealed.

The streams are read from their first message into a SQLite file that lasts as long as the export,
as the projector reads them; batches, members and links are added from their states. What is
exported comes from that file, so it has the same rows as the export of a SQLite store, with the
sequences of the streams as numbers: another run reads the same ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from trellis.admin.messages import Messages
from trellis.admin.projector import Projector
from trellis.core.job import JobId, NewJob
from trellis.engines.jetstream import keys
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.schedules import ScheduleTable
from trellis.engines.jetstream.seal import DeploymentSeal
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.jetstream.url import deployment_of
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.transfer import Busy, ExportedHead, ExportedJob, JobBatch, Kind, Row, Seal
from trellis.engines.values import CreateResult
from trellis.errors import EngineError

_LEDGER: Final = 1_000_000


@asynccontextmanager
async def stream_exporter(url: str) -> AsyncIterator[StreamExporter]:
    """Open the export of the deployment at a NATS URL."""
    servers, prefix, *_ = deployment_of(url)
    link = Link(servers.split(","))
    await link.open()
    try:
        with TemporaryDirectory(prefix="trellis-move-") as folder:
            tables = SqliteEngine(Path(folder) / "jobs.db")
            await tables.open()
            try:
                yield StreamExporter(link, Subjects(prefix), tables)
            finally:
                await tables.close()
    finally:
        await link.close()


class StreamExporter:
    """Exports the jobs of one deployment; `tables` is an empty file of its own."""

    def __init__(self, link: Link, subjects: Subjects, tables: SqliteEngine) -> None:
        self._link, self._subjects = link, subjects
        self._store = Store(link, subjects, Time(None))
        self._seal = DeploymentSeal(self._store)
        self._schedules = ScheduleTable(self._store, _admit_nothing)
        self._projection, self._rows = tables.projection(), tables.exporter()
        messages = Messages(self._store)
        self._projectors = [
            Projector(
                link,
                stream,
                projection=self._projection,
                messages=messages,
                give_up=_raise,
            )
            for stream in (subjects.jobs, subjects.state)
        ]
        #: The jobs that hold a slot of their key; None: the streams are to be read.
        self._holders: set[JobId] | None = None

    # -- the seal ------------------------------------------------------------------------------

    async def seal_of(self) -> Seal | None:
        """Return the seal, if the deployment has one."""
        return await self._seal.read()

    async def seal(self, instance: str, address: str) -> Seal | Busy:
        """Refuse every change from now on; return what prevents it while workers are active."""
        await self._store.learn_time()
        sealed = await self._seal.put(instance, address)
        self._holders = None  # what was written until now is to be read, too
        return sealed

    async def finish(self) -> None:
        """Record that all jobs were exported."""
        await self._seal.finish()

    # -- rows ----------------------------------------------------------------------------------

    async def batch(
        self, after: int, limit: int, states: Sequence[str], *, whole: bool
    ) -> JobBatch:
        """Return the next jobs in these states, or their outline; none at the end."""
        holders = await self._read()
        found = await self._rows.batch(after, limit, states, whole=whole)
        jobs = {job.row: job for job in found.jobs}
        return found._replace(heads=[_head(jobs[head.row], head, holders) for head in found.heads])

    async def counts(self, states: Sequence[str], last: int | None = None) -> Mapping[str, int]:
        """Return how many jobs `batch` returns in each state."""
        await self._read()
        return await self._rows.counts(states, last)

    async def rows(self, kind: Kind, after: int, limit: int, *of: str) -> Sequence[Row]:
        """Return the next rows of a kind."""
        await self._read()
        if kind != "slots":
            return await self._rows.rows(kind, after, limit)
        service, name = of
        ledger = await self._schedules.slots(service, name, None, _LEDGER)
        later = sorted(each for each in ledger if each.decision.slot > after)
        return [
            (
                decision.slot, service, name, decision.slot, decision.outcome, int(decision.late),
                decision.why, decision.through, job_id, decided_at,
            )
            for decision, job_id, decided_at in later[:limit]
        ]  # fmt: skip

    # -- reading the streams -------------------------------------------------------------------

    async def _read(self) -> set[JobId]:
        """Read what the streams have that was not read yet; return who holds a slot of a key."""
        if self._holders is None:
            for projector in self._projectors:
                while await projector.step():
                    pass
            wanted = self._subjects.own("keys", "*", "*", "h", "*")
            states = [value.value for _, value in await self._store.values([wanted], keys.CODEC)]
            self._holders = {
                slot.id
                for state in states
                if state is not None
                for slot in state.slots
                if slot.linger_until is None
            }
        return self._holders


def _raise(error: EngineError) -> None:
    raise error


def _head(job: ExportedJob, head: ExportedHead, holders: set[JobId]) -> ExportedHead:
    """Return the head of a waiting job with its slot and the dedupe key that it holds."""
    unfinished = job.dedupe_while == "unfinished"
    is_held = head.generation == 0 and (
        unfinished or (job.dedupe_while == "pending" and not head.claims)
    )
    return head._replace(
        holds=head.claims > 0 and job.id in holders,
        dedupe=job.dedupe if is_held else None,
        dedupe_unfinished=True if is_held and unfinished else None,
    )


async def _admit_nothing(_: Draft, jobs: Sequence[NewJob]) -> list[CreateResult]:
    raise NotImplementedError(f"An export creates no job, such as {jobs[0].id}.")
