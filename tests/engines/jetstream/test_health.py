"""What `health` says of servers, streams, clocks, space and permissions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import pytest

from tests.engines.jetstream.manual import ManualEngine
from tests.harness.servers.nats import NatsCluster, NatsServer
from trellis.engines.jetstream import health, topology
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.permissions import service_permissions
from trellis.engines.jetstream.seal import DeploymentSeal
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.values import Health
from trellis.errors import VersionMismatch

#: Seconds in which the servers of a cluster know of each other and agree.
PATIENCE: Final = 60.0


async def test_a_sound_deployment_has_facts_and_no_warnings(engine: ManualEngine) -> None:
    found = await engine.health()
    assert (found.engine, found.warnings) == ("jetstream", ())
    assert "kept by one server" in found.durability
    assert "cannot read" in found.durability
    facts = dict(found.facts)
    assert facts.pop("server").startswith("n1 2.")
    assert abs(facts.pop("clock_ahead_seconds")) < 1
    assert "JOBS on n1" in facts.pop("leaders")
    assert "jsz?config=1" in facts.pop("sync_interval")
    assert "no limit of the account" in facts.pop("storage")
    assert "trellis jobs serve" in facts.pop("projection")
    assert facts == {
        "cluster": "none", "replicas": 1, "max_payload": 2 * 1024 * 1024, "messages": 0,
        "size_bytes": 0, "clock_spread_seconds": 0.0, "work_waiting": 0, "work_feed_pending": 0,
        "later_feed_pending": 0, "services": "none yet",
    }  # fmt: skip


async def test_asking_for_health_stores_nothing(
    engine: ManualEngine, link: Link, deployed: Subjects
) -> None:
    subject = deployed.value("type", "mail", "send")
    await link.write(Message(subject, b"{}"))
    before = await _messages(link, deployed)
    assert (await engine.health()).facts["services"] == "mail"
    assert await _messages(link, deployed) == before


async def _messages(link: Link, subjects: Subjects) -> dict[str, int]:
    return {
        part.stream: (await link.api(f"STREAM.INFO.{part.stream}"))["state"]["last_seq"]
        for part in topology.parts(subjects, 1)
        if part.consumer is None
    }


async def test_streams_that_are_missing_or_were_changed_are_named(
    engine: ManualEngine, link: Link, deployed: Subjects
) -> None:
    await link.api(f"STREAM.DELETE.{deployed.work}")
    await link.api(f"CONSUMER.DELETE.{deployed.later}.later_feed")
    config = (await link.api(f"STREAM.INFO.{deployed.state}"))["config"]
    await link.api(f"STREAM.UPDATE.{deployed.state}", config | {"max_msgs_per_subject": 3})
    try:
        warnings = (await engine.health()).warnings
        assert len(warnings) == 3
        changed, feed, work = warnings
        assert f"{deployed.work} is missing: run `trellis migrate`" in work
        assert "later_feed is missing" in feed
        assert f"{deployed.state} was changed" in changed
        assert "(max_msgs_per_subject)" in changed
    finally:
        await engine.migrate()
    assert (await engine.health()).warnings == ()


@pytest.mark.parametrize(
    ("old", "version"), [((2, 13), (2, 14)), ((1, 99), (2, 15)), ((0, 0), (3, 0))]
)
def test_the_version_of_the_server_is_checked(
    old: tuple[int, int], version: tuple[int, int]
) -> None:
    topology.check_version(version)
    with pytest.raises(VersionMismatch, match=r"needs 2\.14 or later.*upgrade the server"):
        topology.check_version(old)


def _look(ahead: float = 0.0, pending: int = 0, **cluster: Any) -> health.Look:  # noqa: ANN401
    """What a server of a cluster says, as a real one does."""
    name = "work_feed" if pending else None
    info = {"config": {}, "cluster": {"leader": "n1"} | cluster, "num_pending": pending}
    return health.Look(topology.Part("JOBS", name, {}), info, None, ahead)


def _peer(**state: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"replicas": [{"name": "n2", "current": True, "active": 200_000_000} | state]}


@pytest.mark.parametrize(
    ("looks", "stuck", "says"),
    [
        ([_look(**_peer())], set(), []),
        ([_look(**_peer(offline=True))], set(), ["Server n2 keeps JOBS and is offline"]),
        ([_look(**_peer(active=9_000_000_000))], set(), ["heard of 9 s ago"]),
        ([_look(**_peer(lag=5000))], set(), ["behind with JOBS by 5,000 operations"]),
        ([_look(**_peer(current=False))], set(), ["behind with JOBS by 0 operations"]),
        ([_look(leader="")], set(), ["JOBS has no leader"]),
        (
            [_look(desired={"status": {"description": "adding peer n2"}})], set(),
            ["still giving JOBS its replicas (adding peer n2). Stop no server"],
        ),
        ([_look(-7.5)], set(), ["clock of server n1 is -7.5 s from this machine's"]),
        ([_look(), _look(2.5, leader="n3")], set(), ["clocks of n1, n3 differ by 2.5 s"]),
        ([_look(pending=20_000)], set(), ["work_feed is 20,000 messages behind"]),
        ([_look(pending=2)], {"JOBS > work_feed"}, ["has 2 messages and sends none"]),
    ],
)  # fmt: skip
def test_findings(looks: list[health.Look], stuck: set[str], says: list[str]) -> None:
    found = list(health.findings(looks, None, stuck))
    assert len(found) == len(says)
    assert all(text in each for text, each in zip(says, found, strict=True))


# -- a server of its own -----------------------------------------------------------------------


async def _health(url: str) -> Health:
    link = Link([url])
    await link.open()
    await topology.migrate(link, Subjects(), None, dry_run=False)
    try:
        return await health.describe(link, Subjects())
    finally:
        await link.close()


ACCOUNT = """
accounts { SMALL {
  jetstream { max_mem: 10M, max_file: 20M, max_streams: 7, max_consumers: 100 }
  users: [ { user: small, password: small } ]
} }
"""


async def test_limits_of_the_account_that_are_nearly_reached_are_named(
    own_nats: NatsServer,
) -> None:
    own_nats.reconfigure(ACCOUNT)
    await asyncio.to_thread(own_nats.restart)
    found = await _health(own_nats.url_of("small", "small"))
    assert "of 20,000,000" in found.facts["storage"]
    (warning,) = found.warnings
    assert "uses 6 of 7 streams" in warning
    assert "max_streams" in warning


async def test_a_small_limit_of_messages_is_named(own_nats: NatsServer) -> None:
    own_nats.reconfigure("max_payload: 1MB")
    await asyncio.to_thread(own_nats.restart)
    (warning,) = (await _health(own_nats.url)).warnings
    assert "max_payload: 2MB" in warning


def _users() -> str:
    """A user with all permissions of `mail` but those about schedules and one type."""
    given = service_permissions(Subjects(), "mail", ["send"])
    publish = tuple(each for each in given.publish if ".later." not in each)
    few = given._replace(publish=publish, subscribe=("_INBOX.>",))
    return (
        'authorization { users: [ { user: "admin", password: "admin" }\n'
        f'{{ user: "mail", password: "mail", {few.config()} }} ] }}'
    )


async def test_missing_permissions_are_named_with_their_remedy(own_nats: NatsServer) -> None:
    own_nats.reconfigure(_users())
    await asyncio.to_thread(own_nats.restart)
    admin = Link([own_nats.url_of("admin", "admin")])
    await admin.open()
    await topology.migrate(admin, Subjects(), None, dry_run=False)
    for service, name in (("mail", "send"), ("mail", "sort"), ("billing", "invoice")):
        await admin.write(Message(Subjects().value("type", service, name), b"{}"))
    mail = Link([own_nats.url_of("mail", "mail")])
    await mail.open()
    async with asyncio.timeout(4):
        found = await health.describe(mail, Subjects())
    shared, own = found.warnings
    assert "trellis.feed.trellis-probe, trellis.woken.trellis-probe" in shared
    assert "trellis.later.mail.>" in own
    assert "$JS.API.CONSUMER.MSG.NEXT.JOBS_WORK.mail=sort" in own
    assert "trellis nats permissions --service mail --type send --type sort" in own
    assert found.facts["services"] == "none yet"
    assert found.facts["storage"] == "not visible to this user"
    assert (await health.describe(admin, Subjects())).facts["services"] == "mail, billing"
    await mail.close()
    await admin.close()


# -- three servers -----------------------------------------------------------------------------


@pytest.fixture
async def three(nats_three: NatsCluster) -> AsyncIterator[Link]:
    nats_three.start()
    link = Link(nats_three.urls)
    await link.open()
    await topology.migrate(link, Subjects(), None, dry_run=False)
    yield link
    await link.close()


async def _until(link: Link, holds: Any) -> Health:  # noqa: ANN401 - a test of a Health
    found: Health | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while found is None or not holds(found):
                found = await health.describe(link, Subjects())
    assert found is not None
    assert holds(found), found
    return found


@pytest.mark.long
async def test_a_server_that_is_down_is_named_with_what_it_keeps(
    three: Link, nats_three: NatsCluster
) -> None:
    sound = await _until(three, lambda found: not found.warnings)
    assert "majority of 3 servers" in sound.durability
    assert sound.facts["cluster"] == "tests"
    name = (await three.api("STREAM.INFO.JOBS"))["cluster"]["replicas"][0]["name"]
    await asyncio.to_thread(nats_three.node(name).kill)
    wanted = f"Server {name} keeps JOBS and is offline"
    await _until(three, lambda found: any(wanted in each for each in found.warnings))
    await asyncio.to_thread(nats_three.start)
    await _until(three, lambda found: not found.warnings)


async def test_a_deployment_whose_jobs_were_moved_is_named_and_nothing_else_is_wrong(
    engine: ManualEngine,
) -> None:
    seal = DeploymentSeal(engine._store)
    await seal.put("other", "postgresql://host/jobs")
    (begun,) = (await engine.health()).warnings
    assert "A move of the jobs of this store to postgresql://host/jobs was begun" in begun
    assert "Run the same `trellis move` again" in begun
    await seal.finish()
    (moved,) = (await engine.health()).warnings
    assert "were moved to postgresql://host/jobs" in moved
    assert "Use that URL instead" in moved
