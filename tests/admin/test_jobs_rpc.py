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
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.declaration.secrets import MASK
from trellis.engines.contracts import DeclaredType
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, LogLine, Note, Progress, WorkerInfo
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
    assert job["queuePolicy"] == {"outcome": "accepted"}
    assert [line["message"] for line in job["logs"]] == ["hello"]
    assert job["createdAt"] == job["startedAt"] < job["completedAt"] == job["updatedAt"]
    assert "lastError" not in job


async def test_secrets_are_masked_in_every_answer_about_jobs(call: Caller, engine: Engine) -> None:
    # The creator does not know the types of the worker, which declares what is secret.
    policy = Policy(retry=Retry.never(), secrets=("/payload/card", "/result/pin"))
    await engine.declare_types([DeclaredType("shop", "invoice", "default", policy)])
    payload = '{"card":"4242","user":{"password":"hunter2","name":"ada"}}'
    news = [a_job(policy=ONCE, payload=payload) for _ in range(4)]
    waiting, dead, done, wrong = (each.id for each in news)
    masked = {"card": MASK, "user": {"password": MASK, "name": "ada"}}
    session = await a_session(engine)
    await accept_one(engine, news[0])
    one, two, three = [
        await start(engine, session, each._replace(type="other", policy=policy))
        for each in news[1:]
    ]
    await settle(engine, one, Fail(fence_of(one), BOOM))
    await settle(engine, two, Complete(fence_of(two), '{"pin":7,"api_key":"k","ok":true}'))
    await settle(engine, three, Fail(fence_of(three), BOOM, retryable=False))
    listed = (await call("List", limit=9)).body["entries"]
    listed += (await call("ListDLQ", limit=9)).body["entries"]
    listed += [(await call("Get", id=each)).body["job"] for each in (waiting, dead, done, wrong)]
    again = (("ReplayDLQ", dead), ("Retry", wrong), ("Cancel", waiting))
    listed += [(await call(name, id=each)).body["job"] for name, each in again]
    assert [each["payload"] for each in listed] == [masked] * 12
    results = [each["result"] for each in listed if each["id"] == done]
    assert results == [{"pin": MASK, "api_key": MASK, "ok": True}] * 2


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


async def test_the_state_of_a_key_is_shown(
    call: Caller, engine: Engine, clock: ManualClock
) -> None:
    session = await a_session(engine)
    held = await start(engine, session, a_keyed_job("user/7", IN_TURN))
    waits = await accept_one(engine, a_keyed_job("user/7", IN_TURN))
    status = (await call("GetKey", service="shop", type="invoice", key="user/7")).body
    now = iso(clock.now())
    assert status.pop("updatedAt")
    assert status == {
        "version": 1, "service": "shop", "jobType": "invoice", "key": "user/7",
        "keyHash": held.definition.key_hash, "maxActive": 1, "queuedCount": 1, "blocked": False,
        "staleTakeoverCount": 0, "replaced": [],
        "active": [{
            "jobId": held.definition.id, "slotToken": fence_of(held).attempt_id, "tries": 1,
            "instanceId": f"{session:016x}", "startedAt": now, "heartbeatAt": now,
            "leaseExpiresAt": iso(clock.now() + 30 * SECOND),
        }],
        "queued": [{
            "jobId": waits.definition.id, "createdAt": now,
            "requestId": waits.definition.context.request_id,
        }],
    }  # fmt: skip
    missing = await call("GetKey", service="shop", type="invoice", key="user/8")
    assert (missing.code, missing.body["error"]["type"]) == ("404", "NotFoundError")
    wrong = await call("GetKey", service="shop", key="user/8")
    assert (wrong.code, wrong.body["error"]["type"]) == ("400", "ValidationError")


async def test_a_replaced_job_and_its_replacement_name_each_other(
    call: Caller, engine: Engine, clock: ManualClock
) -> None:
    rule = KeyPolicy("user/{id}", active=1, queued=1, when_full="replace-oldest")
    await start(engine, await a_session(engine), a_keyed_job("user/7", rule))
    line = [a_keyed_job("user/7", rule) for _ in range(3)]
    for new in line:
        await engine.create([new])
    first, second, third = (new.id for new in line)
    policies = [(await call("Get", id=new.id)).body["job"]["queuePolicy"] for new in line]
    assert policies == [
        {"outcome": "accepted", "reason": "replaced", "replacedByJobId": second},
        {
            "outcome": "replaced", "replacedJobId": first,
            "reason": "replaced", "replacedByJobId": third,
        },
        {"outcome": "replaced", "replacedJobId": second},
    ]  # fmt: skip
    status = (await call("GetKey", service="shop", type="invoice", key="user/7")).body
    assert (status["maxQueuedPerKey"], status["whenFull"]) == (1, "replace-oldest")
    assert [each["jobId"] for each in status["queued"]] == [third]
    at = iso(clock.now())
    assert status["replaced"] == [
        {"jobId": old, "skippedAt": at, "reason": "replaced", "replacedByJobId": newer}
        for old, newer in ((second, third), (first, second))
    ]


async def test_a_job_without_a_key_has_no_queue_policy(call: Caller, engine: Engine) -> None:
    job = await accept_one(engine, a_job())
    assert "queuePolicy" not in (await call("Get", id=job.definition.id)).body["job"]


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
        ("List", {"limit": 1, "since": "20300101T000000Z"}),
        ("List", {"limit": 1, "since": "2030-02-31T00:00:00Z"}),
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


async def test_workers_tell_their_presence_with_renewals_for_a_while(
    call: Caller, engine: Engine, link: Link, subjects: Subjects, clock: ManualClock
) -> None:
    details = '{"types":["shop/invoice","shop/reminder"],"slots":7}'
    info = WorkerInfo("worker-1", "host-1", 4242, "1.2.3", details)
    session = (await engine.open_session(info, 3600 * SECOND)).id
    for _ in range(3):
        await engine.renew(session, ())
    heard = await link.following(subjects.jobs, subjects.presence("*", "*", "*"), 1)
    assert [json.loads(got.body) for got in heard] == [
        {
            "service": "shop", "jobType": each, "instanceId": f"{session:016x}", "concurrency": 7,
            "version": "1.2.3", "timestamp": iso(clock.now()),
        }
        for each in ("invoice", "reminder")
    ]  # fmt: skip
    assert {got.headers["Nats-TTL"] for got in heard} == {"90s"}
    (service,) = (await call("ListServices", limit=9)).body["entries"]
    assert (service["service"], service["jobTypes"]) == ("shop", ["invoice", "reminder"])
    assert {each["instanceId"] for each in service["workers"]} == {f"{session:016x}"}
    clock.advance("31s")
    await engine.renew(session, ())
    assert len(await link.following(subjects.jobs, subjects.presence("*", "*", "*"), 1)) == 4
    clock.advance("91s")
    assert (await call("ListServices", limit=9)).body["count"] == 0


async def test_a_page_that_is_too_large_for_a_message_is_refused_with_what_to_do(
    call: Caller, engine: Engine
) -> None:
    await engine.create([a_job(payload=json.dumps("x" * 900_000)) for _ in range(3)])
    answer = await call("List", limit=3)
    assert (answer.code, answer.body["error"]["type"]) == ("400", "ValidationError")
    assert "limit" in answer.body["error"]["message"]
    assert len((await call("List", limit=2)).body["entries"]) == 2


async def test_an_engine_lists_jobs_that_are_larger_than_a_message(
    whole_runtime: AdminRuntime, engine: Engine
) -> None:
    payloads = [json.dumps(letter * 900_000) for letter in "abc"]
    await engine.create([a_job(payload=payload) for payload in payloads])
    page = await engine.find(JobFilter(), limit=3)
    assert sorted(each.definition.payload for each in page.jobs) == payloads


@pytest.mark.parametrize("text", ["no " * 300_000, "\ud800", "a\0b"])
async def test_a_text_that_is_too_long_or_cannot_be_stored_is_refused(
    call: Caller, text: str
) -> None:
    answers = [await call("Get", id=text), await call("List", service=text)]
    assert [each.code for each in answers] == ["400", "400"]
