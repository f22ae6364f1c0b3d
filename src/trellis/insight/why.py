"""Why a job does not run (or what it does instead): values with a sentence and the next command.

The facts are gathered from the engine once; pure functions derive the causes, in the order in which
an operator would act: a paused queue before a busy worker. Several causes may hold at once, and all
are reported. What a worker process reports about itself is as old as its last renewal, and the
sentence says how old.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from trellis.core.durations import SECOND, Instant, Micros, in_words, to_instant
from trellis.core.job import JobId, JobRecord
from trellis.core.states import SUCCEEDED, WAITING, State
from trellis.engines.limits import LimitStatus
from trellis.engines.port import Engine
from trellis.engines.transfer import CanExport, Seal
from trellis.engines.values import Activity, KeyStatus, LockHolder, QueueSettings
from trellis.insight.attempts import view_of
from trellis.insight.graph import open_prerequisites, waiting_text
from trellis.insight.limits import in_jobs, limit_causes
from trellis.insight.time_expressions import roughly
from trellis.insight.views import BlockedLoopView, JobView, LockWaitView, WorkerView, worker_view

Code = Literal[
    "ended",
    "running",
    "not_begun",
    "worker_silent",
    "cancel_asked",
    "key_blocked",
    "lock_wait",
    "blocks_loop",
    "moved",
    "waiting_for_jobs",
    "deadline_passed",
    "queue_paused",
    "backoff",
    "later",
    "key_held",
    "limit_reached",
    "rate_limited",
    "key_rate_limited",
    "no_worker",
    "newer_payload",
    "other_queues",
    "workers_draining",
    "loop_blocked",
    "type_full",
    "slots_busy",
    "others_first",
    "due",
]
START_WORKER: Final = "trellis worker your_module:service"
#: Jobs before this one are counted up to this number.
_COUNTED: Final = 1000


class Cause(NamedTuple):
    """One reason."""

    #: A stable word.
    code: Code
    #: The same for people, one or two sentences.
    text: str
    #: The command that helps, if one does.
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is in its present state, the most important cause first."""

    job: JobView
    causes: tuple[Cause, ...]

    @property
    def text(self) -> str:
        """All of it in sentences."""
        return " ".join(cause.text for cause in self.causes)


class _Facts(NamedTuple):
    record: JobRecord
    now: Instant
    #: Workers whose session is not over.
    workers: tuple[WorkerView, ...]
    activity: Activity | None
    queue: QueueSettings
    key: KeyStatus | None
    #: The oldest job that holds the key, if it is another one.
    holder: JobRecord | None
    locks: Sequence[LockHolder]
    #: Claimable jobs that its workers take before it.
    ahead: int
    #: Where the jobs of this store were moved to.
    seal: Seal | None
    #: The jobs it waits for, with their states as far as they were read.
    waits: Sequence[tuple[JobId, State | None]]
    limits: Sequence[LimitStatus]
    aging: Micros | None


async def explain(engine: Engine, record: JobRecord, start_worker: str = START_WORKER) -> Why:
    """Return why this job is in its present state."""
    facts = await _gather(engine, record)
    match record.head.state:
        case State.PENDING | State.RETRY:
            causes = tuple(_waiting(facts, start_worker))
        case State.ACTIVE:
            causes = tuple(_active(facts))
        case _:
            causes = (_ended(facts),)
    return Why(await view_of(engine, record), causes)


# -- the facts ---------------------------------------------------------------------------------


async def _gather(engine: Engine, record: JobRecord) -> _Facts:
    definition = record.definition
    sessions = [worker_view(each) for each in await engine.sessions() if each.is_worker]
    workers = tuple(each for each in sessions if each.state not in {"ended", "offline"})
    key = await _key(engine, record)
    others = [] if key is None else [one for one in key.holders if one != definition.id]
    loaded = await engine.load([definition.id, *others[:1]])
    is_active = record.head.state is State.ACTIVE
    return _Facts(
        record,
        loaded.now,
        workers,
        await engine.activity(definition.id),
        await _queue(engine, definition.service, definition.queue),
        key,
        loaded.records[1] if others else None,
        await engine.locks() if is_active else (),
        await _ahead(engine, record, workers),
        await engine.exporter().seal_of() if isinstance(engine, CanExport) else None,
        await open_prerequisites(engine, record),
        await engine.limits() if record.head.state in WAITING else (),
        await engine.aging(),
    )


async def _queue(engine: Engine, service: str, queue: str) -> QueueSettings:
    found = [each for each in await engine.queue_settings() if each[:2] == (service, queue)]
    return found[0] if found else QueueSettings(service, queue)


async def _key(engine: Engine, record: JobRecord) -> KeyStatus | None:
    definition = record.definition
    if definition.key is None:
        return None
    keys = await engine.keys(definition.service, definition.type)
    return next((each for each in keys if each.key == definition.key), None)


async def _ahead(engine: Engine, record: JobRecord, workers: Sequence[WorkerView]) -> int:
    """Return how many claimable jobs the workers of this job take before it."""
    if record.head.state not in WAITING:
        return 0
    able = [each for each in workers if _type_of(record) in each.types]
    types = {name for each in able for name in each.types if name not in each.full_types}
    return await engine.ahead(record.definition.id, sorted(types), _COUNTED)


# -- a job that waits --------------------------------------------------------------------------


def _waiting(facts: _Facts, start_worker: str) -> Iterator[Cause]:
    if facts.seal is not None:
        yield _moved(facts, facts.seal)
        return
    if facts.waits:
        yield from _out_of_time(facts)
        command = f"trellis jobs graph {facts.record.definition.id}"
        yield Cause("waiting_for_jobs", waiting_text(facts.waits), command)
        return
    too_new = list(_too_new(facts, start_worker))
    causes = [
        *_out_of_time(facts),
        *_paused(facts),
        *too_new,
        *_later(facts),
        *_key_held(facts),
        *_limited(facts),
        *(() if too_new else _workers(facts, start_worker)),
    ]
    yield from causes
    if not causes:
        able = [each for each in facts.workers if _type_of(facts.record) in each.types]
        text = (
            f"It is due and can start at any moment: a worker has a free slot{_age(facts, able)}."
        )
        yield Cause("due", text)


def _moved(facts: _Facts, seal: Seal) -> Cause:
    text = (
        f"The jobs of this database were moved to {seal.address}. Nothing runs here any more; the "
        "job waits or has run there."
        if seal.is_finished
        else f"A move of all jobs to {seal.address} has begun and has not ended. Nothing runs here "
        "any more. Run the same `trellis move` again to finish it."
    )
    return Cause("moved", text, f"trellis jobs why {facts.record.definition.id} --url URL")


def _out_of_time(facts: _Facts) -> Iterator[Cause]:
    deadline = facts.record.definition.deadline_at
    if deadline is not None and deadline <= facts.now:
        ago = roughly(facts.now - deadline)
        yield Cause("deadline_passed", f"Its deadline passed {ago} ago; it will be marked expired.")


def _paused(facts: _Facts) -> Iterator[Cause]:
    if facts.queue.paused:
        name = f"{facts.queue.service}/{facts.queue.queue}"
        yield Cause("queue_paused", f"Queue {name} is paused.", f"trellis queues resume {name}")


def _too_new(facts: _Facts, start_worker: str) -> Iterator[Cause]:
    """Yield that the live workers of the type know only older versions of its payload."""
    name, version = _type_of(facts.record), facts.record.definition.schema_version
    known = [each.schema_versions.get(name, 1) for each in facts.workers if name in each.types]
    if known and max(known) < version:
        text = (
            f"Its payload has schema version {version}, and the workers that run {name} know "
            f"versions up to {max(known)}: they hand it back uncounted. It needs a worker with the "
            "newer code."
        )
        yield Cause("newer_payload", text, start_worker)


def _later(facts: _Facts) -> Iterator[Cause]:
    definition, head = facts.record
    if head.run_at <= facts.now:
        return
    wait = roughly(head.run_at - facts.now)
    now = f"trellis jobs set {definition.id} --run-at now"
    if head.state is State.RETRY and head.error is not None:
        attempts = f"Attempt {head.attempt} of {definition.policy.retry.attempts}"
        text = f"{attempts} failed ({_first_line(head.error.message)}); the next starts in {wait}."
        yield Cause("backoff", text, now)
    else:
        yield Cause("later", f"It starts in {wait} at the earliest.", now)


def _key_held(facts: _Facts) -> Iterator[Cause]:
    if facts.key is None or facts.record.definition.id in facts.key.holders:
        return
    policy = facts.record.definition.policy.key
    if policy is None or len(facts.key.holders) < policy.active:
        return
    waiting = facts.key.waiting
    line = f"{in_jobs(waiting)} {'waits' if waiting == 1 else 'wait'}"
    text = f"Key {facts.key.key!r} is held by job {_holder(facts)}; {line} for it."
    yield Cause("key_held", text, f"trellis jobs why {facts.key.holders[0]}")


def _limited(facts: _Facts) -> Iterator[Cause]:
    for cause in limit_causes(facts.record, facts.key, facts.limits, facts.now):
        yield Cause(*cause)


def _holder(facts: _Facts) -> str:
    if facts.key is None or facts.holder is None:
        return "an ended job"
    definition, head = facts.holder
    if head.blocked:
        return f"{definition.id}, whose worker was lost"
    if head.claimed_at is None:
        return f"{definition.id}, which is {head.state}"
    return f"{definition.id}, which has run for {roughly(facts.now - head.claimed_at)}"


# -- the workers of a job that waits -----------------------------------------------------------


def _workers(facts: _Facts, start_worker: str) -> Iterator[Cause]:
    """Yield why no worker takes the job; nothing if one has a free slot for it.

    What hinders the workers now says nothing about a job that starts later.
    """
    name, queue = _type_of(facts.record), facts.record.definition.queue
    able = [each for each in facts.workers if name in each.types and each.state != "silent"]
    here = [each for each in able if not each.queues or queue in each.queues]
    live = [each for each in here if each.state == "live"]
    if not able:
        yield Cause("no_worker", f"No live worker runs {name}.", start_worker)
    elif not here:
        yield _elsewhere(facts, able)
    elif not live:
        text = f"All workers that run {name} are draining: they finish their jobs and exit."
        yield Cause("workers_draining", text, start_worker)
    elif facts.record.head.run_at <= facts.now:
        yield from _hindered(facts, live)


def _elsewhere(facts: _Facts, able: Sequence[WorkerView]) -> Cause:
    name, queue = _type_of(facts.record), facts.record.definition.queue
    queues = sorted({each for worker in able for each in worker.queues})
    text = (
        f"It waits in queue {queue}, and all workers that run {name} take jobs only from "
        f"{', '.join(queues)} (--queues)."
    )
    move = f"trellis jobs move {facts.record.definition.id} --queue {queues[0]}"
    return Cause("other_queues", text, move)


def _hindered(facts: _Facts, live: Sequence[WorkerView]) -> Iterator[Cause]:
    """Yield what keeps each live worker from taking the job; nothing if one can take it."""
    name = _type_of(facts.record)
    blocked = [each for each in live if each.blocked_loop is not None]
    full = [each for each in live if each not in blocked and name in each.full_types]
    rest = [each for each in live if each not in blocked and each not in full]
    busy = [each for each in rest if _free_slots(each) <= 0]
    free = sum(_free_slots(each) for each in rest if each not in busy)
    if free and facts.ahead < free:
        return
    for worker in blocked:
        if worker.blocked_loop is not None:
            yield _loop_blocked(facts, worker, worker.blocked_loop)
    if full:
        yield _type_full(facts, name, full)
    if busy:
        yield Cause("slots_busy", _busy(facts, name, busy), "trellis workers")
    if facts.ahead:
        yield _others_first(facts)


def _free_slots(worker: WorkerView) -> int:
    return worker.slots - worker.taken


def _loop_blocked(facts: _Facts, worker: WorkerView, loop: BlockedLoopView) -> Cause:
    culprit = "" if loop.job_id is None else f" by job {loop.job_id}"
    where = f" at {loop.where}" if loop.where else ""
    since = roughly(facts.now - to_instant(loop.since))
    text = (
        f"The event loop of worker {worker.name} has been blocked for {since}{culprit}{where}; "
        f"nothing starts there{_age(facts, [worker])}."
    )
    stop = None if loop.job_id is None else f"trellis jobs cancel --force {loop.job_id}"
    return Cause("loop_blocked", text, stop or "trellis workers")


def _type_full(facts: _Facts, name: str, full: Sequence[WorkerView]) -> Cause:
    limit = sum(each.full_types[name] for each in full)
    where = f"worker {full[0].name}" if len(full) == 1 else f"the {len(full)} workers"
    text = (
        f"The limit of its type is reached: {where} may run {limit} of {name} at a time "
        f"(concurrency=){_age(facts, full)}."
    )
    return Cause("type_full", text, f"trellis jobs list type:{name} state:active")


def _busy(facts: _Facts, name: str, busy: Sequence[WorkerView]) -> str:
    slots = sum(each.slots for each in busy)
    workers = "the worker that runs" if len(busy) == 1 else f"the {len(busy)} workers that run"
    which = (
        f"The one slot of {workers} {name} is"
        if slots == 1
        else f"All {slots} slots of {workers} {name} are"
    )
    lost = sum(len(each.lost_threads) for each in busy)
    threads = f"; {lost} more handlers run in lost threads" if lost else ""
    return f"{which} busy{threads}{_age(facts, busy)}."


def _others_first(facts: _Facts) -> Cause:
    count = f"{_COUNTED:,} or more jobs" if facts.ahead >= _COUNTED else in_jobs(facts.ahead)
    verb = "comes" if facts.ahead == 1 else "come"
    job = facts.record.definition
    is_fair = job.relations is not None and job.relations.tenant is not None
    order = "the turn of its tenant" if is_fair else "due time, then creation"
    if facts.aging is None:
        order = f"priority, then {order}"
    else:
        order += f", where a step of priority counts as {in_words(facts.aging)} of waiting"
    text = f"{count} {verb} before it, by {order}."
    return Cause("others_first", text, f"trellis jobs set {job.id} --priority 4")


def _age(facts: _Facts, workers: Sequence[WorkerView]) -> str:
    """Return how old the reports of these workers are, if that is worth knowing."""
    oldest = facts.now - min(to_instant(each.renewed_at) for each in workers)
    return f" (reported {roughly(oldest)} ago)" if oldest >= SECOND else ""


# -- a job that runs ---------------------------------------------------------------------------


def _active(facts: _Facts) -> Iterator[Cause]:
    definition, head = facts.record
    if head.blocked:
        text = f"Its worker was lost, and it holds key {definition.key!r} until you decide."
        yield Cause("key_blocked", text, f"trellis keys release {definition.id}")
        return
    if head.asked_at is not None:
        ago = roughly(facts.now - head.asked_at)
        text = f"It was asked to stop {ago} ago, and its handler has not stopped yet."
        yield Cause("cancel_asked", text, f"trellis jobs cancel --force {definition.id}")
    yield _running(facts)


def _running(facts: _Facts) -> Cause:
    definition, head = facts.record
    worker = _worker_of(facts)
    where = "" if worker is None else f" in worker {worker.name} (pid {worker.pid})"
    since = roughly(facts.now - (head.claimed_at or facts.now))
    if worker is not None and worker.state == "silent":
        silence = roughly(facts.now - to_instant(worker.renewed_at))
        text = (
            f"It runs{where}, which last renewed its lease {silence} ago; another worker will "
            "take over."
        )
        return Cause("worker_silent", text, f"trellis jobs logs {definition.id}")
    if worker is not None and (hindered := _hindered_in(facts, worker)) is not None:
        return hindered
    activity = facts.activity
    if activity is None or activity.claim != head.claims or activity.began_at is None:
        age = "" if worker is None else _age(facts, [worker])
        text = f"It was claimed {since} ago{where} and begins when a slot is free{age}."
        return Cause("not_begun", text)
    attempts = f"attempt {head.attempt} of {definition.policy.retry.attempts}"
    text = f"It runs: {attempts}, for {since}{where}."
    return Cause("running", text, f"trellis jobs logs -f {definition.id}")


def _hindered_in(facts: _Facts, worker: WorkerView) -> Cause | None:
    """Return what a claimed job waits for, as its worker reports; None if it waits for nothing."""
    job_id = facts.record.definition.id
    loop = worker.blocked_loop
    if loop is not None and loop.job_id == job_id:
        where = f" at {loop.where}" if loop.where else ""
        since = roughly(facts.now - to_instant(loop.since))
        text = (
            f"It runs in worker {worker.name} and has blocked the event loop there for {since}"
            f"{where}: no coroutine handler of that worker makes a step."
        )
        return Cause("blocks_loop", text, f"trellis jobs cancel --force {job_id}")
    for wait in worker.lock_waits:
        if wait.job_id == job_id:
            return _lock_wait(facts, wait)
    has_begun = facts.activity is not None and facts.activity.claim == facts.record.head.claims
    return None if loop is None or has_begun else _loop_blocked(facts, worker, loop)


def _lock_wait(facts: _Facts, wait: LockWaitView) -> Cause:
    since = roughly(facts.now - to_instant(wait.since))
    holder = next((each for each in facts.locks if each.name == wait.lock), None)
    if holder is None:
        text = f"It has waited for lock {wait.lock!r} for {since}; the lock is free now."
        return Cause("lock_wait", text, "trellis locks")
    held = roughly(facts.now - holder.since)
    who = f"worker {holder.worker}" if holder.job_id is None else f"job {holder.job_id}"
    text = f"It has waited for lock {wait.lock!r} for {since}; {who} has held it for {held}."
    command = "trellis locks" if holder.job_id is None else f"trellis jobs why {holder.job_id}"
    return Cause("lock_wait", text, command)


def _worker_of(facts: _Facts) -> WorkerView | None:
    fence = facts.record.head.fence
    if fence is None:
        return None
    return next((each for each in facts.workers if each.id == f"{fence.session:016x}"), None)


# -- a job that has ended ----------------------------------------------------------------------

_NEXT: Final = {
    State.COMPLETED_WITH_ERRORS: "trellis jobs retry --failed-items {}",
    State.FAILED: "trellis jobs retry {}",
    State.DEAD: "trellis dlq replay {}",
}


def _ended(facts: _Facts) -> Cause:
    definition, head = facts.record
    ago = roughly(facts.now - (head.finished_at or facts.now))
    error = "" if head.error is None else f": {_first_line(head.error.message)}"
    text = f"It has ended: {head.state.replace('_', ' ')} {ago} ago{error.rstrip('.')}."
    for worker in facts.workers:
        if any(each.job_id == definition.id for each in worker.lost_threads):
            text += f" Its handler still runs in a lost thread of worker {worker.name}."
    command = _NEXT.get(head.state, None if head.state in SUCCEEDED else "trellis jobs clone {}")
    return Cause("ended", text, command and command.format(definition.id))


def _type_of(record: JobRecord) -> str:
    return f"{record.definition.service}/{record.definition.type}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip(".")
