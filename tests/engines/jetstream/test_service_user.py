"""Programs of services and operators with exactly the permissions that Trellis writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.jetstream.conftest import Used, matches
from tests.harness.servers.nats import NatsServer, nats_server
from trellis import ActiveJob, Limit, PerKey, Retry, Service
from trellis import schedules as control
from trellis.admin.opening import admin_runtime
from trellis.core import schedules as rules
from trellis.core.commands import Cancel
from trellis.core.durations import SECOND
from trellis.core.policy import Policy
from trellis.core.schedules import Declared, Plan, Template
from trellis.core.states import State
from trellis.engines.archive import Archived
from trellis.engines.demand import Demand
from trellis.engines.jetstream import JetStreamEngine, ServiceEngine, schedules
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.hints import hint
from trellis.engines.jetstream.permissions import admin_permissions, service_permissions
from trellis.engines.jetstream.subjects import JobName, Subjects
from trellis.engines.port import Engine
from trellis.errors import AccessDenied, ConfigurationError
from trellis.testing.builders import a_job, a_job_id, a_worker
from trellis.testing.conformance.helpers import accept_one, settle

PATIENCE = 30
TYPES = ("send", "keyed", "limited", "flaky", "after", "report")
SUBJECTS = Subjects()
MAIL = service_permissions(SUBJECTS, "mail", TYPES)
BILLING = service_permissions(SUBJECTS, "billing", ["invoice"])
#: Granted for what a short test does not do.
RARE = {
    "trellis.jobs.workers.mail.>": "presence of workers",
    "trellis.jobs.trellis.archive.mail": "archivers",
    "trellis.jobs.trellis.archiving.mail.>": "archivers",
    "trellis.jobs.trellis.left.*": "a job that hundreds of others wait for",
    "$JS.API.STREAM.NAMES": "writes that stay unanswered",
} | {
    f"$JS.ACK.*.*.JOBS_WORK.mail={name}.>": "acknowledgements with the name of a JetStream domain"
    for name in TYPES
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server with a user for each of two services, and one for operators."""
    users = "\n".join(
        each.user(name, f'"{name}"')
        for name, each in (
            ("mail", MAIL), ("billing", BILLING), ("admin", admin_permissions(SUBJECTS)),
        )
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("nats")
    with nats_server(folder, f"authorization {{ users: [\n{users}\n] }}") as server:
        yield server


@pytest.fixture
async def admin(server: NatsServer, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine of operators, beside an admin runtime with the same permissions."""
    url = server.url_of("admin", "admin")
    engine: Any = JetStreamEngine(url)
    await engine.migrate()
    async with admin_runtime(url, str(tmp_path / "projection.db"), changes=True):
        await engine.open()
        yield engine
        await engine.close()


def _mail(url: str) -> tuple[Service, list[Any]]:
    """A service, and its types in the order of their names above."""
    service = Service("mail", url=url)

    @service.job
    async def send(number: int) -> int:
        return number

    @service.job(per_key=PerKey.in_turn("all"))
    async def keyed(number: int) -> int:
        return number

    @service.job(limit=Limit(active=1, rate="1/300ms"))
    async def limited(number: int) -> int:
        return number

    @service.job(retry=Retry.after("10ms"))
    async def flaky(job: ActiveJob[int]) -> int:
        job.log.info("begun")
        job.progress(1, 2)
        async with job.lock("printer"):
            if job.attempt == 1:
                raise ValueError
        return job.payload

    @service.job
    async def after(number: int) -> int:
        return number

    @service.job
    async def report(job: ActiveJob[None]) -> int:
        assert job.batch is not None
        return len([each async for each in job.batch.members()])

    service.schedule(send, every="1s", payload=7, name="often")
    return service, [send, keyed, limited, flaky, after, report]


async def _work(service: Service, types: list[Any]) -> None:
    """Do what clients and workers of a service do."""
    send, keyed, limited, flaky, after, report = types
    assert await (await send.create(1)).wait(PATIENCE) == 1
    late = await send.create(2, delay="300ms", dedupe="d", idempotency_key="i")
    assert await late.wait(PATIENCE) == 2
    for job in (keyed, limited):
        refs = await job.create_many([1, 2, 3])
        assert [await ref.wait(PATIENCE) for ref in refs] == [1, 2, 3]
    assert await (await flaky.create(3)).wait(PATIENCE) == 3
    first = await send.create(4, delay="100ms")
    assert await (await after.create(5, after=[first])).wait(PATIENCE) == 5
    async with service.batch(then=report) as batch:
        await batch.create(send, 6)
    await batch.ref.wait(PATIENCE)
    async with service.lock("outside"):
        pass
    doomed = await send.create(7, delay="1h")
    await doomed.cancel()
    assert (await doomed.status()).state is State.CANCELLED


async def test_a_service_works_with_exactly_its_permissions(
    server: NatsServer, admin: Engine, used: Used
) -> None:
    service, types = _mail(f"{server.url_of('mail', 'mail')}?service=mail")
    async with service, service.worker():
        await _work(service, types)
        end = time.monotonic() + PATIENCE
        while not await admin.slots("mail", "often"):
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
    made: Any = ServiceEngine(server.url_of("mail", "mail"), "mail")
    await made.open()
    # What a worker does with a delivery that it does not claim.
    await made._link.write(hint(made._subjects.due(JobName("mail", "send", a_job_id()))))
    await made.close()
    assert used.denied <= {"$js.api.stream.purge.jobs_state"}
    unused = [
        each
        for each in MAIL.publish
        if each not in RARE and not any(matches(each, name) for name in used.published)
    ]
    assert unused == [], unused
    heard = [
        each for each in MAIL.subscribe if not any(matches(each, name) for name in used.subscribed)
    ]
    assert heard == []


def test_no_permission_is_contained_in_another() -> None:
    for lines in MAIL:
        for each in lines:
            assert not any(matches(other, each) for other in lines if other != each), each


async def test_each_service_takes_over_its_own_lost_jobs(server: NatsServer, admin: Engine) -> None:
    engines = {}
    for name in ("mail", "billing"):
        made: Any = ServiceEngine(server.url_of(name, name), name)
        await made.open()
        engines[name] = made
    jobs = {"mail": a_job(service="mail", type="send"),
            "billing": a_job(service="billing", type="invoice")}  # fmt: skip
    demands = {"mail": "send", "billing": "invoice"}
    for name, engine in engines.items():
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        await engine.create([jobs[name]])
        end = time.monotonic() + PATIENCE
        while not (await engine.claim(session, [Demand(name, (demands[name],), 1)], 1)).jobs:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        assert await engine.take_lock("trellis/leader", session) is None
        await engine.close_session(session)
    assert len((await admin.due("lost", 9)).jobs) == 2
    for name, engine in engines.items():
        (lost,) = (await engine.due("lost", 9)).jobs
        assert lost.record.definition.id == jobs[name].id
        await engine.close()


async def test_what_a_service_may_not_delete_stops_neither_its_archive_nor_its_schedules(
    server: NatsServer, admin: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail: Any = ServiceEngine(server.url_of("mail", "mail"), "mail")
    await mail.open()
    new = a_job(service="mail", type="send")
    done = await settle(admin, await accept_one(admin, new), Cancel())
    draft = Draft(mail._store)
    current = await draft.job(new.id)
    assert current is not None
    await mail._archiving.add(draft, current)
    await draft.write()
    assert await mail.archivable("mail", 9) == [done]
    assert await mail.remove_archived([Archived(new.id, done.head.version)]) == 1
    assert await mail.archivable("mail", 9) == []

    monkeypatch.setattr(schedules, "KEEP_SLOTS", 0)
    template = Template("send", "send", Policy())
    every = Declared("mail", "often", Plan("@every 1s"), template)
    await control.declare_schedules(mail, "mail", [every], lambda _: False)
    for _ in range(2):
        end = time.monotonic() + PATIENCE
        while not (due := (await mail.due_schedules(9)).schedules):
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        step = rules.decide_slots(due[0], await mail.now(), ())
        assert await mail.advance_schedule(step)
    await mail.close()


async def test_a_worker_of_another_service_than_its_url_is_refused_at_its_start(
    server: NatsServer, admin: Engine
) -> None:
    service, _ = _mail(f"{server.url_of('admin', 'admin')}?service=post")
    async with service:
        with pytest.raises(ConfigurationError, match=r"for service post.*runs jobs of mail"):
            async with service.worker():
                pass


async def test_a_service_cannot_create_jobs_of_another(server: NatsServer, admin: Engine) -> None:
    engine: Any = ServiceEngine(server.url_of("mail", "mail"), "mail")
    await engine.open()
    new = a_job(service="billing", type="invoice")
    async with asyncio.timeout(4):
        with pytest.raises(
            AccessDenied, match=r"trellis\.jobs\.billing\.invoice.*Nothing was stored"
        ):
            await engine.create([new])
    assert (await admin.load([new.id])).records == (None,)
    await engine.close()
