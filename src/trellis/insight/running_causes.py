"""What a claimed job does, or waits for, as its worker reports."""

from __future__ import annotations

from collections.abc import Iterator

from trellis.core.durations import to_instant
from trellis.insight.causes import Cause, Facts, age_of, loop_blocked, runs_alone
from trellis.insight.time_expressions import roughly
from trellis.insight.worker_views import LockWaitView, WorkerView


def running_causes(facts: Facts) -> Iterator[Cause]:
    """Yield what a claimed job does, or what keeps it from its end."""
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


def _running(facts: Facts) -> Cause:
    definition, head = facts.record
    worker = _worker_of(facts)
    where = "" if worker is None else f" in worker {worker.name} (pid {worker.pid})"
    since = roughly(facts.now - (head.claimed_at or facts.now))
    if worker is not None and not worker.is_heard_of:
        silence = roughly(facts.now - to_instant(worker.renewed_at))
        left = to_instant(worker.lease_until) - facts.now
        when = f", when the lease is over in {roughly(left)}" if left > 0 else ""
        text = (
            f"It runs{where}, which last renewed its lease {silence} ago; another worker will "
            f"take over{when}."
        )
        return Cause("worker_silent", text, f"trellis jobs logs {definition.id}")
    if worker is not None and (hindered := _hindered_in(facts, worker)) is not None:
        return hindered
    activity = facts.activity
    if activity is None or activity.claim != head.claims or activity.began_at is None:
        age = "" if worker is None else age_of(facts, [worker])
        text = f"It was claimed {since} ago{where} and begins when a slot is free{age}."
        return Cause("not_begun", text)
    attempts = f"attempt {head.attempt} of {definition.policy.retry.attempts}"
    text = f"It runs: {attempts}, for {since}{where}."
    return Cause("running", text, f"trellis jobs logs -f {definition.id}")


def _hindered_in(facts: Facts, worker: WorkerView) -> Cause | None:
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
    if facts.activity is not None and facts.activity.claim == facts.record.head.claims:
        return None  # it has begun
    if worker.alone == job_id:
        text = (
            f"It was claimed in worker {worker.name} and begins when the other jobs there have "
            "ended: a process died while it ran, so it runs alone this time."
        )
        return Cause("not_begun", text, "trellis workers")
    if worker.alone is not None:
        return runs_alone(facts, worker)
    return None if loop is None else loop_blocked(facts, worker, loop)


def _lock_wait(facts: Facts, wait: LockWaitView) -> Cause:
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


def _worker_of(facts: Facts) -> WorkerView | None:
    fence = facts.record.head.fence
    if fence is None:
        return None
    return next((each for each in facts.workers if each.id == f"{fence.session:016x}"), None)
