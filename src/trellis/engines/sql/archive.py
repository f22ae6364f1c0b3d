"""Archives on the SQL engines: a row per service, and a queue of expired jobs."""

from __future__ import annotations

from collections.abc import Sequence

from trellis.core.job import JobRecord
from trellis.engines.archive import ERROR_LENGTH, Archived, ArchiveState, switch_of
from trellis.engines.audit import By
from trellis.engines.sql import audit, reads
from trellis.engines.sql.rows import Row
from trellis.engines.sql.transaction import Transaction


async def declare_archive(tx: Transaction, service: str, by: By) -> bool:
    """Switch the archive of a service on, unless it was switched on or off before."""
    await tx.read_clock()
    is_new = bool(await tx.changed("archive_declare", service, tx.now))
    if is_new:
        await audit.record(tx, switch_of(service, None, True), by)
    return is_new


async def set_archive(tx: Transaction, service: str, on: bool, by: By) -> bool:  # noqa: FBT001 - the value of a switch
    """Switch the archive of a service; return whether that changed anything."""
    await tx.read_clock()
    found = await tx.value("archive_is_on", service)
    before = None if found is None else bool(found)
    if before is on or (before is None and not on):
        return False
    await tx.run("archive_set", service, on, tx.now)
    await audit.record(tx, switch_of(service, before, on), by)
    return True


async def archives(tx: Transaction) -> list[ArchiveState]:
    """Return the archives of all services, in order of service."""
    return [
        ArchiveState(service, bool(is_on), *rest)
        for service, is_on, *rest in await tx.rows("archive_list")
    ]


async def note_archive(tx: Transaction, service: str, error: str | None) -> None:
    """Record that the archiver of a service failed, or that it works."""
    await tx.read_clock()
    if error is None:
        await tx.run("archive_works", service)
    else:
        await tx.run("archive_fails", tx.now, error[:ERROR_LENGTH], service)


async def archivable(tx: Transaction, service: str, limit: int) -> list[JobRecord]:
    """Return the next expired jobs of a service; forget those that have run again."""
    await tx.read_clock()
    rows = await page(tx, service, limit)
    loaded = await reads.load(tx, [job_id for _, job_id, _ in rows])
    return [record for record in loaded.records if record is not None]


async def page(tx: Transaction, service: str, limit: int) -> Sequence[Row]:
    """Return the next jobs in the queue of a service as (number, id, state)."""
    while True:
        rows = await tx.rows("archive_page", service, limit)
        stale = [(job,) for job, _, _, is_stale in rows if is_stale]
        await tx.run_many("prune_archive_queue", stale)
        if not rows or len(stale) < len(rows):
            return [row[:3] for row in rows if not row[3]]


async def chosen(tx: Transaction, archived: Sequence[Archived]) -> Sequence[Row]:
    """Return those of these jobs that are still as they were archived, as (number, id, state)."""
    wanted = tx.array([each.job_id for each in archived])
    await tx.lock("remove_lock", wanted)  # so that none is revived before it is removed
    versions = dict(archived)
    return [
        (job, job_id, state)
        for job, job_id, state, version, is_stale in await tx.rows("archive_look", wanted)
        if not is_stale and versions[job_id] == version
    ]


async def set_apart(tx: Transaction, old: Sequence[Row]) -> Sequence[Row]:
    """Put expired jobs (number, id, state, service) into their archive; return the others."""
    if not old:
        return ()
    on = {service for (service,) in await tx.rows("archive_on")}
    kept = [(job, service, tx.now) for job, _, _, service in old if service in on]
    await tx.run_many("archive_add", kept)
    await tx.run_many("archive_unkeep", [(job,) for job, _, _ in kept])
    return [row[:3] for row in old if row[3] not in on]


async def left_behind(tx: Transaction, limit: int) -> Sequence[Row]:
    """Return jobs that wait for an archive that was switched off."""
    rows: list[Row] = []
    for (service,) in await tx.rows("archive_off"):
        if len(rows) < limit:
            rows += await page(tx, service, limit - len(rows))
    return rows
