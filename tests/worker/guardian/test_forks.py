"""Handlers that fork: the child never goes on as a second worker."""

from __future__ import annotations

import signal

import pytest

from tests.engines.postgres.steps import migrate
from tests.harness.servers.fixtures import *  # noqa: F403 - fixtures are found by name
from tests.worker.guardian.conftest import Shop
from trellis import Retry

pytestmark = pytest.mark.long

#: The ways a child takes, and the exit code with which it ends.
IN_LOOP = {"return": 0, "raise": 1, "sys.exit": 3, "os._exit": 6, "exec": 7, "await": 1,
           "fork in a task": 1, "fork in a pool": 0}  # fmt: skip
IN_THREAD = {"return": 0, "raise": 1, "sys.exit": 3, "os._exit": 6, "exec": 7}


def test_a_forked_child_that_leaves_its_handler_is_ended_and_has_no_effect(shop: Shop) -> None:
    check_children_end(shop)


@pytest.mark.on_postgres(18)
def test_a_forked_child_does_not_use_the_connections_of_its_worker(
    shop: Shop, postgres_url: str
) -> None:
    migrate(postgres_url)
    shop.url = postgres_url
    check_children_end(shop, f"--url={postgres_url}")


def check_children_end(shop: Shop, *arguments: str) -> None:
    """Have children of handlers go on in every way, beside handlers that wait."""
    neighbours = [shop.create("take_effect", "go") for _ in range(3)]
    worker = shop.working("--concurrency=20", *arguments)
    process = shop.begun(neighbours[0]).pid
    for neighbour in neighbours[1:]:
        shop.begun(neighbour)
    in_loop = {way: shop.create("fork", way) for way in IN_LOOP}
    in_thread = {way: shop.create("fork_in_thread", way) for way in IN_THREAD}
    # A parent completes when its child has ended.
    assert {way: shop.result(job_id) for way, job_id in in_loop.items()} == IN_LOOP
    assert {way: shop.result(job_id) for way, job_id in in_thread.items()} == IN_THREAD
    assert "ValueError: raised in the child" in worker.log
    assert "it cannot await" in worker.log
    (shop.folder / "go").touch()
    for job_id in neighbours:
        assert shop.state(job_id, "completed").head.attempt == 1
    expected = [*neighbours, *in_loop.values()]
    effects = (shop.folder / "effects.txt").read_text().splitlines()
    assert sorted(effects) == sorted(f"{job_id} {process}" for job_id in expected)


def test_a_forked_child_does_not_write_the_shared_status_of_its_worker(shop: Shop) -> None:
    job_id = shop.create("fork_and_die", retry=Retry.fixed("100ms", attempts=2))
    shop.working()
    # In the shared status the handler was still running, though the child had left it.
    assert shop.state(job_id, "completed").head.crashes == 1


def test_processes_that_libraries_start_work_as_usual(shop: Shop) -> None:
    job_id = shop.create("use_processes")
    shop.working()
    assert shop.result(job_id) == [3, 4, -signal.SIGTERM, 5]
