"""What programs of other languages read in a projection: the views, with their columns."""

from __future__ import annotations

import json

from tests.admin.conftest import Read
from trellis.admin.runtime import AdminRuntime
from trellis.admin.wire_job import iso
from trellis.core.commands import Complete, Fail
from trellis.core.durations import SECOND
from trellis.core.job import Failure
from trellis.core.policy import KeyPolicy
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, a_keyed_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept_one, settle, start

_NOTHING = dict.fromkeys(
    ("result", "started_at", "completed_at", "last_error", "deadline", "key", "key_hash")
)


async def test_jobs_have_their_state_payload_result_error_and_times(
    engine: Engine, runtime: AdminRuntime, read: Read, clock: ManualClock
) -> None:
    session, created_at = await a_session(engine), clock.now()
    done = await start(engine, session, a_job(type="done"))
    bad = await start(engine, session, a_job(type="bad"))
    rule = KeyPolicy("k", active=1, queued=None)
    waits = await accept_one(engine, a_keyed_job("k", rule, type="waits", deadline_in=60 * SECOND))
    clock.advance("1s")
    began_at = clock.now()
    clock.advance("1s")
    complete = Complete(fence_of(done), '{"n": 1}', started_at=began_at)
    done = await settle(engine, done, complete)
    boom = Failure("exception", "boom")
    fail = Fail(fence_of(bad), boom, started_at=began_at, retryable=False)
    bad = await settle(engine, bad, fail)
    assert await runtime.answers.catch_up()
    found = {row.pop("type"): row for row in read("jobs_projection")}
    for row in found.values():
        row.pop("worker", None)  # beside the columns of the contract, in SQLite only
    expected = {}
    for definition, head in (done, bad, waits):
        expected[definition.type] = _NOTHING | {
            "id": definition.id, "service": definition.service, "queue": definition.queue,
            "state": head.state.value, "payload": definition.payload, "created_at": created_at,
            "updated_at": created_at, "tries": head.attempt, "max_tries": 5,
            "request_id": definition.context.request_id,
            "traceparent": definition.context.traceparent,
        }  # fmt: skip
    ended = {"started_at": began_at, "completed_at": clock.now(), "updated_at": clock.now()}
    expected["done"] |= ended | {"result": '{"n": 1}'}
    expected["bad"] |= ended | {"last_error": "boom"}
    expected["waits"] |= {
        "key": "k", "key_hash": waits.definition.key_hash, "deadline": created_at + 60 * SECOND,
    }  # fmt: skip
    assert found == expected


async def test_workers_have_the_time_of_their_latest_heartbeat(
    runtime: AdminRuntime, link: Link, subjects: Subjects, read: Read, clock: ManualClock
) -> None:
    for instance, seconds in (("i1", 0), ("i2", 1), ("i1", 2)):
        body = {
            "service": "shop", "jobType": "invoice", "instanceId": instance, "concurrency": 4,
            "version": "1", "timestamp": iso(clock.now() + seconds * SECOND),
        }  # fmt: skip
        await link.ask(subjects.presence("shop", "invoice", instance), json.dumps(body).encode(), 5)
    assert await runtime.answers.catch_up()
    found = sorted(read("worker_presence_projection"), key=lambda row: str(row["instance_id"]))
    assert found == [
        {
            "service": "shop", "type": "invoice", "instance_id": instance, "concurrency": 4,
            "version": "1", "heartbeat_at": clock.now() + seconds * SECOND,
        }
        for instance, seconds in (("i1", 2), ("i2", 1))
    ]  # fmt: skip


async def test_the_bookkeeping_says_up_to_which_message_each_stream_was_projected(
    engine: Engine, runtime: AdminRuntime, subjects: Subjects, read: Read
) -> None:
    await accept_one(engine, a_job())
    await a_session(engine)
    assert await runtime.answers.catch_up()
    found = {row.pop("stream"): row for row in read("projection_metadata")}
    places = [
        (each.stream, await runtime.projection.place(each.stream), await each.last())
        for each in (runtime.jobs, runtime.state)
    ]
    assert [stream for stream, *_ in places] == [subjects.jobs, subjects.state]
    expected = {}
    for stream, place, last in places:
        assert place is not None
        expected[stream] = {"last_seq": last, "schema": 1, "rebuilt_at": place.rebuilt_at}
    assert found == expected
