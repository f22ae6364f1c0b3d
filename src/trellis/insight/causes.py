"""A cause: why a job is in its present state; and the facts from which causes are derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from trellis.core.durations import SECOND, Instant, Micros, to_instant
from trellis.core.job import JobId, JobRecord
from trellis.core.states import State
from trellis.engines.limits import LimitStatus, Names
from trellis.engines.transfer import Seal
from trellis.engines.values import Activity, KeyStatus, LockHolder, QueueSettings
from trellis.insight.time_expressions import roughly
from trellis.insight.worker_views import BlockedLoopView, WorkerView

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
    "runs_alone",
    "type_full",
    "slots_busy",
    "others_first",
    "due",
]


class Cause(NamedTuple):
    """One reason."""

    #: A stable word.
    code: Code
    #: The same for people, one or two sentences.
    text: str
    #: The command that helps, if one does.
    command: str | None = None


class Facts(NamedTuple):
    """What the engine knows about a job and its workers at one moment."""

    record: JobRecord
    now: Instant
    #: Workers that have not ended by themselves, also those that are not heard of any more.
    workers: tuple[WorkerView, ...]
    activity: Activity | None
    queue: QueueSettings
    key: KeyStatus | None
    #: The oldest job that holds the key, if it is another one.
    holder: JobRecord | None
    locks: Sequence[LockHolder]
    #: Claimable jobs that come before it, of types that its workers run.
    ahead: Mapping[Names, int]
    #: Where the jobs of this store were moved to.
    seal: Seal | None
    #: The jobs it waits for, with their states as far as they were read.
    waits: Sequence[tuple[JobId, State | None]]
    limits: Sequence[LimitStatus]
    #: The span of waiting that counts as a step of priority; None: none does.
    aging: Micros | None


def type_of(record: JobRecord) -> str:
    """Return the type of a job as service/type."""
    return f"{record.definition.service}/{record.definition.type}"


def age_of(facts: Facts, workers: Sequence[WorkerView]) -> str:
    """Return how old the reports of these workers are, if that is worth knowing."""
    oldest = facts.now - min(to_instant(each.renewed_at) for each in workers)
    return f" (reported {roughly(oldest)} ago)" if oldest >= SECOND else ""


def loop_blocked(facts: Facts, worker: WorkerView, loop: BlockedLoopView) -> Cause:
    """Return that nothing starts in a worker, because its event loop makes no step."""
    culprit = "" if loop.job_id is None else f" by job {loop.job_id}"
    where = f" at {loop.where}" if loop.where else ""
    since = roughly(facts.now - to_instant(loop.since))
    text = (
        f"The event loop of worker {worker.name} has been blocked for {since}{culprit}{where}; "
        f"nothing starts there{age_of(facts, [worker])}."
    )
    stop = None if loop.job_id is None else f"trellis jobs cancel --force {loop.job_id}"
    return Cause("loop_blocked", text, stop or "trellis workers")


def runs_alone(facts: Facts, worker: WorkerView) -> Cause:
    """Return that nothing else starts in a worker, because one of its jobs runs alone there."""
    text = (
        f"Worker {worker.name} runs job {worker.alone} alone, because a process died while that "
        f"job ran; nothing else starts there meanwhile{age_of(facts, [worker])}."
    )
    return Cause("runs_alone", text, f"trellis jobs why {worker.alone}")
