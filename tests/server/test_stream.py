"""The live stream: gap-free across cuts and servers, filtered, bounded, and over in time."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.servers.proxy import Proxy
from tests.server.serving import Listener, Running, request, serving
from tests.worker.faulty import eventually
from trellis import ActiveJob, Fail, Job, JobFailed, Operator, Service, connect
from trellis.core.batches import NewBatch
from trellis.core.job import Relations
from trellis.core.policy import KeyPolicy
from trellis.engines.feed import Changes
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import JobFilter
from trellis.server.limits import Limits
from trellis.server.live import _PAGE as READERS_PAGE
from trellis.testing.builders import a_job, a_job_id, a_keyed_job

JOBS = 60
LINES = 40


class Shop:
    """A service with a type that writes log lines, and the operator's view of its store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.service = Service("shop", url)

        @self.service.job
        async def bill(job: ActiveJob[int]) -> int:
            for number in range(job.payload):
                job.log.info("line", number=number)
                job.progress(number + 1, job.payload)
            return job.payload

        @self.service.job(queue="slow")
        async def report(number: int) -> int:
            return number

        @self.service.job(dead_letters=False)
        async def refuse() -> None:
            raise Fail("no such order")

        self.refuse: Job[None, None] = refuse
        self.bill: Job[int, int] = bill
        self.report: Job[int, int] = report

    async def token(self, *scopes: str) -> str:
        """Return a token with these scopes, else one for streams."""
        async with connect(self.url) as jobs:
            return (await jobs.tokens.create(scopes or ["admin.stream"])).text


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    """A shop on SQLite."""
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with shop.service:
        yield shop


async def all_changes(jobs: Operator) -> list[tuple[str, int]]:
    """Return the feed: job and version of every event."""
    found: list[tuple[str, int]] = []
    cursor = None
    while True:
        page = await jobs.engine.changes(cursor, 1000)
        assert isinstance(page, Changes)
        found += [(each.job_id, each.event.version) for each in page.entries]
        cursor = page.cursor
        if page.is_last:
            return found


async def check_resumption(url: str, seed: int) -> None:
    """Cut a client off at random places, let it resume at one of two servers, compare."""
    chance = random.Random(seed)
    shop = Shop(url)
    async with shop.service, connect(url) as jobs:
        listener = Listener(await shop.token(), "after=s0.0" if "sqlite" in url else "after=p0.0")
        expected: list[tuple[str, int]] = []

        def seen() -> list[tuple[str, int]]:
            return [(each["job_id"], each["event"]["version"]) for each in listener.of("change")]

        async def produce() -> None:
            for number in range(JOBS):
                await shop.bill.create(number % 3)
                if number % 7 == 0:
                    await shop.bill.create_many([0, 1])
            await eventually(lambda: has_ended(jobs))
            await eventually(lambda: shows_everything(jobs))
            expected.extend(await all_changes(jobs))

        with serving(url) as one, serving(url) as other:
            async with shop.service.worker(concurrency=4):
                producing = asyncio.create_task(produce())
                while not producing.done() or len(seen()) < len(expected):
                    port = chance.choice([one, other]).port
                    cut = chance.randrange(200, 6000)
                    await listener.listen(
                        port, lambda: bool(expected) and len(seen()) >= len(expected), cut
                    )
                await producing
        assert listener.connections > 5
        assert seen() == expected


async def has_ended(jobs: Operator) -> bool:
    """Return whether every job has ended."""
    return await jobs.find(state=["waiting", "running"]).count() == 0


async def shows_everything(jobs: Operator) -> bool:
    """Return whether the feed has every change; PostgreSQL's waits for open transactions."""
    page = await jobs.engine.find(JobFilter(), limit=10_000)
    return len(await all_changes(jobs)) == sum(each.head.version for each in page.jobs)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_client_that_is_cut_off_anywhere_misses_nothing_on_sqlite(
    tmp_path: Path, seed: int
) -> None:
    await check_resumption(f"sqlite:///{tmp_path / 'jobs.db'}", seed)


async def test_a_client_that_is_cut_off_anywhere_misses_nothing_on_postgresql(
    postgres_url: str,
) -> None:
    await migrate(postgres_url)
    await check_resumption(postgres_url, 3)


async def migrate(url: str) -> None:
    """Create the tables of a database."""
    engine = PostgresEngine(url)
    await engine.migrate()
    await engine.close()


@pytest.mark.on_postgres(18)
async def test_an_open_stream_goes_on_after_an_outage_of_the_database(
    postgres_url: str, postgres_proxy: Proxy
) -> None:
    await migrate(postgres_url)
    shop = Shop(postgres_url)
    async with shop.service:
        listener = Listener(await shop.token())
        with serving(postgres_proxy.url, Limits(heartbeat=0.2)) as server:
            task = asyncio.create_task(listener.listen(server.port))
            await shop.bill.create(0)
            await eventually(lambda: bool(listener.of("ready")))
            refs = await shop.bill.create_many([0, 0])
            await eventually(lambda: len(listener.of("change")) >= len(refs))
            before = len(listener.of("change"))
            postgres_proxy.refuse()
            postgres_proxy.drop()
            refs += await shop.bill.create_many([0] * 5)
            beats = len(listener.said)
            await eventually(lambda: len(listener.said) > beats)  # the stream stays open
            assert len(listener.of("change")) == before
            postgres_proxy.accept()
            await eventually(lambda: len(listener.of("change")) >= before + 5, 60)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    seen = [each["job_id"] for each in listener.of("change")]
    assert seen[-len(refs) :] == [each.id for each in refs]
    assert listener.connections == 1


async def test_log_lines_and_progress_of_a_job_come_once_across_cuts(shop: Shop) -> None:
    chance = random.Random(5)
    ref = await shop.bill.create(LINES)
    listener = Listener(await shop.token(), f"jobs={ref.id}")

    def is_complete() -> bool:
        ended = [each["event"]["state"] for each in listener.of("change")][-1:] == ["completed"]
        return ended and len(listener.of("log")) >= LINES

    with serving(shop.url) as one:
        listener.last_id = None
        first = asyncio.create_task(listener.listen(one.port, lambda: bool(listener.of("ready"))))
        await first
        async with shop.service.worker():
            await ref.wait("20s")
        while not is_complete():
            await listener.listen(one.port, is_complete, chance.randrange(300, 5000))
    assert [each["number"] for each in listener.of("log")] == list(range(1, LINES + 1))
    assert [each["event"]["kind"] for each in listener.of("change")] == ["started", "completed"]


async def test_a_stream_has_what_its_filters_want(shop: Shop) -> None:
    token = await shop.token()
    with serving(shop.url) as server:
        queries = {
            "types=report": ["created report", "started report", "completed report"],
            "queue=shop/slow&state=ended": ["completed report"],
            "service=shop&kind=created": ["created bill", "created report"],
            "tag=tenant%3Dacme": ["created report", "started report", "completed report"],
        }
        listeners = {query: Listener(token, query) for query in queries}
        tasks = [
            asyncio.create_task(each.listen_for(server.port, "change", len(queries[query])))
            for query, each in listeners.items()
        ]
        await eventually(lambda: all(each.of("ready") for each in listeners.values()))
        async with shop.service.worker(concurrency=1):
            await (await shop.bill.create(0)).wait("20s")
            await (await shop.report.create(1, tags={"tenant": "acme"})).wait("20s")
            await asyncio.gather(*tasks)
    for query, expected in queries.items():
        changes = listeners[query].of("change")
        assert [f"{each['event']['kind']} {each['type']}" for each in changes] == expected, query


async def test_queue_counts_are_sent_at_once_and_when_they_change(shop: Shop) -> None:
    listener = Listener(await shop.token(), "events=queues&queues=bill")
    with serving(shop.url) as server:
        await shop.bill.create_many([0, 0])
        task = asyncio.create_task(
            listener.listen(server.port, lambda: listener.of("queues")[-1:] == [counts(3)])
        )
        await eventually(lambda: listener.of("queues")[-1:] == [counts(2)])
        await shop.bill.create(0)
        await shop.report.create(0)
        await task
    assert listener.of("change") == []


def counts(waiting: int) -> list[dict[str, object]]:
    """Return the counts of the queue of bills."""
    return [
        {"service": "shop", "queue": "bill", "paused": False, "draining": False}
        | {"waiting": waiting, "active": 0, "limit": None}
    ]


@pytest.mark.parametrize("lost", ["s0.1", "p1.1", "nonsense", "s0.99999"])
async def test_a_client_that_lost_its_place_is_told_to_load_again(shop: Shop, lost: str) -> None:
    async with connect(shop.url) as jobs:
        gone = await shop.bill.create(0)
        await jobs.cancel(gone.id)
        await jobs.delete(gone.id)
        listener = Listener(await shop.token())
        listener.last_id = lost
        with serving(shop.url) as server:
            await listener.listen(server.port, lambda: bool(listener.of("ready")))
            (reset,) = listener.of("reset")
            assert "Load everything again" in reset["detail"]
            listener.events.clear()
            new = await shop.bill.create(0)
            await listener.listen(server.port, lambda: bool(listener.of("change")))
    assert [each["job_id"] for each in listener.of("change")] == [new.id]
    assert listener.of("reset") == []


async def test_a_stream_has_what_belongs_to_a_key_tenant_batch_parent_or_schedule(
    shop: Shop,
) -> None:
    token = await shop.token()
    batch, parent = a_job_id(), a_job_id()
    wanted = {
        "key=eu": a_keyed_job("eu", KeyPolicy("{id}"), type="keyed"),
        "tenant=acme": a_job(relations=Relations(tenant="acme")),
        f"batch={batch.lower()}": a_job(relations=Relations(batch=batch)),
        f"parent={parent}": a_job(relations=Relations(parent=parent)),
        "schedule=shop/nightly": a_job(relations=Relations(schedule="nightly")),
        "tenant=gold&schedule=nightly": a_job(
            relations=Relations(tenant="gold", schedule="nightly")
        ),
    }
    async with connect(shop.url) as jobs:
        await jobs.engine.open_batch(NewBatch(batch, "shop"))
        with serving(shop.url) as server:
            live = {query: Listener(token, query) for query in wanted}
            number = {query: 2 if query.startswith("schedule") else 1 for query in wanted}
            tasks = [
                asyncio.create_task(each.listen_for(server.port, "change", number[query]))
                for query, each in live.items()
            ]
            await eventually(lambda: all(each.of("ready") for each in live.values()))
            await jobs.engine.create([a_job(), *wanted.values(), a_job()])
            await asyncio.gather(*tasks)
            late = {query: Listener(token, f"{query}&after=s0.0") for query in wanted}
            for query, each in late.items():
                await each.listen_for(server.port, "change", number[query])
    for query, new in wanted.items():
        for listener in (live[query], late[query]):
            ids = [each["job_id"] for each in listener.of("change")]
            assert ids[0] == new.id, query
            assert len(ids) == number[query], query


async def test_a_stream_has_the_changes_with_an_error(shop: Shop) -> None:
    listener = Listener(await shop.token(), "error=NO%20SUCH")
    with serving(shop.url) as server:
        listening = asyncio.create_task(listener.listen_for(server.port, "change", 1))
        await eventually(lambda: bool(listener.of("ready")))
        async with shop.service.worker(concurrency=1):
            await (await shop.bill.create(0)).wait("20s")
            with pytest.raises(JobFailed):
                await (await shop.refuse.create()).wait("20s")
            await listening
    assert [each["event"]["kind"] for each in listener.of("change")] == ["failed"]


async def test_a_wrong_place_or_filter_in_the_url_is_refused(shop: Shop) -> None:
    token = await shop.token()
    with serving(shop.url) as server:
        for query in ("after=nonsense", "events=all", "state=done", "stat=x", "events=logs"):
            headers = {"Authorization": f"Bearer {token}"}
            async with request(server.port, f"/api/v1/stream?{query}", **headers) as answer:
                assert (answer.status, query) == (422, query)
                assert answer.headers["content-type"] == "application/problem+json"


async def test_heartbeats_move_the_place_over_what_is_not_wanted(shop: Shop) -> None:
    listener = Listener(await shop.token(), "types=report")
    with serving(shop.url, Limits(heartbeat=0.2)) as server:
        task = asyncio.create_task(
            listener.listen(server.port, lambda: listener.last_id not in {None, begun()})
        )

        def begun() -> str | None:
            return listener.events[0].id if listener.events else None

        await eventually(lambda: bool(listener.of("ready")))
        await shop.bill.create(0)
        await task
    assert ": heartbeat" in listener.said
    assert listener.of("change") == []


async def test_a_revoked_token_ends_the_stream(shop: Shop) -> None:
    token = await shop.token()
    listener = Listener(token)
    with serving(shop.url, Limits(heartbeat=0.1)) as server:
        task = asyncio.create_task(listener.listen(server.port))
        await eventually(lambda: bool(listener.of("ready")))
        async with connect(shop.url) as jobs:
            await jobs.tokens.revoke(token)
        await task
    assert any("no access any more" in each for each in listener.said)


async def test_a_stopping_server_ends_its_streams_and_says_when_to_come_back(shop: Shop) -> None:
    listeners = [Listener(await shop.token()) for _ in range(20)]
    with serving(shop.url) as server:
        tasks = [asyncio.create_task(each.listen(server.port)) for each in listeners]
        await eventually(lambda: all(each.of("ready") for each in listeners))
        await asyncio.to_thread(server.stop)
        await asyncio.gather(*tasks)
        assert server.app.state.streams.open == 0
    for each in listeners:
        assert each.said[-1].startswith("retry: ")


async def test_more_streams_than_allowed_are_refused(shop: Shop) -> None:
    first, second = await shop.token(), await shop.token()
    with serving(shop.url, Limits(streams=2, streams_per_token=1)) as server:
        open_ones = [Listener(first), Listener(second)]
        tasks = [asyncio.create_task(each.listen(server.port)) for each in open_ones]
        await eventually(lambda: all(each.of("ready") for each in open_ones))
        for token, status in ((first, 429), (await shop.token(), 503)):
            headers = {"Authorization": f"Bearer {token}"}
            async with request(server.port, "/api/v1/stream", **headers) as answer:
                assert answer.status == status
                assert int(answer.headers["retry-after"]) > 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await eventually(lambda: server.app.state.streams.open == 0)


async def test_a_client_that_reads_nothing_is_cut_off_and_can_resume(shop: Shop) -> None:
    token = await shop.token()
    headers = {"Authorization": f"Bearer {token}"}
    with serving(shop.url, Limits(stream_patience=0.3)) as server:
        path = "/api/v1/stream?after=s0.0"
        async with request(server.port, path, **headers) as answer:
            assert answer.status == 200
            answer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await shop.bill.create_many([0] * 3000, tags={"long": "x" * 2000})
            await eventually(lambda: server.app.state.streams.open == 0)
        listener = Listener(token, "after=s0.0")
        await listener.listen(server.port, lambda: len(listener.of("change")) >= 3000)
    assert len({each["job_id"] for each in listener.of("change")}) == 3000


async def test_a_reader_that_failed_is_started_again_without_a_gap(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(await shop.token())
    with serving(shop.url, Limits(heartbeat=0.2)) as server:
        task = asyncio.create_task(listener.listen_for(server.port, "change", 6))
        await eventually(lambda: bool(listener.of("ready")))
        engine = server.app.state.operator.engine
        read, failed = engine.changes, threading.Event()

        async def changes(after: str | None = None, limit: int = 1000) -> object:
            # A stream that is behind the reader reads smaller pages by itself.
            if limit == READERS_PAGE and not failed.is_set():
                failed.set()
                raise RuntimeError("a defect")
            return await read(after, limit)

        engine.changes = changes
        refs = await shop.bill.create_many([0] * 3)
        await asyncio.to_thread(failed.wait)
        refs += await shop.bill.create_many([0] * 3)
        await task
    assert [each["job_id"] for each in listener.of("change")] == [each.id for each in refs]
    assert "a defect" in caplog.text


async def test_all_streams_share_one_reader_of_the_feed(shop: Shop) -> None:
    token = await shop.token()
    listeners = [Listener(token) for _ in range(30)]
    with serving(shop.url) as server:
        tasks = [
            asyncio.create_task(each.listen_for(server.port, "change", 20)) for each in listeners
        ]
        await eventually(lambda: all(each.of("ready") for each in listeners))
        reads = count_reads(server)
        for _ in range(20):
            await shop.bill.create(0)
        await asyncio.gather(*tasks)
    assert len(reads) < 20 * len(listeners) / 2, len(reads)


def count_reads(server: Running) -> list[str | None]:
    """Return a list that grows with every read of the feed."""
    engine, reads = server.app.state.operator.engine, []
    read = engine.changes

    async def changes(after: str | None = None, limit: int = 1000) -> object:
        reads.append(after)
        return await read(after, limit)

    engine.changes = changes
    return reads
