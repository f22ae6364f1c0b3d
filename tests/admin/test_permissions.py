"""Users with the permissions that Trellis writes: a service works, and cannot harm another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import nats as client
import pytest

from tests.harness.servers.nats import NatsServer, nats_server
from trellis.admin.permissions import admin_permissions, service_permissions
from trellis.cli.app import run
from trellis.core.commands import Complete
from trellis.core.policy import KeyPolicy
from trellis.core.states import State
from trellis.engines.demand import Demand
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.engine import JetStreamEngine
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError
from trellis.testing.builders import a_job, a_keyed_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept_one, claim, settle, the

SUBJECTS = Subjects()
MAIL = service_permissions(SUBJECTS, "mail", ["send"])
BILLING = service_permissions(SUBJECTS, "billing", ["invoice"])
ADMIN = admin_permissions(SUBJECTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server with a user for each of two services, and one for operators."""
    users = "\n".join(
        f'{{ user: "{name}", password: "{name}", {each.config()} }}'
        for name, each in (("mail", MAIL), ("billing", BILLING), ("admin", ADMIN))
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


async def test_a_service_creates_claims_and_settles_its_jobs(mail: Engine) -> None:
    key = KeyPolicy("user/{id}", 1, None, "wait")
    new = a_keyed_job("user/7", key, service="mail", type="send", dedupe="d", idempotency_key="i")
    await accept_one(mail, new)
    later = await accept_one(mail, a_job(service="mail", type="send", delay=3_600_000_000))
    session = await a_session(mail)
    (taken,) = await claim(mail, session, Demand("mail", ("send",), 9))
    assert taken.definition.id == new.id
    await mail.renew(session, [fence_of(taken)])
    done = await settle(mail, taken, Complete(fence_of(taken), "1"))
    assert done.head.state is State.COMPLETED
    assert (await the(mail, later.definition.id)).head.state is State.PENDING
    assert await mail.take_lock("report", session) is None
    await mail.close_session(session)


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
    ],
)
async def test_no_header_on_its_own_subject_touches_the_jobs_of_others(
    attacker: Attacker, billing: Engine, name: str, value: str
) -> None:
    job_id = await _foreign(billing)
    headers: dict[str, Any] = {name: value}
    if name == "Nats_Schedule":
        headers["Nats_Schedule_Target"] = f"trellis.jobs.billing.invoice.{job_id}.completed"
    answer = await attacker.publish("trellis.jobs.mail.send.x.created", **headers)
    assert "error" in answer, answer
    assert (await the(billing, cast("Any", job_id))).head.state is State.PENDING


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
        (),
        ("--admin", "--service", "x"),
        ("--service", "x"),
        ("--admin", "--prefix", "*"),
    ):
        assert run(("nats", "permissions", *wrong)) == 2
