"""The streams and feeds of a deployment."""

from __future__ import annotations

import json

import pytest

from trellis.engines.jetstream import topology
from trellis.engines.jetstream.link import Link, Message
from trellis.engines.jetstream.subjects import Subjects
from trellis.errors import NatsRefused


async def test_migrating_puts_everything_in_place_once(link: Link, subjects: Subjects) -> None:
    planned = await topology.migrate(link, subjects, None, dry_run=True)
    assert (planned.before, planned.after) == (0, topology.SCHEMA)
    done = await topology.migrate(link, subjects, None, dry_run=False)
    assert done == planned
    again = await topology.migrate(link, subjects, None, dry_run=False)
    assert again == (topology.SCHEMA, topology.SCHEMA, ())


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
