"""Types that crashed lately run apart from the start: the next crash costs no neighbour."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.worker.guardian.conftest import Shop
from trellis import Retry
from trellis.core.job import Fence, SessionId
from trellis.worker.guardian.crashed_types import CrashedTypes

FIRST, SECOND, THIRD = (Fence(SessionId(1), token) for token in (1, 2, 3))
CRASHING = {"retry": Retry.never()}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def crashed(clock: Clock) -> CrashedTypes:
    return CrashedTypes(clock)


def test_the_type_of_the_only_job_runs_apart_for_ten_minutes(
    crashed: CrashedTypes, clock: Clock
) -> None:
    crashed.add_death({FIRST: "shop/bad", SECOND: "shop/bad"})
    assert crashed.apart() == {"shop/bad": 600.0}
    clock.now = 600.0
    assert crashed.apart() == {}


def test_several_types_are_suspected_until_one_is_found(
    crashed: CrashedTypes, clock: Clock
) -> None:
    crashed.add_death({FIRST: "shop/bad", SECOND: "shop/good"})
    assert crashed.apart() == {"shop/bad": 60.0, "shop/good": 60.0}
    clock.now = 1.0
    crashed.add_crash("shop/bad")
    assert crashed.apart() == {"shop/bad": 600.0}
    crashed.add_death({FIRST: "shop/bad", SECOND: "shop/good"})  # it cannot run apart
    assert crashed.apart() == {"shop/bad": 600.0}


def test_a_known_culprit_is_the_only_one(crashed: CrashedTypes) -> None:
    types = {FIRST: "shop/bad", SECOND: "shop/good"}
    crashed.add_death(types, THIRD)  # a job that is over
    assert crashed.apart() == {}
    crashed.add_death(types, FIRST)
    assert crashed.apart() == {"shop/bad": 600.0}


@pytest.mark.long
def test_a_stream_of_crashing_jobs_ends_one_process_and_charges_no_neighbour(shop: Shop) -> None:
    worker = shop.working("--concurrency=4")
    neighbours = [shop.create("wait_for", "go") for _ in range(2)]
    for job_id in neighbours:
        shop.begun(job_id)
    poison = [shop.create("exit_process", 3, **CRASHING)]
    shop.state(poison[0], "dead")
    neighbours += [shop.create("wait_for", "go")]
    shop.begun(neighbours[-1])
    poison += [shop.create("exit_process", 3, **CRASHING) for _ in range(6)]
    for job_id in poison:
        shop.state(job_id, "dead")
    good = [shop.create("greet", "you") for _ in range(3)]
    (shop.folder / "go").touch()
    for job_id in (*neighbours, *good):
        head = shop.state(job_id, "completed").head
        assert (head.attempt, head.crashes) == (1, 0)
    assert worker.log.count("Working on") == 2
    worker.wait_for_log("Jobs of shop/exit_process run in handler processes for a while")


@pytest.mark.long
def test_a_process_that_its_jobs_end_is_followed_at_once(shop: Shop) -> None:
    """Each job has a type of its own here, so that each ends a process."""
    jobs = {
        "exit_process": 3, "segfault": None, "end_loop_here": "stopping the loop",
        "kill_itself": None, "end_loop": "stopping the loop",
    }  # fmt: skip
    worker = shop.working("--concurrency=1")
    for name, payload in jobs.items():
        shop.event(shop.create(name, payload, retry=Retry.after("1h"), max_crashes=9), "retry")
    shop.state(shop.create("greet", "you"), "completed")
    assert worker.log.count("Working on") == 6
    sessions = sorted(shop.sessions(), key=lambda each: each.opened_at)
    gaps = [later.opened_at - (earlier.ended_at or 0) for earlier, later in pairwise(sessions)]
    assert max(gaps) - min(gaps) < 8_000_000  # a back-off would be half a second first, then 10 s
