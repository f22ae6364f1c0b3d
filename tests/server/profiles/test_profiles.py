"""The profiles for tables, documents and agents: their paths, words and shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from tests.server.profiles.steps import Store
from trellis import PerKey, Service, control
from trellis.core.commands import Complete, Fail
from trellis.core.job import Failure, JobId
from trellis.core.policy import DEFAULT_POLICY, KeyPolicy
from trellis.core.states import State
from trellis.engines.values import Begun, Item, Note, NoteBody, NoteResult, Phase, Progress
from trellis.testing.builders import a_demand, a_job, a_worker, fence_of

TABLE = replace(DEFAULT_POLICY, key=KeyPolicy("table/{db}/{table}", hold="job"), dead_letters=False)
SERVICE = "table_maintenance"


class Table(BaseModel):
    """What to do with a table."""

    db: str
    table: str
    actions: list[Literal["vacuum", "rewrite"]]


async def running(store: Store, job_id: JobId, *bodies: NoteBody) -> None:
    """Claim a job for a worker process that reports this."""
    (record,) = (await store.engine.load([job_id])).records
    assert record is not None
    where = record.definition
    session = await store.engine.open_session(a_worker("pod-1"), 60_000_000)
    demand = a_demand(where.type, service=where.service)
    (claimed,) = (await store.engine.claim(session.id, [demand], 1)).jobs
    fence = fence_of(claimed)
    notes = [Note(claimed.definition.row, claimed.head.claims, fence, body) for body in bodies]
    assert set(await store.engine.note(notes)) <= {NoteResult.NOTED}


async def end(store: Store, job_id: JobId, *, error: str | None = None) -> None:
    """Complete or fail the running attempt of a job."""
    (record,) = (await store.engine.load([job_id])).records
    assert record is not None
    fence = fence_of(record)
    if error is None:
        await control.apply(store.engine, job_id, Complete(fence, '{"rows":3}'))
    else:
        failure = Failure("exception", error)
        await control.apply(store.engine, job_id, Fail(fence, failure, retryable=False))


# -- tables --------------------------------------------------------------------------------------


@pytest.fixture
async def token(store: Store) -> str:
    """A token that may submit; the type has had a job."""
    template = a_job(
        service=SERVICE, type="maintenance", queue="maintenance", policy=TABLE, key="table/x/y",
        payload='{"db":"x","table":"y","actions":["vacuum"]}',
    )  # fmt: skip
    await store.create(template)
    return await store.token(f"submit:{SERVICE}")


async def test_a_job_for_a_table_is_accepted_and_read_where_the_answer_says(
    store: Store, token: str
) -> None:
    body = {"actions": ["rewrite_data_files", "expire_snapshots"]}
    answer = await store.send("POST", "/tables/lake/events/maintenance", token, body)
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    job_id = answer.json()["job_id"]
    where = answer.headers["location"]
    assert where == f"/tables/lake/events/maintenance/{job_id}"
    job = await store.read(where)
    assert (job["db"], job["table"], job["actions"]) == ("lake", "events", body["actions"])
    assert (job["status"], job["attempt_id"], job["attempt_count"]) == ("pending", None, 0)
    await control.cancel(store.engine, JobId((await newest(store))[1]))
    await running(store, job_id)
    job = await store.read(where)
    assert (job["status"], job["attempt_count"], job["claimed_by"]) == ("running", 1, "pod-1")
    assert len(job["attempt_id"]) == 32
    await end(store, job_id)
    job = await store.read(where)
    assert (job["status"], job["results"], job["error"]) == ("completed", {"rows": 3}, None)


async def newest(store: Store) -> list[str]:
    page = await store.operator.find().page(limit=10)
    return [job.id for job in page.jobs]


async def test_a_table_that_has_a_job_is_busy_and_the_answer_names_it(
    store: Store, token: str
) -> None:
    body = {"actions": ["vacuum"]}
    path = "/tables/lake/events/maintenance"
    first = await store.send("POST", path, token, body)
    second = await store.send("POST", path, token, body)
    assert (second.status_code, second.json()["code"]) == (409, "key_busy")
    assert second.json()["existing"] == first.json()["job_id"]
    other = await store.send("POST", "/tables/lake/users/maintenance", token, body)
    assert other.status_code == 202


async def test_a_repeated_submit_with_a_key_makes_one_job(store: Store, token: str) -> None:
    path, body = "/tables/lake/events/maintenance", {"actions": ["vacuum"]}
    answers = [
        await store.send("POST", path, token, body, headers={"Idempotency-Key": "run-7"})
        for _ in range(2)
    ]
    assert len({answer.json()["job_id"] for answer in answers}) == 1


async def test_drain_mode_refuses_new_jobs_and_is_audited(store: Store, token: str) -> None:
    assert (await store.read("/tables/drain"))["drain_mode"] is False
    admin = await store.token("admin.mutate")
    body = {"drain_mode": True, "reason": "deploy"}
    assert (await store.send("PUT", "/tables/drain", admin, body)).json() == body
    assert await store.read("/tables/drain") == body
    refused = await store.send(
        "POST", "/tables/lake/events/maintenance", token, {"actions": ["vacuum"]}
    )
    assert (refused.status_code, refused.json()["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) > 0
    await store.send("PUT", "/tables/drain", admin, {"drain_mode": False})
    assert (await store.read("/tables/drain"))["drain_mode"] is False
    assert {each.actor for each in await store.operator.drain_history()} == {"token:test"}


async def test_wrong_requests_for_tables_are_refused(store: Store, token: str) -> None:
    path = "/tables/lake/events/maintenance"
    bodies: list[object] = [{}, {"actions": []}, {"actions": "vacuum"}, {"actions": [""]},
                            {"actions": ["vacuum"], "force": True}]  # fmt: skip
    for body in bodies:
        assert (await store.send("POST", path, token, body)).status_code == 422, body
    good = {"actions": ["vacuum"]}
    other = await store.send("POST", f"{path}?service=shop", token, good)
    assert other.status_code == 403
    admin = await store.token("admin.mutate")
    unknown = await store.send("POST", f"{path}?service=shop", admin, good)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_job_type")
    assert len(await newest(store)) == 1
    reader = await store.token("admin.read")
    (job_id,) = await newest(store)
    elsewhere = await store.send("GET", f"{path}/{job_id}", reader)
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (404, "job_not_found")


async def test_a_deployed_type_needs_no_earlier_job_and_its_contract_checks_actions(
    store: Store, tmp_path: Path
) -> None:
    service = Service(SERVICE, f"sqlite:///{tmp_path / 'jobs.db'}")

    @service.job(per_key=PerKey("table/{db}/{table}", hold="job"))
    async def maintenance(table: Table) -> None: ...

    async with service.worker():
        pass
    admin = await store.token("admin.mutate")
    path = "/tables/lake/events/maintenance"
    wrong = await store.send("POST", path, admin, {"actions": ["drop"]})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "payload_invalid")
    assert await newest(store) == []
    right = await store.send("POST", path, admin, {"actions": ["vacuum"]})
    assert right.status_code == 202
    assert await newest(store) == [right.json()["job_id"]]


# -- documents -----------------------------------------------------------------------------------


async def test_a_queue_job_shows_its_phase_and_its_items(store: Store) -> None:
    job_id = await store.create(a_job(service="docs", type="build_processing", queue="builds"))
    before = await store.read(f"/queue/jobs/{job_id}")
    assert (before["kind"], before["status"], before["phase"]) == (
        "build_processing", "queued", None,
    )  # fmt: skip
    assert (before["progress"], before["date_started"]) == (None, None)
    await running(
        store, job_id,
        Begun(store.clock.now()), Phase("inventory"), Item("old", "completed", None, "inventory"),
        Phase("editions"),
        Item("__main", "completed", None, "editions"),
        Item("v2.x", "skipped", "superseded", "editions"),
        Item("DM-12345", "failed", "R2 timeout", "editions"),
        Item("draft", "in_progress", None, "editions"),
    )  # fmt: skip
    shown = await store.read(f"/queue/jobs/{job_id}")
    assert (shown["status"], shown["phase"]) == ("in_progress", "editions")
    assert shown["date_started"] is not None
    assert shown["progress"] == {
        "editions_total": 4,
        "editions_completed": ["__main"],
        "editions_skipped": [{"slug": "v2.x", "reason": "superseded"}],
        "editions_failed": [{"slug": "DM-12345", "error": "R2 timeout"}],
        "editions_in_progress": ["draft"],
    }
    await end(store, job_id, error="no template")
    ended = await store.read(f"/queue/jobs/{job_id}")
    assert (ended["status"], ended["errors"]) == (
        "failed", [{"code": "exception", "message": "no template"}],
    )  # fmt: skip
    assert ended["date_completed"] is not None


async def test_a_queue_job_without_items_shows_what_its_handler_said(store: Store) -> None:
    job_id = await store.create(a_job())
    await running(store, job_id, Phase("inventory"), Progress(message="Cataloging 1,247 objects"))
    shown = await store.read(f"/queue/jobs/{job_id}")
    assert shown["progress"] == {"message": "Cataloging 1,247 objects"}


async def test_a_partial_success_keeps_its_word_and_a_removed_job_is_not_found(
    store: Store,
) -> None:
    job_id = await store.create(a_job())
    await running(store, job_id)
    (record,) = (await store.engine.load([job_id])).records
    assert record is not None
    await control.apply(store.engine, job_id, Complete(fence_of(record), "1", item_errors=1))
    shown = await store.read(f"/queue/jobs/{job_id}")
    assert shown["status"] == "completed_with_errors"
    await store.operator.delete(job_id)
    gone = await store.send("GET", f"/queue/jobs/{job_id}", await store.token("admin.read"))
    assert (gone.status_code, gone.json()["code"]) == (404, "job_not_found")


# -- agents --------------------------------------------------------------------------------------


async def test_failed_jobs_are_listed_with_their_errors_those_out_of_attempts_too(
    store: Store,
) -> None:
    failed = await store.create(a_job(type="agent-turn", dedupe="slack:7"))
    await running(store, failed)
    await end(store, failed, error="no such user")
    dead = await store.create(a_job(type="trigger-fire", attempts=1))
    await running(store, dead)
    (record,) = (await store.engine.load([dead])).records
    assert record is not None
    failure = Failure("timeout", "too slow")
    await control.apply(store.engine, dead, Fail(fence_of(record), failure))
    assert await store.state(dead) is State.DEAD
    waiting = await store.create(a_job(type="agent-turn"))
    listed = (await store.read("/v1/jobs?status=failed&limit=20"))["jobs"]
    assert [(job["id"], job["status"], job["error"]) for job in listed] == [
        (dead, "failed", "too slow"), (failed, "failed", "no such user"),
    ]  # fmt: skip
    assert (listed[1]["kind"], listed[1]["dedupeKey"]) == ("agent-turn", "slack:7")
    assert (listed[0]["attempts"], listed[0]["maxAttempts"]) == (1, 1)
    assert len((await store.read("/v1/jobs?status=failed&limit=1"))["jobs"]) == 1
    by_kind = (await store.read("/v1/jobs?status=failed&kind=agent-turn"))["jobs"]
    assert [job["id"] for job in by_kind] == [failed]
    pending = (await store.read("/v1/jobs?status=pending"))["jobs"]
    assert [(job["id"], job["lockedBy"]) for job in pending] == [(waiting, None)]
    await running(store, waiting)
    (job,) = (await store.read("/v1/jobs?status=running"))["jobs"]
    assert (job["id"], job["lockedBy"], job["status"]) == (waiting, "pod-1", "running")


async def test_a_wrong_status_or_limit_is_refused(store: Store) -> None:
    reader = await store.token("admin.read")
    answer = await store.send("GET", "/v1/jobs?status=dead", reader)
    assert answer.status_code == 422
    assert "Known: pending, running, completed, failed, cancelled" in answer.json()["detail"]
    for limit in ("0", "201", "many"):
        assert (await store.send("GET", f"/v1/jobs?limit={limit}", reader)).status_code == 422
