"""Importing the jobs of another store into a PostgreSQL database; see `sql/import_jobs.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from trellis.core.audit import By, Change
from trellis.core.job import Context, JobId, NewJob
from trellis.core.policy import Policy, decode_policy
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.export import read_seal
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import import_jobs
from trellis.engines.sql.rows import Lane, Row
from trellis.engines.transfer import Compared, ExportedJob, JobBatch, Kind

T = TypeVar("T")
_KEYS: Final = 200


class Within(Protocol):
    """Runs a verb in a separate transaction."""

    def __call__(self, verb: Callable[[Transaction], Awaitable[T]], /) -> Awaitable[T]:
        """Run it."""


class PostgresImporter:
    """Imports jobs into one database."""

    is_thorough = False

    def __init__(self, within: Within, link: ServerConnection, registry: Registry) -> None:
        self._within = within
        self._link = link
        self._registry = registry

    async def instance(self) -> str:
        """Return the identity of this database."""
        return str(await self._link.value("instance"))

    async def sealed_for(self) -> str | None:
        """Return where the jobs of this database were moved to; None: it takes jobs."""
        seal = read_seal(await self._link.value("export_seal"))
        return None if seal is None else seal.address

    async def cursor(self, move: str) -> int:
        """Return the number of the last job that was imported; 0 before the first."""
        return await self._within(lambda tx: import_jobs.cursor(tx, move))

    async def compare(self, batch: JobBatch) -> Compared:
        """Return which jobs are here already, and which cannot be imported."""
        return await self._within(lambda tx: import_jobs.compare(tx, batch))

    async def known(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Return which of these jobs are here, or were here and were removed."""
        return await self._within(lambda tx: import_jobs.known(tx, ids))

    async def import_batch(self, move: str, batch: JobBatch) -> int:
        """Store a batch together with the progress of the move; return how many jobs were new."""
        await self._registry.enter(self._link, [_as_new(job) for job in batch.jobs])
        texts = {head.policy for head in batch.heads} | {row[-1] for row in batch.outcomes}
        await self._registry.enter_policies(
            self._link, [decode_policy(text) for text in texts if text is not None]
        )
        await self._within(lambda tx: import_jobs.begin(tx, move))
        return await self._within(lambda tx: import_jobs.import_batch(tx, _Target(tx), move, batch))

    async def import_rows(self, kind: Kind, move: str, after: int, rows: Sequence[Row]) -> None:
        """Store rows of a kind together with the progress of the move."""
        await self._within(lambda tx: import_jobs.begin(tx, move))
        await self._within(
            lambda tx: import_jobs.import_rows(tx, _Target(tx), move, after, kind=kind, rows=rows)
        )

    async def record(self, move: str, change: Change, by: By) -> None:
        """Store an entry of the audit about this move, once."""
        await self._within(lambda tx: import_jobs.begin(tx, move))
        await self._within(lambda tx: import_jobs.record(tx, move, change, by))

    async def assign_slots(self) -> None:
        """Give the free slots of all keys to their waiting jobs."""
        after = ""
        while True:
            rows = await self._link.rows("import_keys", after, _KEYS)
            keys = [key for (key,) in rows]
            if not keys:
                return
            await self._within(lambda tx, keys=keys: import_jobs.assign_slots(tx, keys))  # type: ignore[misc]
            after = keys[-1]


class _Target:
    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    def lane(self, lane: Lane) -> int:
        return self._tx.registry.lane_numbers[lane]

    def policy(self, policy: Policy) -> int:
        return self._tx.registry.policy_numbers[policy]

    async def add_jobs(self, rows: Sequence[Row]) -> Mapping[str, int]:
        columns = [list(column) for column in zip(*rows, strict=True)]
        return {job_id: seq for seq, job_id in await self._tx.rows("import_jobs", *columns)}

    def clean(self, value: object) -> object:
        """Replace U+0000, which a log line may contain and PostgreSQL cannot store."""
        return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _as_new(job: ExportedJob) -> NewJob:
    """Return a job as far as its lane and policy are concerned."""
    return NewJob(
        id=job.id,
        service=job.service,
        type=job.type,
        queue=job.queue,
        payload="",
        policy=decode_policy(job.policy),
        context=Context(job.id, job.traceparent),
        priority=job.priority,
    )
