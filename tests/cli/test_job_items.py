"""`trellis jobs items`, and `jobs retry --failed-items`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trellis import ActiveJob, JobFailed, JobRef, Retry, Service


@pytest.fixture
def press(tmp_path: Path) -> Service:
    return Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")


def publish_once(press: Service) -> JobRef[None]:
    """Run a job with a failed item."""

    async def run() -> JobRef[None]:
        @press.job
        def publish(job: ActiveJob[int]) -> None:
            job.phase("render")
            job.items.complete("page-1")
            job.items.fail("page-2", "404 \x1b[2J")

        async with press, press.worker():
            ref = await publish.create(1)
            await ref.wait("10s")
        return ref

    return asyncio.run(run())


def test_items_are_listed_with_status_and_error(command: Run, press: Service) -> None:
    ref = publish_once(press)
    ran = command("jobs", "items", ref.id, "--url", press.url)
    assert (ran.code, ran.err) == (0, "")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["ITEM", "STATUS", "PHASE", "ATTEMPT", "DETAIL"],
        ["page-1", "completed", "render", "1"],
        ["page-2", "failed", "render", "1", "404", "\\x1b[2J"],
    ]
    ran = command("jobs", "items", ref.id, "--failed", "--json", "--url", press.url)
    assert json.loads(ran.out) == [
        {
            "name": "page-2",
            "status": "failed",
            "detail": "404 \x1b[2J",
            "phase": "render",
            "claim": 1,
        }
    ]


def test_a_partly_completed_job_is_run_again_for_its_failed_items_only(
    command: Run, press: Service
) -> None:
    ref = publish_once(press)
    ran = command("jobs", "retry", ref.id, "--url", press.url)
    assert ran.code == 4
    assert f"trellis --url {press.url} jobs retry --failed-items {ref.id}" in ran.err
    ran = command("jobs", "retry", "--failed-items", ref.id, "--url", press.url)
    assert (ran.code, ran.err) == (0, "1 job waiting to run again for failed items.\n")
    ran = command("jobs", "items", ref.id, "--all-attempts", "-q", "--url", press.url)
    assert ran.out == "page-1\npage-2\n"
    assert ref.status_sync().state == "pending"


def test_a_job_without_items_has_none_to_list_or_to_run_again(
    look: Run, ids: dict[str, str]
) -> None:
    ran = look("jobs", "items", ids["failed"])
    assert (ran.out, ran.err) == ("", "The job has reported no items.\n")
    ran = look("jobs", "retry", "--failed-items", "--dry-run", "--all")
    assert (ran.out, ran.err) == ("", "Would retry the failed items of 0 jobs. Nothing was done.\n")
    ran = look("jobs", "retry", "--failed-items", "--all")
    assert ran.err == "No job matches; nothing to do.\n"


def test_only_jobs_with_items_are_chosen_to_run_again_for_failed_items(
    command: Run, press: Service
) -> None:
    publish_once(press)

    @press.job(retry=Retry.never())
    def fail(job: ActiveJob[int]) -> None:
        raise ValueError(job.payload)

    async def run() -> None:
        async with press, press.worker():
            with pytest.raises(JobFailed):
                await (await fail.create(1)).wait("10s")

    asyncio.run(run())
    ran = command("jobs", "retry", "--failed-items", "--all", "--url", press.url)
    assert ran.code == 2
    assert "This would retry the failed items of 1 job," in " ".join(ran.err.split())
    ran = command("jobs", "retry", "--failed-items", "--all", "--yes", "--url", press.url)
    assert (ran.code, ran.err) == (0, "1 job waiting to run again for failed items.\n")
