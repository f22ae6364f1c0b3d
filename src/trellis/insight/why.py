"""Why a job does not run (or what it does instead): values with a sentence and the next command.

The facts are gathered from the engine once; pure functions derive the causes, in the order in which
an operator would act: a paused queue before a busy worker. Several causes may hold at once, and all
are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from trellis.core.durations import Instant, to_instant
from trellis.core.job import JobRecord
from trellis.core.states import SUCCEEDED, WAITING, State
from trellis.engines.port import Engine
from trellis.engines.values import Activity, JobFilter, KeyStatus, QueueSettings
from trellis.insight.time_expressions import roughly
from trellis.insight.views import JobView, WorkerView, job_view, worker_view

Code = Literal[
    "ended",
    "running",
    "not_begun",
    "worker_silent",
    "cancel_asked",
    "key_blocked",
    "deadline_passed",
    "queue_paused",
    "backoff",
    "later",
    "key_held",
    "no_worker",
    "workers_draining",
    "slots_busy",
    "due",
]
START_WORKER: Final = "trellis worker your_module:service"


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
    #: Waiting jobs of the same queue that were created earlier.
    ahead: int


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
    return Why(job_view(record), causes)


# -- the facts ---------------------------------------------------------------------------------


async def _gather(engine: Engine, record: JobRecord) -> _Facts:
    definition = record.definition
    sessions = [worker_view(each) for each in await engine.sessions()]
    key = await _key(engine, record)
    others = [] if key is None else [one for one in key.holders if one != definition.id]
    loaded = await engine.load([definition.id, *others[:1]])
    return _Facts(
        record,
        loaded.now,
        tuple(each for each in sessions if each.state != "ended"),
        await engine.activity(definition.id),
        await _queue(engine, definition.service, definition.queue),
        key,
        loaded.records[1] if others else None,
        await _ahead(engine, record),
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


async def _ahead(engine: Engine, record: JobRecord) -> int:
    definition = record.definition
    if record.head.state not in WAITING:
        return 0
    where = JobFilter(
        services=(definition.service,),
        queues=(definition.queue,),
        states=(State.PENDING, State.RETRY),
        created_before=definition.created_at,
    )
    return (await engine.count(where)).total


# -- what follows from them --------------------------------------------------------------------


def _waiting(facts: _Facts, start_worker: str) -> Iterator[Cause]:
    causes = [
        *_out_of_time(facts),
        *_paused(facts),
        *_later(facts),
        *_key_held(facts),
        *_workers(facts, start_worker),
    ]
    yield from causes
    if not causes:
        yield Cause("due", "It is due and can start at any moment: a worker has a free slot.")


def _out_of_time(facts: _Facts) -> Iterator[Cause]:
    deadline = facts.record.definition.deadline_at
    if deadline is not None and deadline <= facts.now:
        ago = roughly(facts.now - deadline)
        yield Cause("deadline_passed", f"Its deadline passed {ago} ago; it will be marked expired.")


def _paused(facts: _Facts) -> Iterator[Cause]:
    if facts.queue.paused:
        name = f"{facts.queue.service}/{facts.queue.queue}"
        yield Cause("queue_paused", f"Queue {name} is paused.", f"trellis queues resume {name}")


def _later(facts: _Facts) -> Iterator[Cause]:
    definition, head = facts.record
    if head.run_at <= facts.now:
        return
    wait = roughly(head.run_at - facts.now)
    if head.state is State.RETRY and head.error is not None:
        attempts = f"Attempt {head.attempt} of {definition.policy.retry.attempts}"
        text = f"{attempts} failed ({_first_line(head.error.message)}); the next starts in {wait}."
        yield Cause("backoff", text)
    else:
        yield Cause("later", f"It starts in {wait} at the earliest.")


def _key_held(facts: _Facts) -> Iterator[Cause]:
    if facts.key is None or facts.record.definition.id in facts.key.holders:
        return
    policy = facts.record.definition.policy.key
    if policy is None or len(facts.key.holders) < policy.active:
        return
    line = _wait(facts.key.waiting)
    text = f"Key {facts.key.key!r} is held by job {_holder(facts)}; {line} for it."
    yield Cause("key_held", text, f"trellis jobs why {facts.key.holders[0]}")


def _holder(facts: _Facts) -> str:
    if facts.key is None or facts.holder is None:
        return "an ended job"
    definition, head = facts.holder
    if head.blocked:
        return f"{definition.id}, whose worker was lost"
    if head.claimed_at is None:
        return f"{definition.id}, which is {head.state}"
    return f"{definition.id}, which has run for {roughly(facts.now - head.claimed_at)}"


def _workers(facts: _Facts, start_worker: str) -> Iterator[Cause]:
    name = _type_of(facts.record)
    able = [each for each in facts.workers if name in each.types and each.state != "silent"]
    live = [each for each in able if each.state == "live"]
    if not able:
        yield Cause("no_worker", f"No live worker runs {name}.", start_worker)
    elif not live:
        text = f"All workers that run {name} are draining: they finish their jobs and exit."
        yield Cause("workers_draining", text, start_worker)
    elif all(max(each.busy, each.held) >= each.slots for each in live):
        yield Cause("slots_busy", _busy(name, live, facts.ahead), "trellis workers")


def _busy(name: str, live: Sequence[WorkerView], ahead: int) -> str:
    slots = sum(each.slots for each in live)
    workers = "the worker that runs" if len(live) == 1 else f"the {len(live)} workers that run"
    which = (
        f"The one slot of {workers} {name} is"
        if slots == 1
        else f"All {slots} slots of {workers} {name} are"
    )
    return f"{which} busy{f'; {_wait(ahead)} before it' if ahead else ''}."


def _wait(count: int) -> str:
    return "1 job waits" if count == 1 else f"{count:,} jobs wait"


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
    activity = facts.activity
    if activity is None or activity.claim != head.claims or activity.began_at is None:
        return Cause(
            "not_begun", f"It was claimed {since} ago{where} and begins when a slot is free."
        )
    attempts = f"attempt {head.attempt} of {definition.policy.retry.attempts}"
    text = f"It runs: {attempts}, for {since}{where}."
    return Cause("running", text, f"trellis jobs logs -f {definition.id}")


def _worker_of(facts: _Facts) -> WorkerView | None:
    fence = facts.record.head.fence
    if fence is None:
        return None
    return next((each for each in facts.workers if each.id == f"{fence.session:016x}"), None)


_NEXT: Final = {State.FAILED: "trellis jobs retry {}", State.DEAD: "trellis dlq replay {}"}


def _ended(facts: _Facts) -> Cause:
    definition, head = facts.record
    ago = roughly(facts.now - (head.finished_at or facts.now))
    error = "" if head.error is None else f": {_first_line(head.error.message)}"
    text = f"It has ended: {head.state.replace('_', ' ')} {ago} ago{error.rstrip('.')}."
    command = None
    if head.state not in SUCCEEDED:
        command = _NEXT.get(head.state, "trellis jobs clone {}").format(definition.id)
    return Cause("ended", text, command)


def _type_of(record: JobRecord) -> str:
    return f"{record.definition.service}/{record.definition.type}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip(".")
