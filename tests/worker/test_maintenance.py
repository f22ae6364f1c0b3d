"""When a worker may declare others dead: an outage of the engine costs no job."""

from __future__ import annotations

import logging
from typing import Final

import pytest

from trellis import control
from trellis.core.durations import SECOND, Micros
from trellis.core.events import EventKind
from trellis.core.job import JobId, JobRecord, NewJob
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.audit import AuditFilter
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import Heartbeat, JobFilter, Note, QueueSettings
from trellis.testing.builders import a_demand, a_job, a_keyed_job, a_worker, fence_of
from trellis.testing.clock import ManualClock
from trellis.worker.maintenance import Maintenance
from trellis.worker.outage import OutageLog
from trellis.worker.session import RenewalHealth, SessionHolder
from trellis.worker.shared_status import SharedStatus

LEASE: Final = 30 * SECOND
HEARTBEAT: Final = 10 * SECOND
KEEP_AUDIT: Final = 3600 * SECOND


class Scene:
    """An engine, and a process that looks after it, in the hands of a test."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(self.clock)
        self.health = RenewalHealth(LEASE, HEARTBEAT, self.clock.lease_now)
        self.session = SessionHolder(self.engine, a_worker(), LEASE, SharedStatus(1))
        self.maintenance = Maintenance(
            self.engine, self.session, self.health, lambda: None,
            sweep=SECOND, poll=SECOND, keep_audit=KEEP_AUDIT, outage=OutageLog(),
        )  # fmt: skip

    def beat_for(self, span: Micros, every: Micros = HEARTBEAT) -> None:
        """Let time pass with a renewal now and then."""
        for _ in range(span // every):
            self.clock.advance_micros(every)
            self.health.record_success(self.clock.lease_now())

    async def claim(self, *jobs: NewJob) -> tuple[JobRecord, ...]:
        """Create jobs and claim them for another worker."""
        await self.engine.create(jobs)
        other = await self.engine.open_session(a_worker(), 3600 * SECOND)
        return (await self.engine.claim(other.id, [a_demand(limit=5000)], 5000)).jobs

    async def state(self, job_id: JobId) -> State:
        (record,) = (await self.engine.load([job_id])).records
        assert record is not None
        return record.head.state


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_process_is_steady_after_one_lease_of_renewals(scene: Scene) -> None:
    scene.beat_for(LEASE - HEARTBEAT)
    assert not scene.health.is_stable
    scene.beat_for(HEARTBEAT)
    assert scene.health.is_stable


def test_a_failed_renewal_starts_the_wait_anew(scene: Scene) -> None:
    scene.beat_for(LEASE)
    scene.health.record_failure()
    scene.beat_for(LEASE - HEARTBEAT)
    assert not scene.health.is_stable
    scene.beat_for(HEARTBEAT)
    assert scene.health.is_stable


def test_a_gap_shorter_than_a_lease_starts_the_wait_anew(scene: Scene) -> None:
    scene.beat_for(LEASE)
    scene.beat_for(2 * HEARTBEAT, every=2 * HEARTBEAT)
    assert not scene.health.is_stable
    scene.beat_for(LEASE)
    assert scene.health.is_stable


def test_a_renewal_that_takes_long_is_a_gap_too(scene: Scene) -> None:
    scene.beat_for(LEASE)
    scene.clock.advance_micros(HEARTBEAT)
    sent = scene.clock.lease_now()
    scene.clock.advance_micros(HEARTBEAT)
    assert not scene.health.is_stable
    scene.health.record_success(sent)
    assert not scene.health.is_stable


def test_a_process_that_slept_is_neither_steady_nor_in_reach(scene: Scene) -> None:
    scene.beat_for(LEASE)
    scene.clock.advance("1h")
    assert not scene.health.is_stable
    assert scene.health.lease_may_have_expired()


async def test_each_attempt_that_maintenance_ends_is_one_line_in_the_log(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    never, hour = Retry.never(), 3600 * SECOND
    policies = {
        "No log, progress or heartbeat for 1s. The job is dead.": Policy(
            retry=never, activity_timeout=SECOND
        ),
        "The attempt took longer than 1s. The job is dead.": Policy(retry=never, timeout=SECOND),
        "The job is expired.": Policy(),
    }
    jobs = [a_job(policy=each, deadline_in=hour) for each in policies.values()]
    jobs[2] = jobs[2]._replace(deadline_in=LEASE)
    asked = a_job(deadline_in=hour)
    claimed = await scene.claim(*jobs, asked)
    await control.cancel(scene.engine, asked.id)
    scene.beat_for(LEASE)
    await scene.maintenance.sweep()
    await scene.maintenance.sweep()
    lines = [each for each in caplog.records if each.name == "trellis.jobs"]
    assert {each.getMessage() for each in lines} == {
        *(
            f"shop/invoice {job.id} attempt 1: {words}"
            for job, words in zip(jobs, policies, strict=True)
        ),
        f"shop/invoice {asked.id} attempt 1: The job is cancelled.",
    }
    assert len(lines) == len(claimed)


async def test_the_jobs_of_an_expired_session_are_one_line_each(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    rule = KeyPolicy("k", queued=None)
    jobs = [a_job(), a_keyed_job("k", rule, policy=Policy(on_lost="block", key=rule))]
    await scene.claim(*jobs)
    scene.beat_for(2 * 3600 * SECOND)
    await scene.maintenance.sweep()
    lines = [each.getMessage() for each in caplog.records if each.name == "trellis.jobs"]
    lost = "attempt 1: The worker's lease ended."
    held = "The job holds its key until an operator releases it."
    assert set(lines) == {
        f"shop/invoice {jobs[0].id} {lost} Next try in 5 s.",
        f"shop/invoice {jobs[1].id} {lost} {held}",
    }


async def test_silence_counts_when_the_next_look_finds_it_too(scene: Scene) -> None:
    (record,) = await scene.claim(a_job(policy=Policy(activity_timeout=SECOND)))
    job_id = record.definition.id
    scene.beat_for(LEASE)
    await scene.maintenance.sweep()
    # What an outage had held up arrives.
    note = Note(record.definition.row, record.head.claims, fence_of(record), Heartbeat())
    await scene.engine.note([note])
    await scene.maintenance.sweep()
    scene.clock.advance("2s")
    await scene.maintenance.sweep()
    assert await scene.state(job_id) is State.ACTIVE
    await scene.maintenance.sweep()
    assert await scene.state(job_id) is State.RETRY


async def test_a_process_that_is_not_steady_calls_nobody_silent(scene: Scene) -> None:
    (record,) = await scene.claim(a_job(policy=Policy(activity_timeout=SECOND)))
    scene.beat_for(LEASE)
    await scene.maintenance.sweep()
    scene.health.record_failure()
    await scene.maintenance.sweep()
    assert await scene.state(record.definition.id) is State.ACTIVE


async def test_a_process_that_is_not_steady_times_nobody_out(scene: Scene) -> None:
    (record,) = await scene.claim(a_job(policy=Policy(timeout=SECOND)))
    job_id = record.definition.id
    scene.beat_for(LEASE)
    scene.health.record_failure()
    await scene.maintenance.sweep()
    assert await scene.state(job_id) is State.ACTIVE
    scene.beat_for(LEASE)
    await scene.maintenance.sweep()
    assert await scene.state(job_id) is State.RETRY


async def test_one_sweep_takes_back_more_than_a_page(scene: Scene) -> None:
    records = await scene.claim(*(a_job() for _ in range(1100)))
    await scene.engine.close_session(fence_of(records[0]).session)
    await scene.maintenance.sweep()
    counts = await scene.engine.count(JobFilter(), "state")
    assert dict(counts.groups) == {State.RETRY: 1100}


async def test_one_sweep_ends_more_than_a_page_of_overdue_jobs(scene: Scene) -> None:
    jobs = [a_job(deadline_in=SECOND) for _ in range(1100)]
    await scene.engine.create(jobs)
    scene.clock.advance("2s")
    await scene.maintenance.sweep()
    counts = await scene.engine.count(JobFilter(), "state")
    assert dict(counts.groups) == {State.EXPIRED: 1100}
    kinds = [event.kind for event in await scene.engine.journal(jobs[-1].id)]
    assert kinds == [EventKind.CREATED, EventKind.EXPIRED]


async def test_the_leader_removes_old_entries_of_the_audit(scene: Scene) -> None:
    await scene.engine.set_queue(QueueSettings("shop", "mails", paused=True))
    scene.clock.advance("30m")
    await scene.engine.set_queue(QueueSettings("shop", "mails"))
    scene.clock.advance("45m")
    await scene.maintenance.prune()  # it does not lead
    assert len(await scene.engine.audit(AuditFilter())) == 2
    await scene.session.open()
    await scene.maintenance.take_lead()
    await scene.maintenance.prune()
    (left,) = await scene.engine.audit(AuditFilter())
    assert left.change.action == "queue.resume"
