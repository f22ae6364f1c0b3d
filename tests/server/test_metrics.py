"""`/metrics` of the server, and the trace of a request, through a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Api
from tests.telemetry.conftest import Observed
from tests.telemetry.test_tracing import attribute, identity, parent
from tests.worker.faulty import eventually
from trellis import ActiveJob, Retry, Service, telemetry
from trellis.client.requests import new_job
from trellis.core.durations import SECOND
from trellis.engines.demand import Demand
from trellis.engines.instrumented import Call, instrumented
from trellis.engines.memory import MemoryEngine
from trellis.engines.values import WorkerInfo
from trellis.operations.operator import Operator
from trellis.server import create_app
from trellis.telemetry.store import StoreMetrics

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(autouse=True)
def _switched_off_afterwards() -> Iterator[None]:
    yield
    telemetry.disable()


@pytest.fixture
def observed() -> Iterator[Observed]:
    telemetry.disable()
    observed = Observed()
    observed.enable()
    yield observed
    observed.meter_provider.shutdown()
    observed.tracer_provider.shutdown()


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


async def test_the_store_is_counted_by_queue_type_and_state(api: Api) -> None:
    await api.engine.open_session(WorkerInfo("worker", "host", 1, details="{}"), 60 * SECOND)
    answer = await api.send("GET", "/metrics", "admin.read")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = samples(answer.text)
    lane = ("shop", "invoice", "invoice")
    assert found["trellis_jobs", *lane, "pending"] == 1
    assert found["trellis_oldest_due_seconds", *lane] >= 0
    assert (found["trellis_engine_up",], found["trellis_workers",]) == (1, 1)


@pytest.mark.parametrize(("scopes", "status"), [((), 401), (("submit:shop",), 403)])
async def test_metrics_need_a_token_that_reads(
    api: Api, scopes: tuple[str, ...], status: int
) -> None:
    assert (await api.send("GET", "/metrics", *scopes)).status_code == status


async def test_running_and_dead_jobs_are_counted_and_ended_ones_are_not() -> None:
    engine = MemoryEngine()
    service = Service("shop", "memory://")

    @service.job
    async def quick() -> None:
        """Do nothing."""

    await engine.create([new_job(quick.job_type, None) for _ in range(3)])
    session = await engine.open_session(WorkerInfo("worker", "host", 1), 60 * SECOND)
    await engine.claim(session.id, [Demand("shop", ("quick",), 1)], 1)
    page = await Operator(engine).find(state="pending").page()
    await Operator(engine).cancel(page.jobs[0].id)
    found = await StoreMetrics().read(engine)
    lane = ("shop", "quick", "quick")
    assert found["trellis_jobs"] == {(*lane, "active"): 1, (*lane, "pending"): 1}
    assert list(found["trellis_oldest_due_seconds"]) == [lane]


async def test_values_are_read_once_a_second_at_most() -> None:
    calls: list[Call] = []
    engine, metrics = instrumented(MemoryEngine(), calls.append), StoreMetrics()
    await asyncio.gather(*(metrics.read(engine) for _ in range(5)))
    assert sorted(call.verb for call in calls) == ["count", "rates", "sessions"]


async def test_the_lag_of_the_feed_is_measured_where_it_is_read(api: Api) -> None:
    feed = api.service.changes()
    change = await anext(feed)
    assert change.event.kind == "created"
    await feed.aclose()
    found = samples((await api.send("GET", "/metrics", "admin.read")).text)
    assert 0 <= found["trellis_feed_lag_seconds",] < 600


# -- traces ------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[str]:
    """Serve the jobs of a service on loopback; the value is the URL."""
    config = uvicorn.Config(
        create_app(service.url, no_auth=True), port=0, log_level="warning", lifespan="on"
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


@pytest.fixture
async def flaky(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    path = tmp_path_factory.mktemp("store") / "jobs.db"
    async with Service("shop", f"sqlite:///{path}") as service:

        @service.job(retry=Retry.fixed("1ms"))
        async def flaky(job: ActiveJob[int]) -> str:
            if job.attempt == 1:
                raise ValueError("not yet")
            return "done"

        yield service


async def submit(at: str, **headers: str) -> str:
    body = {"type": "shop/flaky", "payload": 7}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{at}/api/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


async def test_one_trace_goes_from_the_request_to_the_last_settlement(
    flaky: Service, observed: Observed
) -> None:
    job = flaky.find("flaky")
    await job.create(1, delay="1d")  # so that the type is known
    observed.exporter.clear()
    async with serving(flaky) as at, flaky.worker():
        caller = f"00-{TRACE}-00f067aa0ba902b7-01"
        job_id = await submit(at, traceparent=caller, tracestate="vendor=1")
        assert await job.ref(job_id).wait() == "done"
        await eventually(lambda: len(observed.spans("settle")) == 2)
        await eventually(lambda: len(observed.spans("POST")) == 1)
    (request,), (created,) = observed.spans("POST"), observed.spans("create")
    first, second = observed.spans("process")
    retried, completed = observed.spans("settle")
    assert request.name == "POST /api/v1/jobs"
    assert attribute(request, "http.response.status_code") == 202
    assert parent(request) == (int(TRACE, 16), int("00f067aa0ba902b7", 16))
    assert parent(created) == identity(request)
    assert parent(first) == parent(second) == identity(created)
    assert (parent(retried), parent(completed)) == (identity(first), identity(second))
    assert {identity(each)[0] for each in observed.spans()} == {int(TRACE, 16)}
    assert attribute(completed, "trellis.job.state") == "completed"


async def test_without_telemetry_a_job_belongs_to_the_trace_of_its_request(
    flaky: Service,
) -> None:
    telemetry.disable()
    job = flaky.find("flaky")
    await job.create(1, delay="1d")
    async with serving(flaky) as at:
        traced = await submit(at, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
        other = await submit(at)
        wrong = await submit(at, traceparent="00-nonsense")
    trace_ids = [(await job.ref(each).status()).trace_id for each in (traced, other, wrong)]
    assert trace_ids[0] == TRACE
    assert len({*trace_ids}) == 3
