"""Workers that only speak HTTP: claim, report, log, heartbeat, and what is refused."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.server.profiles.steps import HttpWorker, Store
from trellis import control
from trellis.core.policy import DEFAULT_POLICY
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.server import create_app
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import give_up_lost, reap_lapsed

NO_RETRY = replace(DEFAULT_POLICY, retry=Retry.never(), dead_letters=False)


async def lose_lapsed(store: Store) -> None:
    """Take the jobs of silent workers from them, as maintenance does."""
    await reap_lapsed(store.engine)
    await give_up_lost(store.engine)


# -- the way of a job ----------------------------------------------------------------------------


async def test_a_job_is_claimed_worked_on_and_completed(store: Store) -> None:
    job_id = await store.create(a_job(payload='{"order":7}', config='{"region":"eu"}'))
    worker = await store.worker()
    job = await worker.claim()
    assert (job["id"], job["status"], job["worker_id"]) == (job_id, "CLAIMED", "tendril-1")
    assert (job["payload"], job["config_snapshot"], job["attempt"]) == (
        {"order": 7}, {"region": "eu"}, 1,
    )  # fmt: skip
    assert (await store.read(f"/api/jobs/{job_id}"))["status"] == "CLAIMED"
    begun = await worker.report(
        job, "PROCESSING", phase="apply", progress={"current": 1, "total": 4, "message": "vpc"}
    )
    assert (begun.status_code, begun.json()["status"]) == (200, "PROCESSING")
    assert (await store.read(f"/api/jobs/{job_id}"))["status"] == "PROCESSING"
    progress = await store.operator.progress(job_id)
    assert progress is not None
    assert (progress.phase, progress.current, progress.message) == ("apply", 1, "vpc")
    assert (await worker.log(job, "one", "two")).json() == {"stored": 2, "dropped": 0}
    lines = await store.read(f"/api/jobs/{job_id}/logs")
    assert [line["message"] for line in lines] == ["one", "two"]
    ended = await worker.report(job, "SUCCESS", metadata={"cluster": "c1"})
    assert (ended.status_code, ended.json()["status"]) == (200, "SUCCESS")
    shown = await store.read(f"/api/jobs/{job_id}")
    assert (shown["metadata"], shown["worker_id"]) == ({"cluster": "c1"}, "tendril-1")
    assert await store.kinds(job_id) == ["created", "started", "completed"]


async def test_a_failure_is_retried_by_the_policy_of_the_type_or_final(store: Store) -> None:
    worker = await store.worker()
    again = await store.create(a_job())
    first = await worker.report(await worker.claim(), "FAILED", error="no quota", code="quota")
    assert (first.json()["status"], first.json()["error"]) == ("QUEUED", "no quota")
    assert await store.state(again) is State.RETRY
    reports: list[dict[str, Any]] = [{"retryable": False}, {}]
    for report in reports:
        job_id = await store.create(a_job(policy=DEFAULT_POLICY if report else NO_RETRY))
        ended = await worker.report(
            await worker.claim(), "FAILED", error="gone", metadata={"exit": 3}, **report
        )
        assert (ended.json()["status"], ended.json()["metadata"]) == ("FAILED", {"exit": 3})
        assert await store.state(job_id) is State.FAILED


async def test_a_job_out_of_attempts_is_shown_as_failed(store: Store) -> None:
    job_id = await store.create(a_job(attempts=1))
    worker = await store.worker()
    ended = await worker.report(await worker.claim(), "FAILED")
    assert (ended.json()["status"], await store.state(job_id)) == ("FAILED", State.DEAD)


async def test_a_job_is_handed_back_uncounted(store: Store) -> None:
    await store.create(a_job())
    worker = await store.worker()
    back = await worker.report(await worker.claim(), "QUEUED")
    assert (back.json()["status"], back.json()["attempt"]) == ("QUEUED", 0)
    assert (await worker.claim())["attempt"] == 1


async def test_a_begun_job_is_handed_back_as_its_type_says(store: Store) -> None:
    await store.create(a_job(policy=replace(DEFAULT_POLICY, on_shutdown="fail")))
    worker = await store.worker()
    unbegun = await worker.report(await worker.claim(), "QUEUED")
    assert unbegun.json()["status"] == "QUEUED"
    job = await worker.claim()
    await worker.report(job, "PROCESSING")
    assert (await worker.report(job, "QUEUED")).json()["status"] == "FAILED"


async def test_a_worker_learns_of_a_cancel_and_reports_it(store: Store) -> None:
    job_id = await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    await control.cancel(store.engine, job_id)
    assert (await worker.beat())["jobs"] == [
        {"id": job_id, "attempt_id": job["attempt_id"], "cancel_requested": True}
    ]
    assert (await worker.report(job, "PROCESSING")).json()["cancel_requested"] is True
    assert (await worker.report(job, "CANCELLED")).json()["status"] == "CANCELLED"


async def test_nothing_due_is_an_answer_without_a_body(store: Store) -> None:
    worker = await store.worker()
    answer = await worker.ask()
    assert (answer.status_code, answer.content) == (204, b"")
    assert [each["id"] for each in await store.read("/api/workers")] == ["tendril-1"]


async def test_a_worker_gets_only_jobs_of_its_types_queues_and_services(store: Store) -> None:
    await store.create(a_job(service="bank", type="pay", queue="pay"))
    await store.create(a_job(type="refund", queue="slow"))
    worker = await store.worker()
    assert (await worker.ask(types=["shop/invoice"])).status_code == 204
    assert (await worker.ask(queues=["fast"])).status_code == 204
    assert (await worker.claim(types=["shop/refund"], queues=["slow"]))["type"] == "refund"
    other = await store.worker("tendril-2")
    assert (await other.ask()).status_code == 204
    assert (await other.ask(types=["bank/pay"])).status_code == 403
    both = await store.worker("tendril-3", "worker:*")
    assert (await both.claim())["service"] == "bank"


async def test_a_worker_that_is_to_drain_gets_no_job(store: Store) -> None:
    worker = await store.worker()
    await worker.beat()
    await store.operator.drain("tendril-1")
    await store.create(a_job())
    assert (await worker.ask()).status_code == 204
    assert (await worker.beat())["status"] == "DRAINING"


async def test_a_worker_that_signs_off_hands_its_jobs_back(store: Store) -> None:
    job_id = await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    path = "/api/workers/tendril-1"
    assert (await store.send("DELETE", path, worker.token)).status_code == 204
    assert await store.state(job_id) is State.RETRY
    assert await store.read("/api/workers") == []
    assert (await worker.report(job, "SUCCESS")).status_code == 409


# -- leases --------------------------------------------------------------------------------------


async def test_a_silent_worker_is_offline_after_a_minute_and_its_job_runs_elsewhere(
    store: Store,
) -> None:
    job_id = await store.create(a_job())
    worker, other = await store.worker(), await store.worker("tendril-2")
    job = await worker.claim()
    await worker.report(job, "PROCESSING")
    store.clock.advance("59s")
    await lose_lapsed(store)
    assert await status_of(store, worker) == "ONLINE"
    store.clock.advance("1s")
    assert await status_of(store, worker) == "OFFLINE"
    await lose_lapsed(store)
    assert await status_of(store, worker) == "OFFLINE"
    store.clock.advance("10m")
    again = await other.claim()
    assert (again["id"], again["attempt"]) == (job_id, 2)
    assert (await store.read(f"/api/jobs/{job_id}"))["status"] == "CLAIMED"
    late = await worker.report(job, "SUCCESS", metadata="late")
    assert (late.status_code, late.json()["code"]) == (409, "attempt_over")
    assert (await store.kinds(job_id))[-1] == "staleCompletionIgnored"
    assert (await other.report(again, "SUCCESS", metadata="own")).status_code == 200
    assert (await store.read(f"/api/jobs/{job_id}"))["metadata"] == "own"


async def status_of(store: Store, worker: HttpWorker) -> str:
    found = {each["id"]: each["status"] for each in await store.read("/api/workers")}
    return str(found[worker.name])


async def test_heartbeats_and_claims_keep_the_lease(store: Store) -> None:
    await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    for step in range(4):
        store.clock.advance("40s")
        if step % 2:
            assert len((await worker.beat())["jobs"]) == 1
        else:
            assert (await worker.ask(attempts=[job["attempt_id"]])).status_code == 204
        await lose_lapsed(store)
    assert (await worker.report(job, "SUCCESS")).status_code == 200


async def test_a_worker_that_was_lost_learns_it_and_works_on(store: Store) -> None:
    job_id = await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    store.clock.advance("2m")
    await lose_lapsed(store)
    assert (await worker.beat())["jobs"] == []
    assert (await worker.log(job, "late")).json()["code"] == "attempt_over"
    assert (await worker.report(job, "PROCESSING")).status_code == 409
    assert await store.engine.logs(job_id) == []
    store.clock.advance("10m")
    again = await worker.claim()
    assert (again["id"], again["attempt"]) == (job_id, 2)
    assert (await worker.report(job, "SUCCESS")).status_code == 409
    assert (await worker.report(again, "SUCCESS")).status_code == 200


# -- repeated requests ---------------------------------------------------------------------------


async def test_a_claim_whose_answer_was_lost_is_answered_again_once(store: Store) -> None:
    first = await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    assert await worker.claim() == job
    assert (await worker.ask()).status_code == 204
    assert await store.state(first) is State.RETRY
    (record,) = (await store.engine.load([first])).records
    assert record is not None
    assert (record.head.crashes, record.head.attempt) == (1, 1)


async def test_a_worker_that_drops_a_begun_attempt_has_crashed(store: Store) -> None:
    job_id = await store.create(a_job(policy=replace(DEFAULT_POLICY, max_crashes=1)))
    worker = await store.worker()
    job = await worker.claim()
    await worker.report(job, "PROCESSING")
    assert (await worker.ask()).status_code == 204
    assert await store.state(job_id) is State.DEAD
    assert (await worker.report(job, "SUCCESS")).status_code == 409


async def test_a_worker_may_run_several_jobs_if_it_names_them(store: Store) -> None:
    await store.create(a_job())
    await store.create(a_job())
    worker = await store.worker()
    one = await worker.claim()
    two = await worker.claim(attempts=[one["attempt_id"]])
    held = [each["attempt_id"] for each in (await worker.beat())["jobs"]]
    assert held == [one["attempt_id"], two["attempt_id"]]
    for job in (two, one):
        assert (await worker.report(job, "SUCCESS")).status_code == 200


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("SUCCESS", {"metadata": 7}),
        ("FAILED", {"error": "no quota"}),
        ("FAILED", {"error": "gone", "retryable": False}),
        ("CANCELLED", {}),
        ("QUEUED", {}),
    ],
)
async def test_a_repeated_report_gets_the_answer_of_the_first_and_stores_nothing(
    store: Store, status: str, body: dict[str, Any]
) -> None:
    job_id = await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    first = await worker.report(job, status, **body)
    before = await store.facts(job_id)
    again = await worker.report(job, status, **body)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert await store.facts(job_id) == before


@pytest.mark.parametrize("status", ["FAILED", "CANCELLED", "QUEUED"])
@pytest.mark.parametrize("asked", [True, False])
async def test_a_report_is_repeated_after_a_cancel_or_a_shutdown_too(
    store: Store, status: str, *, asked: bool
) -> None:
    job_id = await store.create(a_job(policy=replace(DEFAULT_POLICY, on_shutdown="fail")))
    worker = await store.worker()
    job = await worker.claim()
    await worker.report(job, "PROCESSING")
    if asked:
        await control.cancel(store.engine, job_id)
    first = await worker.report(job, status)
    before = await store.facts(job_id)
    again = await worker.report(job, status)
    assert (again.status_code, again.json()) == (200, first.json())
    assert await store.facts(job_id) == before


async def test_a_report_after_a_forced_cancel_is_refused_unless_it_says_so(store: Store) -> None:
    worker = await store.worker()
    for status, code in (("FAILED", 409), ("QUEUED", 409), ("SUCCESS", 409), ("CANCELLED", 200)):
        job_id = await store.create(a_job())
        job = await worker.claim()
        await control.cancel(store.engine, job_id, force=True)
        answer = await worker.report(job, status)
        assert answer.status_code == code, status
        assert await store.state(job_id) is State.CANCELLED


async def test_another_report_after_the_first_is_refused_and_journalled(store: Store) -> None:
    worker = await store.worker()
    for first, then in (("SUCCESS", "FAILED"), ("FAILED", "SUCCESS"), ("QUEUED", "FAILED")):
        job_id = await store.create(a_job(policy=NO_RETRY, type=first.lower()))
        job = await worker.claim()
        assert (await worker.report(job, first)).status_code == 200
        state = await store.state(job_id)
        other = await worker.report(job, then)
        assert (other.status_code, other.json()["code"]) == (409, "attempt_over"), first
        assert await store.state(job_id) is state
        assert (await store.kinds(job_id))[-1] == "staleCompletionIgnored"
        if first == "QUEUED":
            await worker.report(await worker.claim(), "SUCCESS")


# -- what is refused -----------------------------------------------------------------------------


async def test_forged_and_foreign_attempts_are_refused_and_nothing_is_stored(store: Store) -> None:
    one, two = await store.create(a_job()), await store.create(a_job())
    owner, other = await store.worker(), await store.worker("tendril-2")
    job, foreign = await owner.claim(), await other.claim()
    assert (job["id"], foreign["id"]) == (one, two)
    same_token = HttpWorker(store, "tendril-3", owner.token)
    same_name = HttpWorker(store, owner.name, other.token)
    forged = {**job, "attempt_id": job["attempt_id"][:16] + "0" * 16}
    unknown = {**job, "attempt_id": "1" * 32}
    too_large = {**job, "attempt_id": "f" * 32}
    before = [await store.facts(one), await store.facts(two)]
    tries = [
        (other, job), (same_token, job), (same_name, job), (owner, forged), (owner, unknown),
        (owner, too_large), (owner, {**foreign, "id": one}), (owner, {**job, "id": two}),
    ]  # fmt: skip
    for worker, attempt in tries:
        for status in ("PROCESSING", "SUCCESS", "FAILED", "CANCELLED", "QUEUED"):
            answer = await worker.report(attempt, status)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), attempt
            assert "Nothing was stored" in answer.json()["detail"]
        assert (await worker.log(attempt, "line")).status_code == 403
    assert [await store.facts(one), await store.facts(two)] == before
    assert (await owner.report(job, "SUCCESS")).status_code == 200


async def test_a_token_of_another_service_reaches_no_attempt(store: Store) -> None:
    job_id = await store.create(a_job(service="bank", type="pay", queue="pay"))
    worker = await store.worker("tendril-1", "worker:bank")
    job = await worker.claim()
    other = await store.worker("tendril-1", "worker:shop")
    before = await store.facts(job_id)
    for answer in (await other.report(job, "SUCCESS"), await other.log(job, "line")):
        assert answer.status_code == 403
        assert "service of this job" in answer.json()["detail"]
    assert (await other.beat())["jobs"] == []
    assert await store.facts(job_id) == before


async def test_a_session_with_the_name_of_a_worker_that_another_token_opened_is_not_its_own(
    store: Store,
) -> None:
    worker = await store.worker()
    await worker.beat()
    (session,) = await store.engine.sessions()
    posed = session.info._replace(details='{"types":["shop/invoice"],"token":"another"}')
    twin = await store.engine.open_session(posed, session.lease)
    await store.create(a_job())
    await store.engine.claim(twin.id, [Demand("shop", ("invoice",), 1)], 1)
    assert (await worker.beat())["jobs"] == []
    assert (await worker.ask()).status_code == 204


async def test_unknown_words_and_fields_are_refused_and_nothing_is_stored(store: Store) -> None:
    job_id = await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    before = await store.facts(job_id)
    for status in ("success", "DONE", "CLAIMED", ""):
        answer = await worker.report(job, status)
        assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")
        assert answer.json()["errors"][0]["path"] == "body.status"
        assert "'SUCCESS'" in answer.json()["errors"][0]["message"]
    wrong: list[dict[str, Any]] = [
        {"attempt_id": "x"}, {"attempt_id": job["attempt_id"].upper() + "0"}, {"worker_id": "a b"},
        {"code": "No Word"}, {"error": "nul \0"}, {"nope": 1}, {"phase": "p" * 201},
        {"detail": "\ud800"}, {"progress": {"current": "many"}},
    ]  # fmt: skip
    for body in wrong:
        assert (await worker.report(job, "FAILED", **body)).status_code == 422, body
    assert (await worker.report(job, "SUCCESS", metadata="nul \0")).status_code == 422
    assert (await worker.report(job, "SUCCESS", metadata="x" * 1_100_000)).status_code == 413
    assert (await worker.log(job)).status_code == 422
    assert (await worker.log(job, *["line"] * 501)).status_code == 422
    assert await store.facts(job_id) == before
    missing = {"id": "01JC0000000000000000000000", "attempt_id": job["attempt_id"]}
    assert (await worker.report(missing, "SUCCESS")).json()["code"] == "job_not_found"


async def test_a_report_without_the_attempt_is_refused(store: Store) -> None:
    job_id = await store.create(a_job())
    worker = await store.worker()
    await worker.claim()
    body = {"worker_id": worker.name, "status": "SUCCESS"}
    answer = await store.send("PUT", f"/api/jobs/{job_id}/status", worker.token, body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "body.attempt_id"


# -- several servers -----------------------------------------------------------------------------


Another = Callable[[], Awaitable[Engine]]


async def test_several_servers_share_sessions_and_attempts(store: Store, another: Another) -> None:
    second = create_app(engine=await another())
    async with second.router.lifespan_context(second):
        await store.create(a_job())
        worker = await store.worker()
        job = await worker.claim(second)
        assert [each["id"] for each in (await worker.beat())["jobs"]] == [job["id"]]
        assert (await worker.report(job, "PROCESSING")).status_code == 200
        assert (await worker.report(job, "SUCCESS", second)).status_code == 200
        assert len(await store.read("/api/workers")) == 1


async def test_workers_at_several_servers_run_every_job_once(
    store: Store, another: Another
) -> None:
    jobs = [await store.create(a_job()) for _ in range(12)]
    second = create_app(engine=await another())
    done: list[str] = []

    async def work(name: str) -> None:
        worker = await store.worker(name)
        servers = itertools.cycle([store.app, second])
        while (answer := await worker.ask(next(servers))).status_code == 200:
            ended = await worker.report(answer.json(), "SUCCESS", next(servers), metadata=name)
            assert ended.status_code == 200, ended.text
            done.append(answer.json()["id"])

    async with second.router.lifespan_context(second):
        await asyncio.gather(*(work(f"tendril-{number}") for number in range(4)))
    assert sorted(done) == sorted(jobs)
    for job_id in jobs:
        assert await store.kinds(job_id) == ["created", "started", "completed"]


async def test_two_sessions_of_one_worker_count_as_one(store: Store) -> None:
    one, two = await store.create(a_job()), await store.create(a_job())
    worker = await store.worker()
    job = await worker.claim()
    # Two servers that open a session at the same moment do not see each other's.
    (session,) = await store.engine.sessions()
    twin = await store.engine.open_session(session.info, session.lease)
    claimed = await store.engine.claim(twin.id, [Demand("shop", ("invoice",), 1)], 1)
    held = {each["id"] for each in (await worker.beat())["jobs"]}
    assert held == {one, two}
    again = await worker.claim(attempts=[job["attempt_id"]])
    assert (again["id"], again["attempt_id"]) == (two, claimed.jobs[0].head.fence.attempt_id)  # type: ignore[union-attr]
    assert (await worker.report(again, "SUCCESS")).status_code == 200
