"""What must hold before a job of another store can be imported; see `import_jobs.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from trellis.core.admission import holds_dedupe
from trellis.core.job import Definition, JobId
from trellis.core.policy import decode_policy
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.imported_job import ImportedJob, definition_of, read_batch
from trellis.engines.jetstream.message import REMOVED, StoredRemoval
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import Subjects, is_token
from trellis.engines.transfer import Clash, Compared, ExportedJob, JobBatch, refusal
from trellis.engines.wire import codec_of
from trellis.errors import MoveRefused

#: How many messages a job may have that are stored together, whatever its size.
_WHOLE: Final = 900
#: About how many bytes a waiting job takes in the state of its key.
_WAITER: Final = 128
MARK: Final = codec_of(JobId)


class ImportChecks:
    """Compares jobs of another store with those of a deployment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: How many jobs are to wait for each key, by all batches that were compared.
        self._lines: Counter[str] = Counter()
        #: The jobs that were here when the stream had this last sequence, and some later ones.
        self._ids: set[JobId] | None = None
        self._last = 0

    async def compare(self, batch: JobBatch) -> Compared:
        """Return which jobs are here already, and which cannot be imported."""
        known = await self.known([job.id for job in batch.jobs])
        there = [job for job in batch.jobs if job.id in known]
        stored = await self._store.find_many([job.id for job in there])
        clashes = [
            Clash(job.id, "another job has its id")
            for job, found in zip(there, stored, strict=True)
            if isinstance(found, Current) and not is_same(definition_of(job), found)
        ]
        new = [job for job in batch.jobs if job.id not in known]
        clashes += [clash for job in new if (clash := self._unsuitable(job)) is not None]
        if batch.events and not clashes:
            clashes += self._too_large(batch, known)
        clashes += self._too_long(batch, known)
        return Compared(known, (*clashes, *await self._taken(batch, new)))

    async def known(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Return which of these jobs are here, or were here and were removed.

        The ids of all jobs are read once. Others are looked for one by one, if anything was written
        since.
        """
        if self._ids is None:
            self._last, self._ids = await self._last_sequence(), set()
            for event in ("created", REMOVED):
                wanted = f"{self._store.subjects.prefix}.jobs.*.*.*.{event}"
                found = await self._store.subjects_of(wanted)
                self._ids |= {JobId(subject.split(".")[4]) for subject in found}
        others = [job_id for job_id in ids if job_id not in self._ids]
        if others and await self._last_sequence() != self._last:
            there = await self._store.find_many(others)
            self._ids |= {
                job_id for job_id, job in zip(others, there, strict=True) if job is not None
            }
        return frozenset(self._ids.intersection(ids))

    async def _last_sequence(self) -> int:
        info = await self._store.link.api(f"STREAM.INFO.{self._store.subjects.jobs}")
        return int(info["state"]["last_seq"])

    def _unsuitable(self, job: ExportedJob) -> Clash | None:
        """Return why a job cannot be here."""
        if not is_token(job.id):
            return Clash(job.id, "its id is no token of a subject; clone it with another id")
        key = decode_policy(job.policy).key
        if key is not None and key.rate is not None:
            return Clash(job.id, "its key has a rate, which NATS JetStream does not have")
        return None

    def _too_large(self, batch: JobBatch, known: frozenset[JobId]) -> Iterator[Clash]:
        """Return the jobs whose messages or links no batch can have."""
        most = self._store.link.max_payload
        for job in read_jobs(self._store.subjects, batch):
            job_id = job.current.job.id
            if job_id in known:
                continue
            size = max(message.size for message in (*job.events, *job.notes))
            if size > most:
                yield Clash(
                    job_id,
                    f"a message of it has {size:,} bytes and max_payload is {most:,}; raise it",
                )
            if job.size - len(job.notes) > _WHOLE:
                yield Clash(
                    job_id,
                    f"its journal has {len(job.events):,} events and it follows {len(job.bonds):,} "
                    f"jobs, which is more than one write of about {_WHOLE} messages stores",
                )

    def _too_long(self, batch: JobBatch, known: frozenset[JobId]) -> Iterator[Clash]:
        """Return the jobs that wait for a key behind more jobs than its state can name."""
        ids = {job.row: job.id for job in batch.jobs if job.id not in known}
        room = self._store.link.max_payload // _WAITER
        for head in batch.heads:
            if head.key_hash is not None and head.row in ids:
                self._lines[head.key_hash] += 1
                if self._lines[head.key_hash] > room:
                    yield Clash(
                        ids[head.row],
                        f"more than {room:,} jobs wait for its key; raise max_payload or let "
                        "some finish",
                    )

    async def _taken(self, batch: JobBatch, new: Sequence[ExportedJob]) -> list[Clash]:
        """Return the jobs whose marks belong to other jobs that are here."""
        ids = {job.row: job for job in new}
        clashes = []
        for row, mark in batch.marks:
            if row in ids:
                holder = await holder_of(Draft(self._store), mark, "i")
                if holder is not None:
                    clashes.append(taken_by(ids[row].id, holder, "idempotency"))
        unfinished = {head.row for head in batch.heads if head.dedupe is not None}
        now = self._store.time.now()
        for job in new:
            is_held = job.row in unfinished or (job.dedupe_until or 0) > now
            if job.dedupe is not None and is_held:
                holder = await holder_of(Draft(self._store), job.dedupe, "d")
                if holder is not None and holds_dedupe(holder.definition, holder.head, now):
                    clashes.append(taken_by(job.id, holder, "dedupe"))
        return clashes


def read_jobs(subjects: Subjects, batch: JobBatch) -> Iterator[ImportedJob]:
    """Return the jobs of a batch; raise `MoveRefused` for a broken journal."""
    try:
        yield from read_batch(subjects, batch)
    except ValueError as error:
        raise MoveRefused(
            f"The journal of a job does not lead to its state: {error} Look at it with "
            "`trellis doctor` at the source, and remove the job there."
        ) from error


async def holder_of(draft: Draft, mark: str, kind: str) -> Current | None:
    """Return the job that has a dedupe (`d`) or idempotency (`i`) mark."""
    service, job_type, text = mark.split("/", 2)
    subject = draft.store.subjects.mark(service, job_type, kind, text)
    marked = await draft.value(subject, MARK)
    return None if marked is None else await draft.job(marked)


def is_same(there: Definition, found: Current) -> bool:
    """Return whether the job that has this id came from the same source."""
    here = found.created.definition
    names = ("service", "type", "created_at", "payload")
    return all(getattr(here, name) == getattr(there, name) for name in names)


def check_same(
    jobs: Sequence[ImportedJob], stored: Sequence[Current | StoredRemoval | None]
) -> None:
    """Refuse jobs whose ids other jobs have got since they were compared."""
    clashes = [
        Clash(job.current.job.id, "another job has its id")
        for job, found in zip(jobs, stored, strict=True)
        if isinstance(found, Current) and not is_same(job.current.created.definition, found)
    ]
    if clashes:
        raise MoveRefused(refusal(clashes))


def taken_by(job_id: JobId, holder: Current, what: str) -> Clash:
    """Return that another job has a mark of this one."""
    return Clash(job_id, f"job {holder.job.id} has its {what} key")
