"""The check-up: every journal must fold to its head, and the engine reports its own health.

A job that changes while it is read is read again, so only a lasting mismatch is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from trellis.config import WorkerSettings
from trellis.core.durations import SECOND, Instant, in_words
from trellis.core.fold import fold
from trellis.core.job import JobId, JobRecord
from trellis.core.states import WAITING
from trellis.engines.archive import ARCHIVE_LOCK, ArchiveState
from trellis.engines.audit import AuditFilter
from trellis.engines.port import Engine
from trellis.engines.values import Health, JobFilter
from trellis.errors import EngineUnavailable
from trellis.insight.batches import BatchView, forgotten_batches
from trellis.insight.schedule_views import ScheduleView, schedule_view
from trellis.insight.time_expressions import roughly
from trellis.insight.worker_views import WorkerView, worker_view

_PAGE: Final = 200
_LOOKS: Final = 3
#: Characters of a fingerprint that are shown.
_SHOWN: Final = 15
#: Above so many entries, the doctor mentions the audit.
LARGE_AUDIT: Final = 1_000_000
#: How long expired jobs may wait before the doctor mentions it.
_ARCHIVE_PATIENCE: Final = 2 * 3600 * SECOND
_EVERYTHING: Final = JobFilter()
_WAITING: Final = JobFilter(states=tuple(sorted(WAITING)))
#: Types without a worker that are named one by one.
_TYPES_SHOWN: Final = 5

Progress = Callable[[int, int], None]


class Mismatch(NamedTuple):
    """A job whose journal does not fold to its head."""

    job_id: str
    problem: str


class Diagnosis(NamedTuple):
    """What the check-up found."""

    health: Health
    #: How many jobs there are in each state.
    states: Mapping[str, int]
    #: How many journals were folded.
    checked: int
    mismatches: tuple[Mismatch, ...]
    #: The worker settings in force here.
    settings: WorkerSettings
    #: The worker processes that have not ended.
    workers: tuple[WorkerView, ...] = ()
    schedules: tuple[ScheduleView, ...] = ()
    #: The audit has more than `LARGE_AUDIT` entries.
    has_large_audit: bool = False
    #: The archives of services, and the engine's time.
    archives: tuple[ArchiveState, ...] = ()
    #: The workers that archive, by service.
    archiving: Mapping[str, str] = MappingProxyType({})
    now: Instant = 0
    #: Batches that have been open for so long that their creators are probably gone.
    forgotten: tuple[BatchView, ...] = ()
    #: How many jobs of each type (service/type) wait.
    waiting: Mapping[str, int] = {}
    #: Why jobs, workers and journals could not be read; None: they were.
    unread: str | None = None

    @property
    def warnings(self) -> list[str]:
        """What is wrong with the engine and with the workers, each with what to do."""
        return [
            *self.health.warnings,
            *self._unread_warnings(),
            *_unserved_warnings(self.waiting, self.workers),
            *chain.from_iterable(map(_worker_warnings, self.workers)),
            *_schedule_warnings(self.schedules, self.workers),
            *_contract_warnings(self.workers),
            *self._audit_warnings(),
            *chain.from_iterable(map(self._archive_warnings, self.archives)),
            *map(_forgotten, self.forgotten),
        ]

    def _unread_warnings(self) -> Iterator[str]:
        if self.unread is not None:
            yield f"Neither jobs nor journals were checked: {self.unread}"

    def _audit_warnings(self) -> Iterator[str]:
        if self.has_large_audit:
            yield (
                f"The audit has more than {LARGE_AUDIT:,} entries. Workers with these settings "
                f"keep them for {in_words(self.settings.keep_audit)}; keep them for less time with "
                "keep_audit or TRELLIS_KEEP_AUDIT. See who changes so much: trellis audit list"
            )

    def _archive_warnings(self, archive: ArchiveState) -> Iterator[str]:
        if not archive.is_on:
            return
        service, waits, fails = archive.service, archive.waiting_since, archive.failing_since
        if fails is not None:
            times = "once" if archive.failures == 1 else f"{archive.failures} times"
            yield (
                f"The archiver of {service} has failed for {roughly(self.now - fails)} ({times}): "
                f"{archive.error}. None of its expired jobs is removed until it works. See: "
                "trellis archive"
            )
        elif waits is not None and self.now - waits > _ARCHIVE_PATIENCE:
            worker = self.archiving.get(service)
            what = (
                "no worker has it. Start one with the code that declares it"
                if worker is None
                else f"worker {worker} has it and is behind. Wait until it has caught up"
            )
            yield (
                f"Expired jobs of {service} have waited for their archiver for "
                f"{roughly(self.now - waits)}: {what}, or remove them unarchived: trellis archive "
                f"off {service}"
            )

    @property
    def is_sound(self) -> bool:
        """Whether the jobs could be read, and every journal folds to its head."""
        return not self.mismatches and self.unread is None


async def diagnose(
    engine: Engine,
    settings: WorkerSettings,
    progress: Progress = lambda _done, _total: None,
    *,
    journals: bool = True,
) -> Diagnosis:
    """Examine an open engine, calling `progress(done, total)`; journals only if asked for.

    What the engine says of itself is returned even if it answers nothing else.
    """
    health = await engine.health()
    try:
        return await _diagnose(engine, health, settings, progress, journals=journals)
    except EngineUnavailable as error:
        return Diagnosis(health, {}, 0, (), settings, unread=str(error))


async def _diagnose(
    engine: Engine, health: Health, settings: WorkerSettings, progress: Progress, *, journals: bool
) -> Diagnosis:
    states = (await engine.count(_EVERYTHING, "state")).groups
    sessions = [each for each in await engine.sessions() if each.ended_at is None]
    now = await engine.now()
    workers = tuple(worker_view(each, now) for each in sessions)
    schedules = tuple(schedule_view(each, now) for each in await engine.schedules())
    forgotten = tuple(await forgotten_batches(engine, now))
    is_large = await _has_large_audit(engine)
    found = Diagnosis(health, states, 0, (), settings, workers, schedules, is_large)
    archives = tuple(await engine.archives())
    archiving = {
        each.name.removeprefix(ARCHIVE_LOCK): each.worker
        for each in await engine.locks()
        if each.name.startswith(ARCHIVE_LOCK)
    }
    waiting = (await engine.count(_WAITING, "service", "type")).combinations
    found = found._replace(
        archives=archives,
        archiving=archiving,
        now=now,
        forgotten=forgotten,
        waiting={"/".join(names): number for names, number in waiting.items()},
    )
    if not journals:
        return found
    total = sum(states.values())
    mismatches: list[Mismatch] = []
    checked = 0
    after: int | None = None
    while True:
        page = await engine.find(_EVERYTHING, after=after, limit=_PAGE)
        for record in page.jobs:
            problem = await _examine(engine, record)
            if problem is not None:
                mismatches.append(Mismatch(record.definition.id, problem))
            checked += 1
        progress(checked, max(total, checked))
        after = page.next_after
        if after is None:
            return found._replace(checked=checked, mismatches=tuple(mismatches))


async def _has_large_audit(engine: Engine) -> bool:
    """Return whether there is an entry so far before the latest one: numbers only grow."""
    latest = await engine.audit(AuditFilter(), limit=1)
    if not latest:
        return False
    last = latest[0].number - LARGE_AUDIT
    return bool(last > 0 and await engine.audit(AuditFilter(), after=last + 1, limit=1))


def _unserved_warnings(waiting: Mapping[str, int], workers: Sequence[WorkerView]) -> Iterator[str]:
    """Yield which types have waiting jobs that no live worker runs."""
    live = [each for each in workers if each.state in {"live", "draining"}]
    served = {name for each in live for name in each.types}
    unserved = sorted(waiting.keys() - served)
    for name in unserved[:_TYPES_SHOWN]:
        jobs = "1 job of it waits" if waiting[name] == 1 else f"{waiting[name]:,} jobs of it wait"
        yield (
            f"No live worker runs {name}, and {jobs}. Start a worker with the code that "
            f"declares the type, or cancel them: trellis jobs cancel type:{name}"
        )
    if len(unserved) > _TYPES_SHOWN:
        more = len(unserved) - _TYPES_SHOWN
        yield f"Jobs of {more:,} more types wait that no live worker runs. See: trellis queues"


def _worker_warnings(worker: WorkerView) -> Iterator[str]:
    seen = f"seen at {worker.renewed_at:%H:%M:%S} UTC"
    if worker.lost_threads:
        types = ", ".join(sorted({each.type for each in worker.lost_threads}))
        yield (
            f"Worker {worker.name} has {len(worker.lost_threads)} lost threads ({types}; {seen}): "
            "handlers that run on after their attempts have ended. `trellis worker` replaces such "
            "a process; an embedded worker needs a restart of its program. Give calls that may "
            'hang a limit of their own, or the type isolation="process". See: trellis workers'
        )
    blocked = worker.blocked_loop
    if blocked is not None:
        where = f" at {blocked.where}" if blocked.where else ""
        by = f" by job {blocked.job_id}" if blocked.job_id else ""
        yield (
            f"The event loop of worker {worker.name} is blocked{by}{where} ({seen}): none of its "
            "coroutines runs. To end the job and its process: trellis jobs cancel --force "
            f"{blocked.job_id or 'ID'}"
        )


def _forgotten(batch: BatchView) -> str:
    return (
        f"Batch {batch.id} has been open since {batch.created_at:%Y-%m-%d %H:%M} UTC: the program "
        "that creates its members may have died, and it fires only when it is sealed. Let it "
        f"finish with: trellis batches seal {batch.id}, or cancel it: trellis batches cancel "
        f"{batch.id}"
    )


def _schedule_warnings(
    schedules: Sequence[ScheduleView], workers: Sequence[WorkerView]
) -> Iterator[str]:
    known = {name for each in workers for name in each.types}
    for each in schedules:
        title, type_name = f"{each.service}/{each.name}", f"{each.service}/{each.type}"
        if each.state != "active":
            continue
        if each.behind_since is not None:
            yield (
                f"Schedule {title} is behind: its slot of {each.behind_since:%Y-%m-%d %H:%M:%S} "
                "UTC is not decided. A worker that leads the maintenance decides it; see: "
                "trellis workers"
            )
        if not each.is_zone_known:
            yield (
                f"Schedule {title} has the time zone {each.tz}, which this host does not know. A "
                "worker on such a host cannot decide its slots: install the package tzdata there, "
                f"or: trellis schedules set {title} --tz ZONE"
            )
        if each.ahead_until is not None:
            yield (
                f"Schedule {title} is not due before {each.ahead_until:%Y-%m-%d %H:%M:%S} UTC, "
                "because earlier slots were decided already: the clock was set back. To start "
                f"again at the present time: trellis schedules reset {title}"
            )
        if type_name not in known:
            yield (
                f"Schedule {title} creates jobs of {type_name}, which no worker runs. Start one, "
                f"or: trellis schedules pause {title}"
            )


def _contract_warnings(workers: Sequence[WorkerView]) -> Iterator[str]:
    """Yield which services have live workers with different contracts."""
    live = [each for each in workers if each.state in {"live", "draining"}]
    for service in sorted({name for each in live for name in each.contracts}):
        found: dict[str, list[str]] = {}
        for each in live:
            if service in each.contracts:
                found.setdefault(each.contracts[service], []).append(each.name)
        if len(found) > 1:
            who = "; ".join(f"{text[:_SHOWN]}: {', '.join(names)}" for text, names in found.items())
            yield (
                f"Workers of service {service} run with different contracts ({who}). During a "
                "release that is so for a while; afterwards replace the workers with the old code. "
                "See: trellis contract list"
            )


async def _examine(engine: Engine, record: JobRecord) -> str | None:
    """Return what is wrong with this job, if it is still wrong after a few reads."""
    job_id = record.definition.id
    current: JobRecord | None = record
    problem: str | None = None
    for _ in range(_LOOKS):
        if current is None:
            return None  # retention has removed it
        problem = await _compare(engine, job_id, current)
        if problem is None:
            return None
        current = (await engine.load([job_id])).records[0]
    return problem


async def _compare(engine: Engine, job_id: JobId, record: JobRecord) -> str | None:
    try:
        folded = fold(await engine.journal(job_id))
    except (ValueError, KeyError, TypeError) as error:
        return f"its journal cannot be read: {error}"
    if folded == record.head:
        return None
    if folded is None:
        return "it has no journal"
    differing = [
        f"{name} is {getattr(record.head, name)!r} but the journal says {value!r}"
        for name, value in folded._asdict().items()
        if getattr(record.head, name) != value
    ]
    return "; ".join(differing)
