"""Why a job does not run (or what it does instead): values with a sentence and the next command.

The facts are gathered from the engine once; pure functions derive the causes, in the order in which
an operator would act: a paused queue before a busy worker. Several causes may hold at once, and all
are reported. What a worker process reports about itself is as old as its last renewal, and the
sentence says how old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trellis.core.durations import SECOND, in_words, to_instant
from trellis.core.events import EventKind
from trellis.core.job import JobRecord
from trellis.core.states import SUCCEEDED, WAITING, State
from trellis.engines.limits import Names
from trellis.engines.port import Engine
from trellis.engines.transfer import CanExport, Seal
from trellis.engines.values import KeyStatus, QueueSettings
from trellis.insight.attempts import view_of
from trellis.insight.causes import Cause, Facts, age_of, loop_blocked, runs_alone, type_of
from trellis.insight.graph import open_prerequisites, waiting_text
from trellis.insight.jobs_ahead import can_start, count_ahead, free_slots, limit_of_those_ahead
from trellis.insight.limits import in_jobs, limit_causes
from trellis.insight.running_causes import running_causes
from trellis.insight.time_expressions import roughly
from trellis.insight.views import JobView
from trellis.insight.worker_views import WorkerView, worker_view

START_WORKER: Final = "trellis worker your_module:service"
#: Jobs before this one are counted up to this number.
_COUNTED: Final = 1000


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is in its present state, the most important cause first."""

    job: JobView
    causes: tuple[Cause, ...]

    @property
    def text(self) -> str:
        """All of it in sentences."""
        return " ".join(cause.text for cause in self.causes)


async def explain(engine: Engine, record: JobRecord, start_worker: str = START_WORKER) -> Why:
    """Return why this job is in its present state."""
    facts = await _gather(engine, record)
    match record.head.state:
        case State.PENDING | State.RETRY:
            causes = tuple(_waiting(facts, start_worker))
        case State.ACTIVE:
            causes = tuple(running_causes(facts))
        case _:
            causes = (_ended(facts, await _ended_by(engine, record)),)
    return Why(await view_of(engine, record), causes)


# -- the facts ---------------------------------------------------------------------------------


async def _gather(engine: Engine, record: JobRecord) -> Facts:
    definition = record.definition
    sessions = [each for each in await engine.sessions() if each.is_worker]
    key = await _key(engine, record)
    others = [] if key is None else [one for one in key.holders if one != definition.id]
    loaded = await engine.load([definition.id, *others[:1]])
    views = [worker_view(each, loaded.now) for each in sessions]
    workers = tuple(each for each in views if each.state != "ended")
    is_active = record.head.state is State.ACTIVE
    return Facts(
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


async def _ahead(
    engine: Engine, record: JobRecord, workers: Sequence[WorkerView]
) -> Mapping[Names, int]:
    """Return how many claimable jobs come before this one, of all types that its workers run."""
    if record.head.state not in WAITING:
        return {}
    able = [each for each in workers if each.is_heard_of and type_of(record) in each.types]
    types = {name for each in able for name in each.types}
    return await engine.ahead(record.definition.id, sorted(types), _COUNTED)


# -- a job that waits --------------------------------------------------------------------------


def _waiting(facts: Facts, start_worker: str) -> Iterator[Cause]:
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
        yield _due(facts)


def _due(facts: Facts) -> Cause:
    free = [each for each in _live(facts) if free_slots(each) > 0 and each.blocked_loop is None]
    age = facts.now - max(to_instant(each.renewed_at) for each in free)
    if age < SECOND:
        return Cause("due", "It is due and can start at any moment: a worker has a free slot.")
    text = f"It is due: a worker had a free slot when it last reported, {roughly(age)} ago."
    return Cause("due", text)


def _moved(facts: Facts, seal: Seal) -> Cause:
    text = (
        f"The jobs of this database were moved to {seal.address}. Nothing runs here any more; the "
        "job waits or has run there."
        if seal.is_finished
        else f"A move of all jobs to {seal.address} has begun and has not ended. Nothing runs here "
        "any more. Run the same `trellis move` again to finish it."
    )
    return Cause("moved", text, f"trellis jobs why {facts.record.definition.id} --url URL")


def _out_of_time(facts: Facts) -> Iterator[Cause]:
    deadline = facts.record.definition.deadline_at
    if deadline is not None and deadline <= facts.now:
        ago = roughly(facts.now - deadline)
        yield Cause("deadline_passed", f"Its deadline passed {ago} ago; it will be marked expired.")


def _paused(facts: Facts) -> Iterator[Cause]:
    if facts.queue.paused:
        name = f"{facts.queue.service}/{facts.queue.queue}"
        yield Cause("queue_paused", f"Queue {name} is paused.", f"trellis queues resume {name}")


def _too_new(facts: Facts, start_worker: str) -> Iterator[Cause]:
    """Yield that the live workers of the type know only older versions of its payload."""
    name, version = type_of(facts.record), facts.record.definition.schema_version
    known = [each.schema_versions.get(name, 1) for each in _able(facts)]
    if known and max(known) < version:
        text = (
            f"Its payload has schema version {version}, and the workers that run {name} know "
            f"versions up to {max(known)}: they hand it back uncounted. It needs a worker with the "
            "newer code."
        )
        yield Cause("newer_payload", text, start_worker)


def _later(facts: Facts) -> Iterator[Cause]:
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


def _key_held(facts: Facts) -> Iterator[Cause]:
    if facts.key is None or facts.record.definition.id in facts.key.holders:
        return
    policy = facts.record.definition.policy.key
    if policy is None or facts.key.taken < policy.active:
        return
    waiting = facts.key.waiting
    line = f"{in_jobs(waiting)} {'waits' if waiting == 1 else 'wait'}"
    text = f"Key {facts.key.key!r} is held by {_holder(facts)}; {line} for it."
    held_by = None if facts.holder is None else facts.holder.definition.id
    command = f"trellis keys show {facts.key.key}" if held_by is None else None
    yield Cause("key_held", text, command or f"trellis jobs why {held_by}")


def _limited(facts: Facts) -> Iterator[Cause]:
    for cause in limit_causes(facts.record, facts.key, facts.limits, facts.now):
        yield Cause(*cause)


def _holder(facts: Facts) -> str:
    if facts.holder is None:
        return "a job that has ended and was removed since"
    definition, head = facts.holder
    if head.blocked:
        return f"job {definition.id}, whose worker was lost"
    if head.claimed_at is None:
        return f"job {definition.id}, which is {head.state}"
    return f"job {definition.id}, which has run for {roughly(facts.now - head.claimed_at)}"


# -- the workers of a job that waits -----------------------------------------------------------


def _workers(facts: Facts, start_worker: str) -> Iterator[Cause]:
    """Yield why no worker takes the job; nothing if one has a free slot for it.

    What hinders the workers now says nothing about a job that starts later.
    """
    name, able, here, live = type_of(facts.record), _able(facts), _here(facts), _live(facts)
    if not able:
        yield Cause("no_worker", f"No live worker runs {name}.", start_worker)
    elif not here:
        yield _elsewhere(facts, able)
    elif not live:
        text = (
            f"All workers that run {name} finish their jobs and claim no more: they drain, stop or "
            "are replaced."
        )
        yield Cause("workers_draining", text, start_worker)
    elif facts.record.head.run_at <= facts.now:
        yield from _hindered(facts, live)


def _able(facts: Facts) -> list[WorkerView]:
    """Return the workers that run the type of the job, as far as they are heard of."""
    name = type_of(facts.record)
    return [each for each in facts.workers if each.is_heard_of and name in each.types]


def _here(facts: Facts) -> list[WorkerView]:
    """Return those that take jobs from its queue."""
    queue = facts.record.definition.queue
    return [each for each in _able(facts) if not each.queues or queue in each.queues]


def _live(facts: Facts) -> list[WorkerView]:
    """Return those that claim jobs."""
    return [each for each in _here(facts) if each.state == "live"]


def _elsewhere(facts: Facts, able: Sequence[WorkerView]) -> Cause:
    name, queue = type_of(facts.record), facts.record.definition.queue
    queues = sorted({each for worker in able for each in worker.queues})
    text = (
        f"It waits in queue {queue}, and all workers that run {name} take jobs only from "
        f"{', '.join(queues)} (--queues)."
    )
    move = f"trellis jobs move {facts.record.definition.id} --queue {queues[0]}"
    return Cause("other_queues", text, move)


def _hindered(facts: Facts, live: Sequence[WorkerView]) -> Iterator[Cause]:
    """Yield what keeps each live worker from taking the job; nothing if one can take it."""
    name = type_of(facts.record)
    blocked = [each for each in live if each.blocked_loop is not None]
    alone = [each for each in live if each not in blocked and each.alone is not None]
    open_ones = [each for each in live if each not in blocked and each not in alone]
    full = [each for each in open_ones if name in each.full_types]
    rest = [each for each in open_ones if each not in full]
    free = [each for each in rest if free_slots(each) > 0]
    if can_start(facts, free):
        return
    for worker in blocked:
        if worker.blocked_loop is not None:
            yield loop_blocked(facts, worker, worker.blocked_loop)
    for worker in alone:
        yield runs_alone(facts, worker)
    if full:
        yield _type_full(facts, name, full)
    if busy := [each for each in rest if each not in free]:
        yield Cause("slots_busy", _busy(facts, name, busy), "trellis workers")
    if ahead := count_ahead(facts, rest or live):
        yield _others_first(facts, ahead)


def _type_full(facts: Facts, name: str, full: Sequence[WorkerView]) -> Cause:
    limit = sum(each.full_types[name] for each in full)
    where = f"worker {full[0].name}" if len(full) == 1 else f"the {len(full)} workers"
    is_apart = all(name in each.apart_types for each in full)
    why = "in handler processes, because one crashed its process" if is_apart else "(concurrency=)"
    text = (
        f"The limit of its type is reached: {where} may run {limit} of {name} at a time "
        f"{why}{age_of(facts, full)}."
    )
    return Cause("type_full", text, f"trellis jobs list type:{name} state:active")


def _busy(facts: Facts, name: str, busy: Sequence[WorkerView]) -> str:
    slots = sum(each.slots for each in busy)
    workers = "the worker that runs" if len(busy) == 1 else f"the {len(busy)} workers that run"
    which = (
        f"The one slot of {workers} {name} is"
        if slots == 1
        else f"All {slots} slots of {workers} {name} are"
    )
    lost = sum(len(each.lost_threads) for each in busy)
    threads = f"; {lost} more handlers run in lost threads" if lost else ""
    return f"{which} busy{threads}{age_of(facts, busy)}."


def _others_first(facts: Facts, ahead: int) -> Cause:
    count = f"{_COUNTED:,} or more jobs" if ahead >= _COUNTED else in_jobs(ahead)
    verb = "comes" if ahead == 1 else "come"
    job = facts.record.definition
    is_fair = job.relations is not None and job.relations.tenant is not None
    order = "the turn of its tenant" if is_fair else "due time, then creation"
    if facts.aging is None:
        order = f"priority, then {order}"
    else:
        order += f", where a step of priority counts as {in_words(facts.aging)} of waiting"
    limit = limit_of_those_ahead(facts)
    room = f", and {limit[0]} may start only {in_jobs(limit[1])} now" if limit else ""
    text = f"{count} {verb} before it, by {order}{room}."
    return Cause("others_first", text, f"trellis jobs set {job.id} --priority 4")


# -- a job that has ended ----------------------------------------------------------------------

_NEXT: Final = {
    State.COMPLETED_WITH_ERRORS: "trellis jobs retry --failed-items {}",
    State.FAILED: "trellis jobs retry {}",
    State.DEAD: "trellis dlq replay {}",
}
_ENDED_FROM_OUTSIDE: Final = frozenset(
    {EventKind.CANCELLED, EventKind.CANCEL_REQUESTED, EventKind.DISMISSED}
)


async def _ended_by(engine: Engine, record: JobRecord) -> str:
    """Return who ended a job that did not end by itself, and the reason: ` by ann: not needed`."""
    if record.head.state not in {State.CANCELLED, State.DISMISSED, State.SKIPPED}:
        return ""
    for event in reversed(await engine.journal(record.definition.id)):
        data = event.data or {}
        if "replaced_by" in data:
            return f", replaced by job {data['replaced_by']}"
        if event.kind in _ENDED_FROM_OUTSIDE and "actor" in data:
            reason = f": {_first_line(str(data['reason']))}" if "reason" in data else ""
            return f" by {data['actor']}{reason}"
        if event.kind is EventKind.RETRIED:
            break
    return ""


def _ended(facts: Facts, by: str) -> Cause:
    definition, head = facts.record
    ago = roughly(facts.now - (head.finished_at or facts.now))
    error = "" if head.error is None or by else f": {_first_line(head.error.message)}"
    text = f"It has ended: {head.state.replace('_', ' ')} {ago} ago{by}{error}."
    for worker in facts.workers:
        if any(each.job_id == definition.id for each in worker.lost_threads):
            text += f" Its handler still runs in a lost thread of worker {worker.name}."
    command = _NEXT.get(head.state, None if head.state in SUCCEEDED else "trellis jobs clone {}")
    return Cause("ended", text, command and command.format(definition.id))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip(".")
