"""The streams and feeds of a deployment."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.subscription import Subscription

from tests.harness.servers.nats import NatsCluster, NatsServer
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.subjects import Subjects
from trellis.errors import NatsRefused

SEVEN_DAYS = 604_800_000_000_000
ONE_SECOND = 1_000_000_000
#: What every stream has on the server, unless the lines below say something else of it.
EVERY: dict[str, Any] = {
    "retention": "limits", "storage": "file", "num_replicas": 1, "max_msgs": -1, "max_bytes": -1,
    "max_age": 0, "discard": "old", "max_msgs_per_subject": -1, "max_msg_size": -1,
    "max_consumers": -1, "sealed": False, "deny_delete": False, "deny_purge": False,
    "allow_rollup_hdrs": False, "allow_msg_ttl": False, "allow_direct": True,
    "mirror_direct": False, "compression": "none", "consumer_limits": {},
}  # fmt: skip
STARTED_BY = ("created", "retry", "retried", "adjusted", "resolved", "ready.*")
TO_WORK = [
    {"src": f"trellis.jobs.*.*.*.{each}", "dest": "trellis.work.$1.$2"} for each in STARTED_BY
]
STREAMS: dict[str, dict[str, Any]] = {
    "JOBS": {
        "subjects": ["trellis.jobs.>"], "allow_msg_ttl": True, "allow_atomic": True,
        "republish": {"src": "trellis.jobs.>", "dest": "trellis.feed.>"},
    },
    "JOBS_LATER": {
        "subjects": ["trellis.later.>", "trellis.due.>"], "allow_msg_ttl": True,
        "allow_msg_schedules": True, "allow_rollup_hdrs": True,
    },
    "JOBS_STATE": {
        "subjects": ["trellis.state.>"], "max_msgs_per_subject": 1, "allow_atomic": True,
    },
    "JOBS_WORK": {
        "retention": "workqueue",
        "republish": {"src": "trellis.work.>", "dest": "trellis.woken.>", "headers_only": True},
        "sources": [
            {
                "name": "JOBS", "subject_transforms": TO_WORK,
                "consumer": {
                    "name": "work_feed", "deliver_subject": "trellis.internal.work_feed",
                },
            },
            {
                "name": "JOBS_LATER",
                "subject_transforms": [{"src": "trellis.due.*.*.*", "dest": "trellis.work.$1.$2"}],
                "consumer": {
                    "name": "later_feed", "deliver_subject": "trellis.internal.later_feed",
                },
            },
        ],
    },
    "JOBS_ADVISORIES": {
        "subjects": [
            "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.JOBS_WORK.>",
            "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.JOBS_WORK.>",
        ],
        "max_age": SEVEN_DAYS, "allow_direct": False,
    },
    "KV_JOBS_KEYS": {
        "max_msgs_per_subject": 1,
        "sources": [{
            "name": "JOBS",
            "subject_transforms": [{
                "src": "trellis.jobs.trellis.keys.*.*.h.*", "dest": "$KV.JOBS_KEYS.$1.$2.$3",
            }],
        }],
    },
}  # fmt: skip
#: Each feed: its stream, and what it takes from there.
FEEDS = {
    "work_feed": ("JOBS", [f"trellis.jobs.*.*.*.{each}" for each in STARTED_BY]),
    "later_feed": ("JOBS_LATER", ["trellis.due.*.*.*"]),
}
_DUPLICATES = "duplicate_window"


async def test_the_server_has_exactly_the_streams_of_the_design(own_nats: NatsServer) -> None:
    link = Link([own_nats.url])
    await link.open()
    await topology.migrate(link, Subjects(), None, dry_run=False)
    assert set((await link.api("STREAM.NAMES"))["streams"]) == set(STREAMS)
    for name, own in STREAMS.items():
        config = (await link.api(f"STREAM.INFO.{name}"))["config"]
        metadata = config.pop("metadata")
        assert metadata["trellis.schema"] == "1"
        # The server's own default, on streams that clients publish to.
        assert config.pop(_DUPLICATES, None) == (120 * ONE_SECOND if "subjects" in own else None)
        assert config == {"name": name, **EVERY, **own}
    for name, (stream, filters) in FEEDS.items():
        config = (await link.api(f"CONSUMER.INFO.{stream}.{name}"))["config"]
        del config["metadata"]
        assert config == {
            "name": name, "durable_name": name, "filter_subjects": filters,
            "deliver_subject": f"trellis.internal.{name}", "deliver_policy": "all",
            "replay_policy": "instant", "ack_policy": "flow_control", "flow_control": True,
            "idle_heartbeat": ONE_SECOND, "max_deliver": -1, "max_ack_pending": 1000,
            "num_replicas": 0,
        }  # fmt: skip
    await link.close()


def test_three_servers_keep_three_replicas_of_all_but_the_advisories() -> None:
    found = {
        each.stream: each.config["num_replicas"]
        for each in topology.parts(Subjects(), 3)
        if each.consumer is None
    }
    assert found == dict.fromkeys(STREAMS, 3) | {"JOBS_ADVISORIES": 1}


def test_the_names_of_a_further_deployment_begin_with_its_prefix() -> None:
    found = {each.stream for each in topology.parts(Subjects("eu"), 1)}
    assert found == {
        "eu_JOBS", "eu_JOBS_LATER", "eu_JOBS_STATE", "eu_JOBS_WORK", "eu_JOBS_ADVISORIES",
        "KV_eu_JOBS_KEYS",
    }  # fmt: skip


async def test_migrating_puts_everything_in_place_once(link: Link, subjects: Subjects) -> None:
    planned = await topology.migrate(link, subjects, None, dry_run=True)
    assert (planned.before, planned.after) == (0, topology.SCHEMA)
    done = await topology.migrate(link, subjects, None, dry_run=False)
    assert done == planned
    again = await topology.migrate(link, subjects, None, dry_run=False)
    assert again == (topology.SCHEMA, topology.SCHEMA, ())


async def test_a_dry_run_asks_and_changes_nothing(link: Link, subjects: Subjects) -> None:
    asked = await link.client.subscribe("$JS.API.>")
    await topology.migrate(link, subjects, None, dry_run=True)
    assert {each.split(".")[3] for each in await _heard(link, asked)} == {"INFO"}


async def test_migrating_makes_no_stream_beside_those_of_the_deployment(
    link: Link, subjects: Subjects
) -> None:
    asked = await link.client.subscribe("$JS.API.STREAM.CREATE.>")
    await topology.migrate(link, subjects, None, dry_run=False)
    made = {each.removeprefix("$JS.API.STREAM.CREATE.") for each in await _heard(link, asked)}
    assert made == {each.stream for each in topology.parts(subjects, 1)}


@pytest.mark.long
async def test_a_dry_run_on_a_cluster_says_what_a_migration_then_does(
    nats_three: NatsCluster,
) -> None:
    await asyncio.to_thread(nats_three.start)
    link = Link(nats_three.urls)
    await link.open()
    planned = await topology.migrate(link, Subjects(), None, dry_run=True)
    assert json.loads(planned.scripts[0][1])["num_replicas"] == 3
    assert await topology.migrate(link, Subjects(), None, dry_run=False) == planned
    await link.close()


async def _heard(link: Link, asked: Subscription) -> list[str]:
    """Return the subjects of what was heard until now."""
    await link.flush()
    found = [await asked.next_msg() for _ in range(asked.pending_msgs)]
    await asked.unsubscribe()
    return [each.subject for each in found]


async def test_a_migration_that_ended_after_the_first_stream_is_continued(
    link: Link, subjects: Subjects
) -> None:
    first = next(each for each in topology.parts(subjects, 1) if each.stream == subjects.jobs)
    await topology.put(link, topology.Difference(first, None))
    before = (await link.api(f"STREAM.INFO.{subjects.jobs}"))["config"]
    done = await topology.migrate(link, subjects, None, dry_run=False)
    assert len(done.scripts) == 7
    assert (await link.api(f"STREAM.INFO.{subjects.jobs}"))["config"] == before
    assert await topology.differences(link, subjects, 1) == []


async def test_a_changed_stream_is_put_right(link: Link, deployed: Subjects) -> None:
    jobs = next(each for each in topology.parts(deployed, 1) if each.stream == deployed.jobs)
    await link.api(f"STREAM.UPDATE.{deployed.jobs}", {**jobs.config, "allow_direct": False})
    found = await topology.differences(link, deployed, 1)
    assert [each.part.name for each in found] == [deployed.jobs]
    assert json.loads(found[0].script)["allow_direct"] is True
    await topology.migrate(link, deployed, None, dry_run=False)
    assert await topology.differences(link, deployed, 1) == []


@pytest.mark.parametrize("header", [{"Nats-Rollup": "all"}, {"Nats-Schedule": "@every 1s"}])
async def test_no_header_deletes_or_schedules_in_the_stream_of_the_jobs(
    link: Link, deployed: Subjects, header: dict[str, str]
) -> None:
    with pytest.raises(NatsRefused):
        await link.write(Message(f"{deployed.prefix}.jobs.a.b.c.ready.1", b"", header))
