"""How the attempts of a dead process are settled, by its shared status."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import pytest

from trellis.core.durations import SECOND
from trellis.core.job import Fence, JobId, JobRecord, SessionId
from trellis.core.lifecycle import Transition
from trellis.core.policy import DEFAULT_POLICY, Policy
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import CommitResult
from trellis.errors import EngineUnavailable
from trellis.testing.builders import a_demand, a_job, a_worker, fence_of
from trellis.testing.clock import ManualClock
from trellis.worker.guardian.settle_dead import (
    DeadProcess,
    crash_commands,
    release_command,
    timeout_commands,
)
from trellis.worker.shared_status import Running, SharedStatus

SLOTS = 4
_JOB = JobId("A" * 26)
CRASHED = crash_commands("The process exited with code 1.")


class Settled(NamedTuple):
    """The state of a job after its attempt was settled."""

    state: str
    #: Attempts that count.
    attempt: int
    crashes: int
    suspect: bool


SUSPECT = Settled("retry", 0, 0, suspect=True)
CRASH = Settled("retry", 1, 1, suspect=False)
FAILED = Settled("retry", 1, 0, suspect=False)
HANDED_BACK = Settled("retry", 0, 0, suspect=False)


class HalfStoring(MemoryEngine):
    """Stores the first transition of its first batch and then fails."""

    failed = False

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        if self.failed:
            return await super().commit(transitions)
        self.failed = True
        await super().commit(transitions[:1])
        raise EngineUnavailable("The engine went away after the first transition.")


class Scene:
    """A process with claims, its status, and the engine that has its jobs."""

    def __init__(self, engine: MemoryEngine | None = None) -> None:
        self.engine = engine or MemoryEngine(ManualClock())
        self.status = SharedStatus(SLOTS)
        self._records: tuple[JobRecord, ...] = ()

    async def begin(
        self, jobs: int, *, isolated: int | None = None, policy: Policy = DEFAULT_POLICY
    ) -> None:
        """Claim jobs and begin each in the slot of its number."""
        await self.engine.create([a_job(policy=policy) for _ in range(jobs)])
        session = await self.engine.open_session(a_worker(), 60 * SECOND)
        claimed = await self.engine.claim(session.id, [a_demand(limit=jobs)], jobs)
        self._records = claimed.jobs
        self.status.set_session(session.id)
        for slot, record in enumerate(self._records):
            self.status.begin(
                slot, fence_of(record), record.definition.id,
                began=0.0, timeout_at=inf, started_at=claimed.now,
            )  # fmt: skip
        if isolated is not None:
            self.status.isolate(isolated)

    def fence(self, slot: int) -> Fence:
        """Return the fence of the job in this slot."""
        return fence_of(self._records[slot])

    async def settled(self) -> list[Settled]:
        """Return the states of the jobs, in the order of their slots."""
        loaded = await self.engine.load([each.definition.id for each in self._records])
        heads = [record.head for record in loaded.records if record is not None]
        return [Settled(head.state, head.attempt, head.crashes, head.suspect) for head in heads]


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_attempts_that_ran_or_had_ended_when_the_loop_ended_are_suspects(
    scene: Scene,
) -> None:
    await scene.begin(3)
    scene.status.end(0)
    scene.status.set_unwinding()
    await DeadProcess(scene.status, CRASHED).settle(scene.engine)
    assert await scene.settled() == [SUSPECT, SUSPECT, SUSPECT]


async def test_the_only_attempt_of_a_process_whose_loop_ended_counts_a_crash(scene: Scene) -> None:
    await scene.begin(1)
    scene.status.end(0)
    scene.status.set_unwinding()
    await DeadProcess(scene.status, CRASHED).settle(scene.engine)
    assert await scene.settled() == [CRASH]


async def test_an_attempt_in_another_process_cannot_have_ended_the_loop(scene: Scene) -> None:
    await scene.begin(2, isolated=1)
    scene.status.end(0)
    scene.status.set_unwinding()
    await DeadProcess(scene.status, CRASHED).settle(scene.engine)
    assert await scene.settled() == [CRASH, SUSPECT]


async def test_an_attempt_that_had_ended_before_a_crash_is_not_charged(scene: Scene) -> None:
    await scene.begin(2)
    scene.status.end(0)
    await DeadProcess(scene.status, CRASHED).settle(scene.engine)
    assert await scene.settled() == [SUSPECT, CRASH]


async def test_an_ended_attempt_that_may_not_run_twice_has_lost_its_lease(scene: Scene) -> None:
    await scene.begin(2, policy=Policy(on_lost="fail", dead_letters=False))
    scene.status.end(0)
    await DeadProcess(scene.status, CRASHED).settle(scene.engine)
    assert [each.state for each in await scene.settled()] == ["failed", "failed"]


async def test_the_neighbours_of_a_known_culprit_are_handed_back(scene: Scene) -> None:
    await scene.begin(3, policy=Policy(on_shutdown="fail"))
    crashed = crash_commands("It was blocked.", scene.fence(1))
    await DeadProcess(scene.status, crashed).settle(scene.engine)
    assert await scene.settled() == [HANDED_BACK, CRASH, HANDED_BACK]


async def test_only_the_one_that_blocked_another_past_its_timeout_is_a_suspect(
    scene: Scene,
) -> None:
    await scene.begin(3)
    timed_out = timeout_commands(frozenset({scene.fence(0)}), scene.fence(1))
    await DeadProcess(scene.status, timed_out).settle(scene.engine)
    assert await scene.settled() == [FAILED, SUSPECT, HANDED_BACK]


def test_the_attempt_that_blocks_the_loop_is_known_until_the_loop_moves() -> None:
    status = SharedStatus(SLOTS)
    fences = [Fence(SessionId(7), token) for token in (11, 12, 13)]
    status.set_loop_moved(5.0)
    for slot, fence in enumerate(fences):
        status.begin(slot, fence, _JOB, began=0.0, timeout_at=inf, started_at=0)
    assert status.blocking() is None
    status.set_blocking(12, 5.0)
    assert status.blocking() == Running(fences[1], 0.0, inf, 0, _JOB)
    status.set_loop_moved(6.0)
    assert status.blocking() is None
    status.isolate(0)
    status.lose(2)
    assert [(each.isolated, each.lost) for each in status.running()] == [
        (True, False), (False, False), (False, True),
    ]  # fmt: skip
    assert status.blocking() == Running(fences[1], 0.0, inf, 0, _JOB)


async def test_a_process_that_was_stopped_hands_everything_back(scene: Scene) -> None:
    await scene.begin(2)
    scene.status.end(0)
    scene.status.set_unwinding()
    await DeadProcess(scene.status, release_command).settle(scene.engine)
    assert await scene.settled() == [HANDED_BACK, HANDED_BACK]


async def test_suspects_stay_suspects_when_only_some_could_be_settled_at_first() -> None:
    scene = Scene(HalfStoring(ManualClock()))
    await scene.begin(2)
    for slot in range(2):
        scene.status.end(slot)
    scene.status.set_unwinding()
    dead = DeadProcess(scene.status, CRASHED)
    with pytest.raises(EngineUnavailable):
        await dead.settle(scene.engine)
    await dead.settle(scene.engine)
    assert await scene.settled() == [SUSPECT, SUSPECT]
