"""The RPC `Jobs.*`: shapes, pages, changes that are real events, typed errors."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from trellis.admin.runtime import AdminRuntime
from trellis.admin.wire_job import iso
from trellis.core.commands import Complete, Fail
from trellis.core.durations import SECOND
from trellis.core.job import Failure
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.values import LogLine, Note, Progress
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, a_job_id, a_keyed_job, fence_of
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    journal,
    settle,
    start,
)

ONCE = Policy(retry=Retry.never())
BOOM = Failure("exception", "boom")


class Answer(NamedTuple):
    """The answer to a call, and the code of an error."""

    body: dict[str, Any]
    code: str | None


class Caller:
    """Calls `Jobs.*`."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link, self._subjects = link, subjects

    async def __call__(self, name: str, body: bytes | None = None, **given: Any) -> Answer:  # noqa: ANN401
        data = json.dumps(given).encode() if body is None else body
        answer = await self._link.ask(self._subjects.rpc(name), data, 20)
        code = (answer.headers or {}).get("Nats-Service-Error-Code")
        return Answer(json.loads(answer.data), code)


@pytest.fixture
def call(whole_runtime: AdminRuntime, link: Link, subjects: Subjects) -> Caller:
    assert whole_runtime.rpc is not None
    return Caller(link, subjects)


async def test_a_job_has_the_documented_shape(
    call: Caller, engine: Engine, clock: ManualClock
) -> None:
    new = a_keyed_job("user/7", IN_TURN, payload='{"order":7}', deadline_in=3600 * SECOND)
    taken = await start(engine, await a_session(engine), new)
    began = clock.now()
    clock.advance("1s")
    notes = (Progress(1, 2, "send", "half"), LogLine("info", "hello"))
    row, fence = taken.definition.row, fence_of(taken)
    await engine.note([Note(row, 1, fence, body) for body in notes])
    await settle(engine, taken, Complete(fence, '{"sent":true}', started_at=began))
    job = (await call("Get", id=new.id)).body["job"]
    assert job.items() >= {
        "id": new.id, "service": "shop", "type": "invoice", "state": "completed",
        "payload": {"order": 7}, "result": {"sent": True}, "tries": 1, "maxTries": 5,
        "progress": {"current": 1, "total": 2, "step": "send", "message": "half"},
    }.items()  # fmt: skip
    assert job["concurrency"] == {"key": "user/7", "keyHash": new.key_hash}
    assert [line["message"] for line in job["logs"]] == ["hello"]
    assert job["createdAt"] == job["startedAt"] < job["completedAt"] == job["updatedAt"]
    assert "lastError" not in job


async def test_lists_have_offset_pages_and_filters(call: Caller, engine: Engine) -> None:
    jobs = await accept(engine, *(a_job() for _ in range(5)), a_job(type="other"))
    newest = [each.definition.id for each in reversed(jobs)]
    first = (await call("List", limit=4)).body
    assert [each["id"] for each in first["entries"]] == newest[:4]
    assert (first["count"], first["offset"], first["limit"], first["nextOffset"]) == (6, 0, 4, 4)
    second = (await call("List", offset=4, limit=4)).body
    assert [each["id"] for each in second["entries"]] == newest[4:]
    assert "nextOffset" not in second
    only = (await call("List", type="other", service="shop", state=["pending"], limit=9)).body
    assert [each["id"] for each in only["entries"]] == newest[:1]
    assert (await call("List", since="2999-01-01T00:00:00Z", limit=9)).body["count"] == 0


async def test_a_dead_letter_is_listed_replayed_and_dismissed(call: Caller, engine: Engine) -> None:
    session = await a_session(engine)
    dead = [await start(engine, session, a_job(policy=ONCE, type=name)) for name in "ab"]
    for each in dead:
        await settle(engine, each, Fail(fence_of(each), BOOM))
    one, two = (each.definition.id for each in dead)
    assert {each["id"] for each in (await call("ListDLQ", limit=9)).body["entries"]} == {one, two}
    assert (await call("ReplayDLQ", id=one)).body["job"]["state"] == "pending"
    dismissed = (await call("DismissDLQ", id=two)).body["job"]
    assert (dismissed["state"], dismissed["lastError"]) == ("dismissed", "boom")
    assert (await call("ListDLQ", limit=9)).body["count"] == 0
    last = (await journal(engine, dead[0]))[-1]
    assert (last.kind, dict(last.data or {})["actor"]) == ("retried", "jobs-rpc")


async def test_jobs_are_cancelled_and_retried(call: Caller, engine: Engine) -> None:
    waiting = await accept_one(engine, a_job(type="other"))
    cancelled = (await call("Cancel", id=waiting.definition.id)).body["job"]
    assert cancelled["state"] == "cancelled"
    taken = await start(engine, await a_session(engine), a_job())
    await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
    assert (await call("Retry", id=taken.definition.id)).body["job"]["state"] == "pending"


async def test_the_state_of_a_key_is_shown(call: Caller, engine: Engine) -> None:
    jobs = await accept(engine, *(a_keyed_job("user/7", IN_TURN) for _ in range(2)))
    status = (await call("GetKey", service="shop", type="invoice", key="user/7")).body
    assert status["active"] == [{"jobId": jobs[0].definition.id}]
    assert (status["queued"], status["blocked"]) == (1, False)
    missing = await call("GetKey", service="shop", type="invoice", key="user/8")
    assert (missing.code, missing.body["error"]["type"]) == ("404", "NotFoundError")


async def test_a_missing_job_is_not_found(call: Caller) -> None:
    for name in ("Get", "Retry", "Cancel", "ReplayDLQ", "DismissDLQ"):
        answer = await call(name, id=a_job_id())
        assert (answer.code, answer.body["error"]["type"]) == ("404", "NotFoundError")


async def test_a_change_that_the_state_does_not_allow_is_refused(
    call: Caller, engine: Engine
) -> None:
    waiting = await accept_one(engine, a_job())
    for name in ("Retry", "ReplayDLQ", "DismissDLQ"):
        answer = await call(name, id=waiting.definition.id)
        assert (answer.code, answer.body["error"]["type"]) == ("409", "ValidationError")
    assert (await call("Get", id=waiting.definition.id)).body["job"]["state"] == "pending"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("List", {}),
        ("List", {"limit": 0}),
        ("List", {"limit": True}),
        ("List", {"limit": 1, "offset": -1}),
        ("List", {"limit": 1, "state": ["lost"]}),
        ("List", {"limit": 1, "state": "dead"}),
        ("List", {"limit": 1, "since": "yesterday"}),
        ("List", {"limit": 1, "since": "2030-01-01T00:00:00"}),
        ("ListDLQ", {"limit": 1, "state": ["dead"]}),
        ("Get", {}),
        ("Get", {"id": 7}),
        ("Health", {"x": 1}),
    ],
)
async def test_wrong_input_is_refused(call: Caller, name: str, given: dict[str, Any]) -> None:
    answer = await call(name, **given)
    assert (answer.code, answer.body["error"]["type"]) == ("400", "ValidationError")


@pytest.mark.parametrize("body", [b"{", b"[]", b"7"])
async def test_input_that_is_no_object_is_refused(call: Caller, body: bytes) -> None:
    assert (await call("List", body)).code == "400"


async def test_health_and_services_are_shown(
    call: Caller, link: Link, subjects: Subjects, clock: ManualClock
) -> None:
    assert (await call("Health")).body["status"] == "ok"
    for instance, seconds in (("i1", 0), ("i2", 30), ("old", -120)):
        at = clock.now() + seconds * SECOND
        body = {
            "service": "shop", "jobType": "invoice", "instanceId": instance,
            "concurrency": 4, "version": "1", "timestamp": iso(at),
        }  # fmt: skip
        subject = f"{subjects.prefix}.jobs.workers.shop.invoice.{instance}.heartbeat"
        await link.ask(subject, json.dumps(body).encode(), 5)
    page = (await call("ListServices", limit=9)).body
    assert (page["count"], page["entries"][0]["service"]) == (1, "shop")
    assert [each["instanceId"] for each in page["entries"][0]["workers"]] == ["i1", "i2"]
