"""Bad input, and servers and streams in a bad state: a clear error, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest

from tests.harness.servers.nats import NatsCluster, NatsServer, nats_server
from trellis import JobFailed, Service
from trellis.core.admission import Reason
from trellis.core.batches import NewBatch
from trellis.core.commands import Complete, Fail
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobId, Prerequisite, Relations
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.states import State
from trellis.engines.audit import By
from trellis.engines.jetstream import JetStreamEngine, topology
from trellis.engines.jetstream.link import Expect, Link, Message
from trellis.engines.jetstream.subjects import JobName, Subjects
from trellis.engines.port import Engine
from trellis.engines.values import (
    Committed,
    Conflict,
    LogLine,
    Note,
    Progress,
    QueueSettings,
    Rejected,
    Renewed,
)
from trellis.errors import (
    ConfigurationError,
    DiskFull,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    InvalidName,
    JobNotFound,
    NotATrellisDatabase,
    OutcomeUnknown,
    PayloadTooLarge,
    Unstorable,
    VersionMismatch,
)
from trellis.testing.builders import (
    a_declaration,
    a_demand,
    a_job,
    a_job_id,
    a_keyed_job,
    complete,
    fence_of,
)
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept_one,
    attempt,
    claim,
    decided,
    journal,
    settle,
    start,
    the,
)
from trellis.testing.conformance.schedules import put

#: How long a test waits for a change.
PATIENCE = 30.0
LIMIT = 64 * 1024
LARGE = "x" * (LIMIT + 1)


async def _opened(url: str, prefix: str = "trellis") -> Engine:
    engine = JetStreamEngine(url, prefix=prefix)
    await engine.open()
    return cast("Engine", engine)


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + PATIENCE
    while not await holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


# -- messages that the server does not take ----------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that takes small messages only, and has the streams."""
    with nats_server(tmp_path_factory.mktemp("nats"), f"max_payload: {LIMIT}") as server:
        yield server


@pytest.fixture
async def small(narrow: NatsServer) -> AsyncIterator[Engine]:
    link = Link([narrow.url])
    await link.open()
    await topology.migrate(link, Subjects(), 1, dry_run=False)
    await link.close()
    made = JetStreamEngine(narrow.url)
    engine = cast("Engine", made)
    await engine.open()
    yield engine
    # The server drops the connection of a client that sends too much.
    assert made._link.client.stats["reconnects"] == 0
    await engine.close()


async def test_a_payload_over_the_limit_of_the_server_is_refused_before_it_is_sent(
    small: Engine,
) -> None:
    new = a_job(payload=f'"{LARGE}"')
    with pytest.raises(PayloadTooLarge, match=r"Nothing was stored.*raise max_payload"):
        await small.create([new])
    assert (await small.load([new.id])).records == (None,)


async def test_a_result_or_error_over_the_limit_leaves_the_attempt_as_it_is(
    small: Engine,
) -> None:
    session = await a_session(small)
    record = await start(small, session, a_job())
    for command in (
        Complete(fence_of(record), f'"{LARGE}"'),
        Fail(fence_of(record), Failure("exception", LARGE)),
    ):
        with pytest.raises(Unstorable, match="Nothing was stored"):
            await attempt(small, record, command)
    assert (await the(small, record.definition.id)).head == record.head
    assert (await settle(small, record, complete(record))).head.state is State.COMPLETED


async def test_of_many_results_the_one_that_is_too_large_is_refused_before_any_is_stored(
    small: Engine,
) -> None:
    session = await a_session(small)
    await small.create([a_job() for _ in range(10)])
    await small.catch_up()
    records = await claim(small, session, a_demand(), limit=10)
    assert len(records) == 10
    texts = ["1"] * 9 + [f'"{LARGE}"']
    decisions = [
        await decided(small, each, complete(each, text))
        for each, text in zip(records, texts, strict=True)
    ]
    with pytest.raises(Unstorable):
        await small.commit(decisions)
    for record in records:
        assert (await the(small, record.definition.id)).head == record.head
    assert await small.commit(decisions[:9]) == [Committed()] * 9


@pytest.mark.parametrize("body", [LogLine("info", LARGE), Progress(1, 2, message=LARGE)])
async def test_a_note_over_the_limit_is_refused_before_it_is_sent(
    small: Engine, body: LogLine | Progress
) -> None:
    session = await a_session(small)
    record = await start(small, session, a_job())
    note = Note(record.definition.row, record.head.claims, fence_of(record), body)
    with pytest.raises(Unstorable, match=r"Nothing was stored.*raise max_payload"):
        await small.note([note])
    assert await small.logs(record.definition.id) == []


async def test_a_job_with_a_result_over_the_limit_fails_and_says_why(narrow: NatsServer) -> None:
    service = Service("large", url=narrow.url)

    @service.job
    async def produce(size: int) -> str:
        return "x" * size

    async with service, service.worker():
        ref = await produce.create(LIMIT + 1)
        with pytest.raises(JobFailed, match=r"could not be stored.*max_payload"):
            await ref.wait(PATIENCE)
        assert await (await produce.create(3)).wait(PATIENCE) == "xxx"


@pytest.mark.parametrize("job_id", ["a.b", "a b", "*", ">", "ä", "a\n"])
async def test_an_id_that_is_no_token_is_refused_and_no_job_has_it(
    engine: Engine, job_id: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"one token of a subject.*Nothing was stored"):
        await engine.create([a_job(id=JobId(job_id))])
    assert (await engine.load([JobId(job_id)])).records == (None,)


@pytest.mark.parametrize("name", ["a.b", "trellis", "workers", "*"])
async def test_a_service_whose_name_is_no_token_is_refused(engine: Engine, name: str) -> None:
    with pytest.raises(ConfigurationError):
        await engine.create([a_job(service=name)])


NO_TOKENS = ["a.b", "a.b.c", "*", ">", "a b", "", "ä", "a\n"]


@pytest.mark.parametrize("text", NO_TOKENS)
async def test_a_text_that_is_no_token_names_no_batch(engine: Engine, text: str) -> None:
    await engine.open_batch(NewBatch("batch", "shop"))
    relations, by = Relations(batch="batch"), By("ann", "test")
    await engine.create([a_job(relations=relations)])
    assert await engine.batch(text) is None
    assert await engine.seal_batch(text) is None
    assert await engine.cancel_batch(text, by) is None
    assert await engine.batch_statuses([text]) == [None]
    assert await engine.members(text) == []
    with pytest.raises(ConfigurationError, match=r"id of a batch on NATS.*Nothing was stored"):
        await engine.open_batch(NewBatch(text, "shop"))
    assert await engine.open_batch(NewBatch(a_job_id(), "shop", parent=text)) is None
    (answer,) = await engine.create([a_job(relations=Relations(batch=text))])
    assert answer == Rejected(Reason.BATCH_UNKNOWN, None)
    found = await engine.batch("batch")
    assert found is not None
    assert found.state == "open"


@pytest.mark.parametrize("text", NO_TOKENS)
async def test_a_text_that_is_no_token_names_nothing_else(engine: Engine, text: str) -> None:
    policy = Policy(key=KeyPolicy("user/{id}", 1, None, "wait"))
    first = await accept_one(engine, a_job(policy=policy, key="user/1"))
    await engine.create([a_job(after=(Prerequisite(first.definition.id),))])
    await put(engine, a_declaration())
    await engine.set_archive("shop", on=True)
    job_id = JobId(text)
    assert await engine.links([job_id]) == []
    assert await engine.keys("shop", text) == await engine.keys(text, "invoice") == []
    assert await engine.contracts(text) == []
    assert await engine.schedules([text]) == []
    assert await engine.slots("shop", text) == await engine.slots(text, "nightly") == []
    assert await engine.archivable(text, 9) == []
    assert await engine.logs(job_id) == []
    assert await engine.token(text) is None
    await engine.note_archive(text, "boom")
    assert [(each.service, each.failures) for each in await engine.archives()] == [("shop", 0)]


@pytest.mark.parametrize("text", NO_TOKENS)
async def test_a_name_that_is_no_token_is_refused(engine: Engine, text: str) -> None:
    by = By("ann", "test")
    for write in (
        engine.set_archive(text, on=True),
        engine.declare_archive(text, by),
        engine.set_queue(QueueSettings("shop", text, paused=True), by),
        engine.set_queue(QueueSettings(text, "invoices", paused=True), by),
    ):
        with pytest.raises(InvalidName):
            await write
    assert await engine.archives() == []
    assert await engine.queue_settings() == []


# -- servers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "login", "says"),
    [
        ("jetstream: disabled", "", "has no JetStream"),
        ("accounts { A { users: [{ user: a, password: a }] } }", "a:a@", "not enabled for account"),
    ],
)
async def test_a_server_without_jetstream_says_how_to_turn_it_on(
    tmp_path_factory: pytest.TempPathFactory, config: str, login: str, says: str
) -> None:
    with nats_server(tmp_path_factory.mktemp("nats"), config) as server:
        engine = JetStreamEngine(server.url.replace("://", f"://{login}"))
        for verb in (engine.open, engine.migrate):
            async with asyncio.timeout(4):
                with pytest.raises(EngineUnavailable, match="Turn JetStream on") as caught:
                    await verb()
            assert says in str(caught.value)
        await engine.close()


@asynccontextmanager
async def aged(server: NatsServer, version: str) -> AsyncIterator[str]:
    """Stand before a server, and let it say of itself that it has this version."""
    port, ways = urlsplit(server.url).port, set[asyncio.Task[None]]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while line := await reader.readline():
                if line.startswith(b"INFO "):
                    said = json.loads(line.removeprefix(b"INFO ")) | {"version": version}
                    line = b"INFO %s\r\n" % json.dumps(said).encode()
                writer.write(line)
                await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replies, requests = await asyncio.open_connection("127.0.0.1", port)
        for way in (carry(reader, requests), carry(replies, writer)):
            ways.add(asyncio.create_task(way))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        listening.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _streams(url: str) -> list[str]:
    link = Link([url])
    await link.open()
    names: list[str] = (await link.api("STREAM.NAMES")).get("streams") or []
    await link.close()
    return names


async def test_a_server_that_is_too_old_is_refused_before_anything_is_stored(
    own_nats: NatsServer,
) -> None:
    async with aged(own_nats, "2.13.9") as url:
        engine = JetStreamEngine(url)
        for verb in (engine.migrate, partial(engine.migrate, dry_run=True), engine.open):
            with pytest.raises(
                VersionMismatch, match=r"has version 2\.13\..* needs 2\.14 or later"
            ):
                await verb()
        await engine.close()
    assert await _streams(own_nats.url) == []


async def test_a_server_that_was_made_older_is_refused_and_the_oldest_that_works_is_not(
    own_nats: NatsServer,
) -> None:
    async with aged(own_nats, "2.14.0") as url:
        engine = JetStreamEngine(url)
        await engine.migrate()
        await engine.open()
        record = await accept_one(cast("Engine", engine), a_job())
        await engine.close()
    async with aged(own_nats, "2.12.4") as url:
        older = JetStreamEngine(url)
        with pytest.raises(VersionMismatch, match=r"has version 2\.12\. .*upgrade the server"):
            await older.open()
        with pytest.raises(EngineClosed):
            await older.load([record.definition.id])
    again = await _opened(own_nats.url)
    assert await the(again, record.definition.id) == record
    await again.close()


@pytest.fixture
async def full(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[NatsServer, Engine]]:
    """A server with room for less than ten jobs of 100 kB, and an engine on it."""
    folder = tmp_path_factory.mktemp("nats")
    config = f'jetstream {{ store_dir: "{folder}/data", max_file: 1M }}'
    with nats_server(folder, config) as server:
        engine = JetStreamEngine(server.url)
        await engine.migrate()
        await engine.open()
        yield server, cast("Engine", engine)
        await engine.close()


async def test_a_full_server_refuses_new_jobs_and_loses_none(
    full: tuple[NatsServer, Engine],
) -> None:
    server, engine = full
    # The work queue has copies.
    new = [a_job(payload=f'"{"x" * 100_000}"') for _ in range(20)]
    stored = [await accept_one(engine, each) for each in new[:3]]
    answers = await asyncio.gather(
        *(engine.create([each]) for each in new[3:]), return_exceptions=True
    )
    refused = [each for each in answers if isinstance(each, Exception)]
    assert refused
    for each in refused:
        assert isinstance(each, DiskFull)
        assert "nothing was stored" in str(each)
    server.reconfigure("")
    await asyncio.to_thread(server.restart)
    for record in stored:
        assert await the(engine, record.definition.id) == record
    await accept_one(engine, a_job())


@asynccontextmanager
async def no_room(server: NatsServer) -> AsyncIterator[None]:
    """Use up the space of a server with a stream that is no part of Trellis."""
    link = Link([server.url])
    await link.open()
    await link.api("STREAM.CREATE.FILLER", {"name": "FILLER", "subjects": ["filler"]})
    with pytest.raises(DiskFull):  # noqa: PT012 - it is full after some messages
        while True:
            await link.write(Message("filler", b"x" * 100_000))
    yield
    await link.api("STREAM.DELETE.FILLER")
    await link.close()


async def test_a_running_attempt_outlasts_a_full_server_and_is_settled_once(
    full: tuple[NatsServer, Engine],
) -> None:
    server, engine = full
    session = await a_session(engine, "10m")
    record = await start(engine, session, a_job())
    settlement = await decided(engine, record, complete(record, '"done"'))
    fence, row = fence_of(record), record.definition.row
    note = Note(row, record.head.claims, fence, LogLine("info", "line"))
    before = await engine.sessions()
    async with no_room(server):
        for verb in (
            lambda: engine.commit([settlement]),
            lambda: engine.note([note]),
            lambda: engine.renew(session, [fence]),
        ):
            with pytest.raises(DiskFull, match=r"nothing was stored.*Raise max_file"):
                await verb()
        assert await the(engine, record.definition.id) == record
        assert await engine.logs(record.definition.id) == []
        assert await engine.sessions() == before
    renewed = await engine.renew(session, [fence])
    assert isinstance(renewed, Renewed)
    assert (renewed.lost, renewed.unknown) == ((), ())
    await engine.note([note])
    assert await engine.commit([settlement]) == [Committed()]
    (again,) = await engine.commit([settlement])
    assert isinstance(again, Conflict)
    assert [each.kind.value for each in await journal(engine, record)] == [
        "created", "started", "completed",
    ]  # fmt: skip
    assert [each.message for each in await engine.logs(record.definition.id)] == ["line"]
    (outcome,) = await engine.outcomes(record.definition.id)
    assert (outcome.state, outcome.result) == (State.COMPLETED, '"done"')


@pytest.mark.long
async def test_a_batch_that_no_longer_fits_on_one_server_is_no_success(
    full: tuple[NatsServer, Engine],
) -> None:
    server, _ = full
    link = Link([server.url])
    await link.open()
    body = b"x" * 100_000
    await link.write(*(_note(number, body) for number in range(5)))
    # The server stores the beginning of the batch and does not answer; the repetition shows it.
    with pytest.raises(OutcomeUnknown, match=r"only a part.*max_file"):
        await link.write(*(_note(number, body) for number in range(5, 20)))
    await link.close()


@pytest.mark.long
async def test_three_nodes_without_space_store_no_part_of_a_batch(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path)
    for node in cluster.nodes:
        node.reconfigure(f'jetstream {{ store_dir: "{node.folder}/data", max_file: 1M }}')
    body, stored = b"x" * 100_000, 0
    with closing(cluster):
        await asyncio.to_thread(cluster.start)
        link = Link(cluster.urls)
        await link.open()
        await topology.migrate(link, Subjects(), 3, dry_run=False)
        # The nodes notice only afterwards that there is no room, and then lead nothing any more.
        with pytest.raises((OutcomeUnknown, DiskFull, EngineUnavailable)):  # noqa: PT012
            while stored < 100:
                await link.write(*(_note(stored + number, body) for number in range(5)))
                stored += 5
        assert stored
        for node in cluster.nodes:
            node.reconfigure("")
            await asyncio.to_thread(node.stop)
        await asyncio.to_thread(cluster.start)
        # What was under way before is stored before this, or never.
        await link.write(_note(1000, b""))
        messages = await link.following("JOBS", "trellis.jobs.>", 1, 200)
        numbers = [int(each.subject.split(".")[4]) for each in messages]
        assert numbers in ([*range(stored), 1000], [*range(stored + 5), 1000])
        await link.close()


def _note(number: int, body: bytes) -> Message:
    """Return a message that does not go to the work queue."""
    return Message(f"trellis.jobs.shop.invoice.{number}.logged.1", body, {}, Expect(0))


# -- streams that another program deletes ------------------------------------------------------


@pytest.fixture
async def live(nats_url: str, deployed: Subjects) -> AsyncIterator[Engine]:
    """An engine by the server's clock."""
    engine = await _opened(nats_url, deployed.prefix)
    yield engine
    await engine.close()


async def _claims(engine: Engine, wanted: set[JobId]) -> None:
    """Claim until these jobs are claimed; what fails meanwhile is repeated as workers do."""
    session = await a_session(engine)
    found: set[JobId] = set()

    async def has_all() -> bool:
        try:
            found.update(each.definition.id for each in await claim(engine, session, a_demand()))
        except EngineUnavailable:
            return False
        return found >= wanted

    await _until(has_all)
    assert found == wanted


async def test_a_deleted_consumer_is_made_again_by_the_next_claims(
    live: Engine, link: Link, deployed: Subjects
) -> None:
    session = await a_session(live)
    await start(live, session, a_job())
    new = a_job()
    await live.create([new])
    await live.catch_up()
    await link.api(f"CONSUMER.DELETE.{deployed.work}.shop=invoice")
    await _claims(live, {new.id})


@pytest.mark.long
async def test_catching_up_waits_while_the_server_does_not_say_what_it_has_taken(
    live: Engine, link: Link, deployed: Subjects
) -> None:
    info = await link.api(f"STREAM.INFO.{deployed.work}")
    await link.api(f"STREAM.UPDATE.{deployed.work}", info["config"] | {"sources": []})
    assert "sources" not in await link.api(f"STREAM.INFO.{deployed.work}")
    new = a_job()
    await live.create([new])
    asked = await link.client.subscribe(f"$JS.API.STREAM.INFO.{deployed.work}")
    waiting = asyncio.ensure_future(live.catch_up())
    for _ in range(3):
        await asked.next_msg(PATIENCE)
    assert not waiting.done()
    await link.api(f"STREAM.UPDATE.{deployed.work}", info["config"])
    async with asyncio.timeout(PATIENCE):
        await waiting
    await _claims(live, {new.id})


#: What another program may delete without taking a job away.
DELETED = {
    "work": ["STREAM.DELETE.{}_JOBS_WORK"],
    "later": ["STREAM.DELETE.{}_JOBS_LATER"],
    "both": ["STREAM.DELETE.{}_JOBS_WORK", "STREAM.DELETE.{}_JOBS_LATER"],
    "work_feed": ["CONSUMER.DELETE.{}_JOBS.work_feed"],
    "later_feed": ["CONSUMER.DELETE.{}_JOBS_LATER.later_feed"],
    "advisories": ["STREAM.DELETE.{}_JOBS_ADVISORIES"],
    "keys": ["STREAM.DELETE.KV_{}_JOBS_KEYS"],
}


@pytest.mark.parametrize("lost", DELETED)
async def test_waiting_jobs_run_after_a_migration_when_hints_or_views_were_deleted(
    live: Engine, link: Link, deployed: Subjects, lost: str
) -> None:
    session = await a_session(live)
    done = await start(live, session, a_job())
    await settle(live, done, complete(done))
    now, soon, keyed = a_job(), a_job(delay=2 * SECOND), a_keyed_job("k", IN_TURN)
    await live.create([now, soon, keyed])
    await live.catch_up()
    if lost == "later":
        # The first look at a job schedules it.
        await _claims(live, {now.id, keyed.id})
    for verb in DELETED[lost]:
        await link.api(verb.format(deployed.prefix))
    missing = {verb.split("JOBS")[-1].split(".")[-1] for verb in DELETED[lost]}
    said = " ".join((await live.health()).warnings)
    assert all(f"{name} is missing: run `trellis migrate`" in said for name in missing)
    await live.migrate()
    assert not await topology.differences(link, deployed, 1)
    await _claims(live, {soon.id} if lost == "later" else {now.id, soon.id, keyed.id})
    assert len(await journal(live, done)) == 3
    await _until(partial(_is_in_view, link, deployed))


async def _is_in_view(link: Link, subjects: Subjects) -> bool:
    """Return whether the view of keys has the only one."""
    info = await link.api(f"STREAM.INFO.KV_{subjects.prefix}_JOBS_KEYS")
    return bool(info["state"]["messages"] == 1)


async def test_workers_say_that_the_stream_of_the_jobs_was_deleted_and_go_on_without_them(
    nats_url: str, link: Link, deployed: Subjects, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service("shop", f"{nats_url}?prefix={deployed.prefix}")
    begun, ends = asyncio.Event(), asyncio.Event()

    @service.job
    async def quick(number: int) -> int:
        return number

    @service.job
    async def slow(number: int) -> int:
        begun.set()
        await ends.wait()
        return number

    def said(text: str) -> int:
        return sum(text in each.getMessage() for each in caplog.records)

    async def has_said(text: str) -> bool:
        return said(text) > 0

    async with service, service.worker():
        first = await quick.create_many(range(30))  # so that the stream has larger numbers
        assert [await each.wait(PATIENCE) for each in first] == list(range(30))
        running = await slow.create(2)
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        await link.api(f"STREAM.DELETE.{deployed.jobs}")
        with pytest.raises(EngineUnavailable, match=r"was deleted.*Nothing was stored.*migrate"):
            await quick.create(3)
        ends.set()
        await _until(partial(has_said, "Run `trellis migrate`"))
        again = JetStreamEngine(nats_url, prefix=deployed.prefix)
        with pytest.raises(NotATrellisDatabase, match=f"no stream {deployed.jobs}.*Run: trellis"):
            await again.open()
        await again.migrate()
        assert await (await quick.create(4)).wait(PATIENCE) == 4
        await _until(partial(has_said, "engine answers again"))
        with pytest.raises(JobNotFound):
            await running.status()
        await again.close()
    assert not await topology.differences(link, deployed, 1)
    # Once for an outage, however often the worker has tried.
    assert said("engine does not answer") == said("engine answers again") <= 3


async def test_a_write_to_a_deleted_stream_says_so_at_once(live: Engine, link: Link) -> None:
    prefix = cast("JetStreamEngine", live)._subjects.prefix
    await link.api(f"STREAM.DELETE.{prefix}_JOBS_STATE")
    async with asyncio.timeout(10):
        with pytest.raises(EngineError, match=r"Run `trellis migrate`"):
            await a_session(live)
        with pytest.raises(EngineUnavailable, match=r"No stream stores.*Nothing was stored"):
            await link.write(Message(f"{prefix}.state.x", b""))
    await live.migrate()
    await a_session(live)


# -- hints and clocks --------------------------------------------------------------------------


async def test_work_about_a_finished_job_is_acknowledged_and_changes_nothing(
    live: Engine, link: Link, deployed: Subjects
) -> None:
    session = await a_session(live)
    record = await start(live, session, a_job())
    done = await settle(live, record, complete(record))
    job = JobName("shop", "invoice", done.definition.id)
    for number in (1, 2):
        await link.write(Message(deployed.ready(job, number), b"{}"))
    await live.catch_up()
    assert await claim(live, session, a_demand()) == []
    assert await the(live, done.definition.id) == done

    async def is_empty() -> bool:
        info = await link.api(f"STREAM.INFO.{deployed.work}")
        return bool(info["state"]["messages"] == 0)

    await _until(is_empty)


@pytest.mark.parametrize("shift", [-7200.0, 7200.0])
async def test_the_clock_of_a_workers_machine_decides_nothing(
    nats_url: str, deployed: Subjects, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await _opened(nats_url, deployed.prefix)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    engine = await _opened(nats_url, deployed.prefix)
    assert abs(await engine.now() - await other.now()) < SECOND
    session = await a_session(engine)
    record = await start(engine, session, a_job())
    assert (await other.due("sessions", 9)).sessions == ()
    assert (await other.due("lost", 9)).jobs == ()
    assert (await settle(engine, record, complete(record))).head.state is State.COMPLETED
    await engine.close()
    await other.close()
