"""The parent of a job: the job in whose handler it was created, however it was created there."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from trellis import Accepted, ActiveJob, BatchRef, JobRef, Service
from trellis.core.job import Relations
from trellis.engines.values import JobFilter


class Office:
    """A job that creates others, in each way there is."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.created: list[str] = []
        self.batches: list[BatchRef] = []

        @service.job
        async def write(text: str) -> str:
            return text

        @service.job(fair="{team}")
        async def shared(payload: dict[str, str]) -> None: ...

        @service.job
        async def bind() -> None: ...

        @service.job
        async def plan(job: ActiveJob[str]) -> str:
            created: list[JobRef[Any]] = await self._create(job)
            self.created += [ref.id for ref in created]
            return job.payload

        @service.job
        def plan_in_thread(payload: str) -> str:
            refs: list[JobRef[Any]] = [write.create_sync("one")]
            refs += write.create_many_sync(["two", "three"])
            with service.batch(then=bind) as batch:
                refs.append(batch.create_sync(write, "four"))
                refs += batch.create_many_sync(write, ["five"])
            self.batches.append(batch.ref)
            self.created += [ref.id for ref in refs]
            return payload

        self.write, self.shared, self.bind = write, shared, bind
        self.plan, self.plan_in_thread = plan, plan_in_thread

    async def _create(self, job: ActiveJob[str]) -> list[JobRef[Any]]:
        write, service = self.write, self.service
        refs: list[JobRef[Any]] = []
        match job.payload:
            case "create":
                refs.append(await write.create("one"))
                answer = await write.submit("two")
                assert isinstance(answer, Accepted)
                refs += [answer.ref, *await write.create_many(["three", "four"])]
                refs.append(await self.shared.create({"team": "red"}))
                refs.append(await write.create("five", tenant="blue"))
                refs.append(await job.spawn(write, "six"))
            case "linked":
                refs += (await (write | write).create("one")).refs
                flow = service.workflow()
                flow.step("a", write, "two")
                flow.step("b", write, payload_from="a")
                refs += (await flow.create()).values()
            case _:
                async with service.batch(then=self.bind) as outer:
                    refs.append(await outer.create(write, "one"))
                    async with outer.batch(then=self.bind) as inner:
                        refs += await inner.create_many(write, ["two", "three"])
                self.batches += [inner.ref, outer.ref]
        return refs


async def children(service: Service, parent: str) -> dict[str, Relations | None]:
    """Return what the children of a job belong to, by their ids."""
    found = await (await service.connection.engine()).find(JobFilter(parent=parent))
    return {job.definition.id: job.definition.relations for job in found.jobs}


async def test_a_job_created_in_a_handler_has_the_running_job_as_parent(service: Service) -> None:
    office = Office(service)
    async with service.worker():
        ref = await office.plan.create("create")
        await ref.wait("20s")
        assert (await children(service, ref.id)).keys() == set(office.created)
        assert len(office.created) == 7
        tenants = [job and job.tenant for job in (await children(service, ref.id)).values()]
        assert sorted(filter(None, tenants)) == ["blue", "red"]
        assert (await ref.status()).parent is None


async def test_chains_and_workflows_of_a_handler_have_it_as_parent(service: Service) -> None:
    office = Office(service)
    async with service.worker():
        ref = await office.plan.create("linked")
        await ref.wait("20s")
    assert (await children(service, ref.id)).keys() == set(office.created)
    assert len(office.created) == 4


async def test_members_and_fan_in_jobs_of_its_batches_have_it_as_parent(service: Service) -> None:
    office = Office(service)
    async with service.worker():
        for planner, members in ((office.plan, 3), (office.plan_in_thread, 5)):
            office.created.clear()
            office.batches.clear()
            ref = await planner.create("batch")
            await ref.wait("20s")
            last = {str((await batch.wait("20s")).fan_in) for batch in office.batches}
            assert (await children(service, ref.id)).keys() == {*office.created, *last}
            assert len(office.created) == members


async def test_a_job_created_outside_of_handlers_has_no_parent(service: Service) -> None:
    office = Office(service)
    single = await office.write.create("one")
    async with service.batch(then=office.bind) as batch:
        member = await batch.create(office.write, "two")
    assert [(await ref.status()).parent for ref in (single, member)] == [None, None]
    async with service.worker():
        view = await batch.ref.wait("20s")
        assert (await office.bind.ref(str(view.fan_in)).status()).parent is None


async def test_a_job_stored_by_the_callers_commit_has_the_running_job_as_parent(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    async with Service("shop", f"sqlite:///{path}") as service:

        @service.job
        def write(text: str) -> str:
            return text

        @service.job
        def plan() -> str:
            with sqlite3.connect(path) as orders:
                return write.create_sync("one", tx=orders).id

        async with service.worker():
            ref = await plan.create()
            created = await ref.wait("20s")
        assert (await write.ref(created).status()).parent == ref.id
