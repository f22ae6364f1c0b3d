"""Users with the permissions that Trellis writes: a service works, and cannot harm another."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import nats as client
import pytest

from tests.harness.servers.nats import NatsServer, nats_server
from trellis.admin.janitor import UNSTARTED, Advisories, Janitor
from trellis.admin.opening import admin_runtime
from trellis.admin.runtime import AdminRuntime
from trellis.cli.app import run
from trellis.core.durations import micros
from trellis.core.job import JobRecord
from trellis.core.policy import Policy
from trellis.core.states import State
from trellis.engines.clock import Clock
from trellis.engines.contracts import DeclaredType
from trellis.engines.demand import Demand
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.permissions import (
    CAPABILITIES,
    admin_permissions,
    capability_permissions,
    service_permissions,
)
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Renewed
from trellis.errors import AccessDenied, ConfigurationError, NatsRefused
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, a_worker, complete, fence_of
from trellis.testing.conformance.helpers import a_session, accept_one, settle, the

SUBJECTS = Subjects()
MAIL = service_permissions(SUBJECTS, "mail", ["send"])
BILLING = service_permissions(SUBJECTS, "billing", ["invoice"])
ADMIN = admin_permissions(SUBJECTS)
READER = capability_permissions(SUBJECTS, ["admin.read"], "reader")
#: What the contract of `Jobs.*` names.
CALLS = (
    "Health", "ListServices", "List", "Get", "GetKey", "Retry", "Cancel", "ListDLQ", "ReplayDLQ",
    "DismissDLQ",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server with a user for each of two services, and one for operators."""
    users = "\n".join(
        f'{{ user: "{name}", password: "{name}", {each.config()} }}'
        for name, each in (
            ("mail", MAIL),
            ("billing", BILLING),
            ("admin", ADMIN),
            ("reader", READER),
        )
    )
    folder = tmp_path_factory.mktemp("nats")
    with nats_server(folder, f"authorization {{ users: [\n{users}\n] }}") as server:
        yield server


@pytest.fixture
async def admin(server: NatsServer) -> AsyncIterator[Link]:
    """The streams, empty, and a connection of an operator."""
    link = Link([server.url_of("admin", "admin")])
    await link.open()
    await topology.migrate(link, SUBJECTS, 1, dry_run=False)
    yield link
    for part in reversed(topology.parts(SUBJECTS, 1)):
        if part.consumer is None:
            await link.api(f"STREAM.DELETE.{part.stream}")
    await link.close()


async def _engine(server: NatsServer, user: str) -> Engine:
    engine = cast("Engine", JetStreamEngine(server.url_of(user, user)))
    await engine.open()
    return engine


@pytest.fixture
async def mail(server: NatsServer, admin: Link) -> AsyncIterator[Engine]:
    engine = await _engine(server, "mail")
    yield engine
    await engine.close()


@pytest.fixture
async def billing(server: NatsServer, admin: Link) -> AsyncIterator[Engine]:
    engine = await _engine(server, "billing")
    yield engine
    await engine.close()


class Attacker:
    """A program with the password of `mail` that does not use Trellis."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - the client's
        self._connection = connection
        self.denied: list[str] = []
        self._heard = asyncio.Event()

    async def remember(self, error: Exception) -> None:
        """Keep what the server denies."""
        self.denied.append(str(error))
        self._heard.set()

    async def publish(self, subject: str, body: bytes = b"{}", **headers: str) -> dict[str, Any]:
        """Publish; return the answer of the stream, or that the server denied it."""
        self._heard.clear()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        asked = asyncio.ensure_future(
            self._connection.request(subject, body, 20, headers=names or None)
        )
        denied = asyncio.ensure_future(self._heard.wait())
        await asyncio.wait({asked, denied}, return_when=asyncio.FIRST_COMPLETED)
        denied.cancel()
        if not asked.done():
            asked.cancel()
            return {"denied": self.denied[-1]}
        try:
            answer: dict[str, Any] = json.loads((await asked).data)
        except client.errors.NoRespondersError:
            return {"allowed": "but nothing listens"}
        return answer


@pytest.fixture
async def attacker(server: NatsServer, admin: Link) -> AsyncIterator[Attacker]:
    attacker = Attacker(None)
    url = server.url_of("mail", "mail")
    connection = await client.connect(url, error_cb=attacker.remember)
    attacker._connection = connection
    yield attacker
    await connection.close()


async def _foreign(billing: Engine) -> str:
    record = await accept_one(billing, a_job(service="billing", type="invoice"))
    return record.definition.id


async def test_a_service_cannot_publish_events_of_another(
    attacker: Attacker, billing: Engine, admin: Link
) -> None:
    job_id = await _foreign(billing)
    before = (await admin.api(f"STREAM.INFO.{SUBJECTS.jobs}"))["state"]["last_seq"]
    for subject in (
        f"trellis.jobs.billing.invoice.{job_id}.completed",
        f"trellis.jobs.billing.invoice.{job_id}.logged.1",
        "trellis.jobs.workers.billing.invoice.x.heartbeat",
        "trellis.jobs.trellis.keys.billing.invoice.h.abc",
        "trellis.jobs.trellis.marks.billing.invoice.i.abc",
        "trellis.jobs.trellis.setting.drain",
        "trellis.jobs.trellis.token.abc",
        "trellis.state.type.billing.invoice",
        "trellis.later.billing.invoice.x",
        "trellis.due.billing.invoice.x",
        "trellis.work.billing.invoice",
        "$KV.JOBS_KEYS.billing.invoice.abc",
        "trellis.rpc.jobs.v1.Cancel",
    ):
        assert "denied" in await attacker.publish(subject), subject
    assert (await admin.api(f"STREAM.INFO.{SUBJECTS.jobs}"))["state"]["last_seq"] == before
    record = (await billing.load([cast("Any", job_id)])).records[0]
    assert record is not None
    assert record.head.state is State.PENDING


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Nats_Rollup", "all"),
        ("Nats_Rollup", "sub"),
        ("Nats_Schedule", "@at 2030-01-01T00:00:00Z"),
        ("Nats_Schedule_Next", "purge"),
    ],
)
async def test_no_header_on_its_own_subject_touches_the_jobs_of_others(
    attacker: Attacker, billing: Engine, name: str, value: str
) -> None:
    job_id = await _foreign(billing)
    headers: dict[str, Any] = {name: value}
    if name == "Nats_Schedule":
        headers["Nats_Schedule_Target"] = f"trellis.jobs.billing.invoice.{job_id}.completed"
    if name == "Nats_Schedule_Next":
        headers["Nats_Scheduler"] = f"trellis.later.billing.invoice.{job_id}"
    for own in ("trellis.jobs.mail.send.x.created", "trellis.state.type.mail.send"):
        answer = await attacker.publish(own, **headers)
        assert "error" in answer, answer
    assert (await the(billing, cast("Any", job_id))).head.state is State.PENDING


async def test_jobs_run_although_the_server_denies_heartbeats(tmp_path: Path) -> None:
    publish = tuple(each for each in MAIL.publish if ".jobs.workers." not in each)
    few = MAIL._replace(publish=publish)
    assert len(few.publish) == len(MAIL.publish) - 1
    users = "\n".join((ADMIN.user("admin", "admin"), few.user("mail", "mail")))
    with nats_server(tmp_path / "nats", f"authorization {{ users: [ {users} ] }}") as server:
        admin = Link([server.url_of("admin", "admin")])
        await admin.open()
        await topology.migrate(admin, SUBJECTS, 1, dry_run=False)
        mail = await _engine(server, "mail")
        info = a_worker()._replace(details=json.dumps({"slots": 3, "types": ["mail/send"]}))
        session = (await mail.open_session(info, micros("30s"))).id
        record = await accept_one(mail, a_job(service="mail", type="send"))
        demand = Demand("mail", ("send",), 1)
        async with asyncio.timeout(20):
            while not (taken := (await mail.claim(session, [demand], 1)).jobs):
                pass
        assert isinstance(await mail.renew(session, [fence_of(taken[0])]), Renewed)
        done = await settle(mail, taken[0], complete(taken[0]))
        # It is stored after what was sent before it, and no presence is there.
        assert await _presences(admin) == []
        assert (done.definition.id, done.head.state) == (record.definition.id, State.COMPLETED)
        await mail.close()
        # With the whole permissions the same renewal is told.
        boss = await _engine(server, "admin")
        other = (await boss.open_session(info, micros("30s"))).id
        assert isinstance(await boss.renew(other, []), Renewed)
        await accept_one(boss, a_job(service="mail", type="send"))
        await boss.close()
        assert await _presences(admin) == [SUBJECTS.presence("mail", "send", f"{other:016x}")]
        await admin.close()


async def _presences(admin: Link) -> list[str]:
    found = await admin.following(SUBJECTS.jobs, SUBJECTS.presence("*", "*", "*"), 1)
    return [got.subject for got in found]


# -- what it can do to others' hints -----------------------------------------------------------


@asynccontextmanager
async def _opened(server: NatsServer, user: str, clock: Clock) -> AsyncIterator[Engine]:
    engine = cast("Engine", JetStreamEngine(server.url_of(user, user), clock=clock))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats_Rollup": "all"},
        {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "trellis.later.billing.invoice.{id}"},
    ],
)
async def test_a_deleted_schedule_costs_another_service_time_and_no_job(
    server: NatsServer, admin: Link, attacker: Attacker, tmp_path: Path, headers: dict[str, str]
) -> None:
    # The server fires no schedule of a clock that stands at its own time.
    clock = ManualClock(time.time_ns() // 1000)
    tables = cast("Engine", SqliteEngine(tmp_path / "projection.db", clock=clock))
    await tables.open()
    runtime = AdminRuntime(Link([server.url_of("admin", "admin")]), SUBJECTS, tables)
    async with (
        _opened(server, "billing", clock) as billing,
        _opened(server, "admin", clock) as operator,
        runtime,
    ):
        janitor, session = Janitor(operator, runtime.store), await a_session(billing, "2h")
        new = a_job(service="billing", type="invoice", delay=micros("1h"))
        record = await accept_one(billing, new)

        async def claim() -> list[JobRecord]:
            return list(
                (await billing.claim(session, [Demand("billing", ("invoice",), 9)], 9)).jobs
            )

        async with asyncio.timeout(20):
            while not (found := await _schedules(admin)):
                assert await claim() == []
        assert found == [f"trellis.later.billing.invoice.{new.id}"]
        own = "trellis.later.mail.send.a"
        named: Any = {name: value.format(id=new.id) for name, value in headers.items()}
        assert "error" not in await attacker.publish(own, **named)
        assert await _schedules(admin) == [own]
        clock.advance("1h")
        assert await janitor.rehint() == 0
        assert await claim() == []
        clock.advance_micros(UNSTARTED)
        assert await janitor.rehint() == 1
        async with asyncio.timeout(20):
            while not (taken := await claim()):
                pass
        assert [each.definition for each in taken] == [record.definition]
        assert (await settle(billing, taken[0], complete(taken[0]))).head.state is State.COMPLETED
    await tables.close()


async def _schedules(admin: Link) -> list[str]:
    return [got.subject for got in await admin.last_many(SUBJECTS.later, ["trellis.later.>"])]


@pytest.mark.parametrize("is_forged", [False, True])
async def test_only_a_hint_with_the_run_time_of_anothers_job_starts_it_early(
    server: NatsServer, admin: Link, attacker: Attacker, *, is_forged: bool
) -> None:
    clock = ManualClock(time.time_ns() // 1000)
    async with (
        _opened(server, "billing", clock) as billing,
        _opened(server, "admin", clock) as operator,
    ):
        session = await a_session(billing, "2h")
        new = a_job(service="billing", type="invoice", delay=micros("1h"))
        record = await accept_one(billing, new)
        demand, own = Demand("billing", ("invoice",), 9), "trellis.later.mail.send.a"
        named: dict[str, Any] = {
            "Nats_Schedule": "@at 2020-01-01T00:00:00Z",
            "Nats_Schedule_Target": f"trellis.due.billing.invoice.{new.id}",
        }
        body = json.dumps({"runAt": record.head.run_at if is_forged else 0}).encode()
        assert "error" not in await attacker.publish(own, body, **named)
        async with asyncio.timeout(20):
            while await admin.last(SUBJECTS.later, own) is not None:
                pass
        await operator.catch_up()
        started: list[JobRecord] = []
        async with asyncio.timeout(20):
            while (await _hints_at(admin)) > len(started):
                started += (await billing.claim(session, [demand], 9)).jobs
        assert [each.definition.id for each in started] == [new.id] * is_forged
        for each in started:  # as any other job: once, and by its own service
            done = await settle(billing, each, complete(each))
            assert done.head.state is State.COMPLETED
        if not is_forged:
            assert await the(billing, new.id) == record


async def _hints_at(admin: Link) -> int:
    state = (await admin.api(f"STREAM.INFO.{SUBJECTS.work}"))["state"]
    return int(state["messages"])


@pytest.mark.parametrize("value", ["all", "sub"])
@pytest.mark.parametrize(
    "subject",
    ["type.mail.send", "session.abc", "held.abc.0", "lock.abc"],
)
async def test_a_roll_up_of_last_values_is_refused(
    attacker: Attacker, billing: Engine, admin: Link, subject: str, value: str
) -> None:
    session = await a_session(billing)
    before = (await admin.api(f"STREAM.INFO.{SUBJECTS.state}"))["state"]
    answer = await attacker.publish(f"trellis.state.{subject}", Nats_Rollup=value)
    assert "rollup" in answer["error"]["description"]
    assert (await admin.api(f"STREAM.INFO.{SUBJECTS.state}"))["state"] == before
    assert [each.id for each in await billing.sessions()] == [session]


@pytest.mark.parametrize(
    "target",
    [
        "trellis.jobs.billing.invoice.{id}.completed",
        "trellis.jobs.mail.send.x.completed",
        "trellis.state.type.billing.invoice",
        "trellis.work.billing.invoice",
        "$JS.API.STREAM.PURGE.JOBS",
    ],
)
async def test_the_server_publishes_nothing_outside_of_hints_for_a_service(
    attacker: Attacker, billing: Engine, admin: Link, target: str
) -> None:
    job_id = await _foreign(billing)
    named: dict[str, Any] = {
        "Nats_Schedule": "@at 2020-01-01T00:00:00Z",
        "Nats_Schedule_Target": target.format(id=job_id),
    }
    answer = await attacker.publish("trellis.later.mail.send.a", **named)
    assert "schedule" in answer["error"]["description"]
    assert await _schedules(admin) == []
    assert (await the(billing, cast("Any", job_id))).head.state is State.PENDING


async def _exhaust(link: Link, name: str, advisories: Advisories) -> None:
    """Let the server give up the next work message of a type, and read what it says about it."""
    config = {
        "durable_name": name, "name": name, "ack_policy": "explicit", "max_deliver": 1,
        "ack_wait": 1_000_000, "filter_subject": f"trellis.work.{name.replace('=', '.')}",
    }  # fmt: skip
    await link.api(
        f"CONSUMER.CREATE.JOBS_WORK.{name}.{config['filter_subject']}",
        {"stream_name": "JOBS_WORK", "config": config, "action": ""},
    )
    async with asyncio.timeout(20):
        while not await link.pull("JOBS_WORK", name, 1):
            pass
        while not await advisories.step(0.2):
            await link.pull("JOBS_WORK", name, 1, 0.1)


@pytest.mark.parametrize("way", ["its own hint", "a schedule"])
async def test_a_service_cannot_end_a_waiting_job_of_another_by_its_hints(
    server: NatsServer, admin: Link, attacker: Attacker, way: str
) -> None:
    operator = await _engine(server, "admin")
    record = await accept_one(operator, a_job(service="billing", type="invoice"))
    await operator.catch_up()
    advisories = Advisories(Store(admin, SUBJECTS, Time(None)), operator)
    await advisories.begin()
    if way == "its own hint":
        mail = Link([server.url_of("mail", "mail")])
        await mail.open()
        subject = f"trellis.jobs.mail.send.{record.definition.id}.ready.1"
        assert "error" not in await attacker.publish(subject, Trellis_Given_Up="9")
        await _exhaust(mail, "mail=send", advisories)
        await mail.close()
    else:
        await admin.api(f"STREAM.PURGE.{SUBJECTS.work}")
        headers: dict[str, Any] = {
            "Nats_Schedule": "@at 2020-01-01T00:00:00Z",
            "Nats_Schedule_Target": f"trellis.due.billing.invoice.{record.definition.id}",
            "Trellis_Given_Up": "9",
        }
        assert "error" not in await attacker.publish("trellis.later.mail.send.a", **headers)
        # The service of the job does not come to start it.
        await _exhaust(admin, "billing=invoice", advisories)
    assert await the(operator, record.definition.id) == record
    await operator.close()


async def test_a_service_cannot_change_streams_or_the_consumers_of_others(
    attacker: Attacker, billing: Engine
) -> None:
    job_id = await _foreign(billing)
    for verb, body in (
        ("STREAM.PURGE.JOBS", {}),
        ("STREAM.DELETE.JOBS", {}),
        ("STREAM.MSG.DELETE.JOBS", {"seq": 1}),
        ("STREAM.UPDATE.JOBS", {"name": "JOBS", "max_msgs": 1}),
        ("STREAM.CREATE.MINE", {"name": "MINE", "sources": [{"name": "JOBS"}]}),
        ("CONSUMER.DELETE.JOBS.work_feed", {}),
        ("CONSUMER.CREATE.JOBS_WORK.billing=invoice.trellis.work.billing.invoice", {}),
        ("CONSUMER.MSG.NEXT.JOBS_WORK.billing=invoice", {}),
        ("CONSUMER.PAUSE.JOBS_WORK.billing=invoice", {}),
    ):
        answer = await attacker.publish(f"$JS.API.{verb}", json.dumps(body).encode())
        assert "denied" in answer, verb
    assert (await the(billing, cast("Any", job_id))).head.state is State.PENDING


def test_a_service_without_types_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--type"):
        service_permissions(SUBJECTS, "mail", [])
    with pytest.raises(ConfigurationError):
        service_permissions(SUBJECTS, "mail.>", ["send"])


def test_the_command_writes_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(("nats", "permissions", "--service", "mail", "--type", "send")) == 0
    assert capfd.readouterr().out == MAIL.config() + "\n"
    assert run(("nats", "permissions", "--admin")) == 0
    assert capfd.readouterr().out == ADMIN.config() + "\n"
    assert run(("nats", "permissions", "--admin", "--prefix", "eu")) == 0
    assert '"eu.>"' in capfd.readouterr().out
    for wrong in (
        ("--admin", "--user", 'a" b'),
        (),
        ("--admin", "--service", "x"),
        ("--service", "x"),
        ("--admin", "--prefix", "*"),
    ):
        assert run(("nats", "permissions", *wrong)) == 2


async def test_a_worker_of_a_type_that_was_not_granted_learns_it_at_its_start(
    mail: Engine,
) -> None:
    with pytest.raises(AccessDenied, match="mail=sort"):
        await mail.declare_types(
            [DeclaredType("mail", name, name, Policy()) for name in ("send", "sort")]
        )


@pytest.mark.parametrize(
    ("options", "user"),
    [
        (("--user", "post"), "post"),
        (("--account", "JOBS"), "mail"),
        (("--account", "JOBS", "--user", "post"), "post"),
    ],
)
async def test_a_server_takes_the_whole_block_as_it_is(
    options: tuple[str, ...],
    user: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ("nats", "permissions", "--service", "mail", "--type", "send", *options)
    assert await asyncio.to_thread(run, given) == 0
    monkeypatch.setenv(f"{user.upper()}_PASSWORD", "secret")
    with nats_server(tmp_path / "nats", capfd.readouterr().out) as server:
        link = Link([server.url_of(user, "secret")])
        await link.open()
        with pytest.raises(NatsRefused, match="stream not found"):
            await link.api("STREAM.INFO.JOBS")
        with pytest.raises(AccessDenied):
            await link.api("STREAM.PURGE.JOBS")
        await link.close()


async def test_a_program_that_may_read_calls_jobs_and_changes_none(
    server: NatsServer, admin: Link, tmp_path: Path
) -> None:
    reader = Link([server.url_of("reader", "reader")], inbox_prefix=b"_INBOX.reader")
    await reader.open()
    async with admin_runtime(
        server.url_of("admin", "admin"), str(tmp_path / "jobs.sqlite"), changes=True
    ):
        answer = await reader.ask(SUBJECTS.rpc("List"), b'{"limit": 5}', 20)
        assert json.loads(answer.data)["entries"] == []
        with pytest.raises(AccessDenied, match=r"rpc\.jobs\.v1\.Cancel"):
            await reader.ask(SUBJECTS.rpc("Cancel"), b'{"id": "x"}', 20)
        with pytest.raises(AccessDenied, match=r"STREAM\.INFO\.JOBS"):
            await reader.api("STREAM.INFO.JOBS")
    await reader.close()


@pytest.mark.parametrize("subject", ["_INBOX.>", "_INBOX.*", "_INBOX.admin.>", "trellis.>", ">"])
async def test_a_program_that_calls_jobs_hears_no_answer_to_others(
    server: NatsServer, admin: Link, subject: str
) -> None:
    denied, heard = asyncio.Event(), list[Any]()

    async def remember(error: Exception) -> None:
        if f'violation for subscription to "{subject.lower()}"' in str(error):
            denied.set()

    async def hear(message: Any) -> None:  # noqa: ANN401 - the client's
        heard.append(message)

    url = server.url_of("reader", "reader")
    reader = await client.connect(url, error_cb=remember, inbox_prefix=b"_INBOX.reader")
    await reader.subscribe(subject, cb=hear)
    async with asyncio.timeout(20):
        await denied.wait()
    await admin.api("STREAM.INFO.JOBS")  # answered in an inbox
    await reader.flush()
    assert heard == []
    await reader.close()


@pytest.mark.parametrize("options", [(), ("--user", "screen")])
async def test_the_command_says_which_inbox_a_program_that_calls_jobs_has(
    options: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    given = ("nats", "permissions", "--capability", "admin.read", *options)
    assert await asyncio.to_thread(run, given) == 0
    said, *rest = capfd.readouterr().out.splitlines()
    name = "screen" if options else "caller"
    assert said.startswith("#")
    assert f"nats --inbox-prefix=_INBOX.{name}," in said
    assert [each.strip() for each in rest if "_INBOX" in each] == [f'"_INBOX.{name}.>"']


def test_capabilities_are_written_for_each_call_of_jobs() -> None:
    calls = [call for calls in CAPABILITIES.values() for call in calls]
    assert sorted(calls) == sorted(CALLS)
    heard = capability_permissions(SUBJECTS, ["admin.stream"], "screen")
    assert heard == (("trellis.none",), ("_INBOX.screen.>", "trellis.feed.>"))
