"""Logins and permissions: what the server denies is known at once, by the name of the subject."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.harness.servers.nats import NatsServer, nats_server
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.subjects import Subjects
from trellis.errors import AccessDenied

SUBJECTS = Subjects()
#: Less than the time after which an unanswered request is repeated or given up.
SOON = 4.0
USERS = """
authorization { users: [
  { user: admin, password: "p@ss word" }
  { user: some, password: s, permissions: {
      publish: { allow: ["trellis.jobs.mail.>", "$JS.API.STREAM.INFO.>"] }
      subscribe: { allow: ["_INBOX.>"] } } }
  { user: deaf, password: d, permissions: { subscribe: { deny: ["_INBOX.>"] } } }
] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats"), USERS) as server:
        yield server


@pytest.fixture
async def admin(server: NatsServer) -> AsyncIterator[Link]:
    link = Link([server.url_of("admin", "p%40ss%20word")])
    await link.open()
    await topology.migrate(link, SUBJECTS, 1, dry_run=False)
    yield link
    await link.close()


@pytest.fixture
async def some(server: NatsServer, admin: Link) -> AsyncIterator[Link]:
    """A user who may write the jobs of one service, and read next to nothing."""
    link = Link([server.url_of("some", "s")])
    await link.open()
    yield link
    await link.close()


@pytest.mark.parametrize("login", ["admin:wrong@", "nobody:x@", "token@", ""])
async def test_a_wrong_login_is_denied_at_once(server: NatsServer, login: str) -> None:
    link = Link([server.url.replace("://", f"://{login}")])
    async with asyncio.timeout(SOON):
        with pytest.raises(AccessDenied, match="wrong, or missing") as caught:
            await link.open()
    assert "wrong@" not in str(caught.value)


async def test_a_login_holds_for_every_server_that_the_client_learns_of(admin: Link) -> None:
    options = admin.client.options
    assert (options["user"], options["password"]) == ("admin", "p@ss word")


async def test_a_denied_write_names_its_subject_at_once(some: Link, admin: Link) -> None:
    before = (await admin.api("STREAM.INFO.JOBS"))["state"]["last_seq"]
    async with asyncio.timeout(SOON):
        with pytest.raises(AccessDenied, match=r"trellis\.jobs\.Billing\.t\.x\.created") as caught:
            await some.write(Message("trellis.jobs.Billing.t.x.created", b"{}"))
    assert "Nothing was stored" in str(caught.value)
    assert "trellis nats permissions" in str(caught.value)
    assert (await admin.api("STREAM.INFO.JOBS"))["state"]["last_seq"] == before


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_batch_with_one_denied_message_stores_nothing(
    some: Link, admin: Link, place: int
) -> None:
    before = (await admin.api("STREAM.INFO.JOBS"))["state"]["last_seq"]
    batch = [Message(f"trellis.jobs.mail.t.x.e{number}", b"{}") for number in range(3)]
    batch[place] = Message("trellis.jobs.billing.t.x.created", b"{}")
    async with asyncio.timeout(SOON):
        with pytest.raises(AccessDenied, match=r"billing\.t\.x\.created"):
            await some.write(*batch)
    assert (await admin.api("STREAM.INFO.JOBS"))["state"]["last_seq"] == before


async def test_denied_reads_name_their_subjects_at_once(some: Link) -> None:
    async with asyncio.timeout(SOON):
        with pytest.raises(AccessDenied, match=r"\$JS\.API\.STREAM\.MSG\.GET\.JOBS"):
            await some.last("JOBS", "x")
        with pytest.raises(AccessDenied, match=r"\$JS\.API\.DIRECT\.GET\.JOBS"):
            await some._direct("JOBS", {"seq": 1})
        with pytest.raises(AccessDenied, match=r"CONSUMER\.MSG\.NEXT\.JOBS_WORK\.a=b"):
            await some.pull("JOBS_WORK", "a=b", 1)
        with pytest.raises(AccessDenied, match=r"trellis\.rpc\.jobs\.internal\.find"):
            await some.ask("trellis.rpc.jobs.internal.find", b"", SOON)


async def test_requests_beside_a_denied_one_are_answered(some: Link) -> None:
    async with asyncio.timeout(SOON):
        answers = await asyncio.gather(
            some.api("STREAM.INFO.JOBS"),
            some.api("STREAM.NAMES"),
            some.write(Message("trellis.jobs.mail.t.y.e", b"{}")),
            return_exceptions=True,
        )
    assert [type(each).__name__ for each in answers] == ["dict", "AccessDenied", "Written"]


async def test_a_user_who_may_receive_no_answer_is_denied_at_once(
    server: NatsServer, admin: Link
) -> None:
    link = Link([server.url_of("deaf", "d")])
    await link.open()
    async with asyncio.timeout(SOON):
        with pytest.raises(AccessDenied, match=r"_INBOX\.>"):
            await link.api("STREAM.INFO.JOBS")
        with pytest.raises(AccessDenied, match=r"_INBOX\.>"):
            await link.pull("JOBS_WORK", "a=b", 1)
    await link.close()


async def test_a_denied_hint_is_logged_once(some: Link, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trellis.engines.jetstream.access"):
        for _ in range(3):
            await some.tell("trellis.woken.limit")
        await some.flush()
    (record,) = caplog.records
    assert "trellis.woken.limit" in record.getMessage()
