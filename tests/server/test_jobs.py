"""Jobs over HTTP: create, list, read and change them."""

from __future__ import annotations

import httpx
import pytest
from pydantic import BaseModel, Field

from tests.server.conftest import Api
from trellis import ActiveJob, PerKey, Service
from trellis.errors import TrellisError
from trellis.server.problems import STATUSES, status_of


class Line(BaseModel):
    """A line of an order."""

    amount: int = Field(ge=0)


class Order(BaseModel):
    """A payload with fields."""

    number: int
    lines: list[Line] = []


async def submit(
    api: Api, *, headers: dict[str, str] | None = None, **body: object
) -> httpx.Response:
    body = {"type": "shop/invoice", "payload": 8, **body}
    return await api.send("POST", "/api/v1/jobs", "submit:shop", json=body, headers=headers or {})


async def test_a_submitted_job_is_accepted_and_can_be_read_where_the_answer_says(api: Api) -> None:
    answer = await submit(api, tags={"tenant": "acme"}, priority=2)
    assert answer.status_code == 202
    read = await api.send("GET", answer.headers["location"], "admin.read")
    job = read.json()
    assert (job["id"], job["payload"], job["priority"]) == (answer.json()["id"], 8, 2)
    assert job["tags"] == {"tenant": "acme"}


async def test_an_idempotency_key_makes_one_job_and_another_payload_a_conflict(api: Api) -> None:
    key = {"Idempotency-Key": "order-7"}
    first, again = await submit(api, headers=key), await submit(api, headers=key)
    assert first.json()["id"] == again.json()["id"]
    other = await submit(api, headers=key, payload=9)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    assert other.json()["existing"] == first.json()["id"]


async def test_a_draining_store_answers_503_with_retry_after(api: Api) -> None:
    await api.operator.drain_all("deploy")
    answer = await submit(api)
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    assert int(answer.headers["retry-after"]) > 0


async def test_wrong_fields_are_named_by_path_and_nothing_is_stored(api: Api) -> None:
    answer = await submit(api, priority=9, nope=1)
    assert answer.status_code == 422
    assert {each["path"] for each in answer.json()["errors"]} == {"body.priority", "body.nope"}
    assert await api.operator.find().count() == 1


async def test_an_unknown_type_is_not_found(api: Api) -> None:
    answer = await submit(api, type="shop/unknown")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job_type")


async def test_a_list_is_filtered_and_paged(api: Api) -> None:
    for number in range(4):
        await submit(api, payload=number, tags={"odd": str(number % 2)})
    page = await api.send("GET", "/api/v1/jobs?tag=odd%3D1&limit=1", "admin.read")
    body = page.json()
    assert (body["count"], len(body["entries"]), body["limit"]) == (2, 1, 1)
    rest = await api.send(
        "GET", f"/api/v1/jobs?tag=odd%3D1&limit=1&after={body['next']}", "admin.read"
    )
    assert [each["payload"] for each in body["entries"] + rest.json()["entries"]] == [3, 1]
    assert rest.json()["next"] is None


async def test_an_unknown_filter_is_refused(api: Api) -> None:
    answer = await api.send("GET", "/api/v1/jobs?stat=failed", "admin.read")
    assert answer.status_code == 422
    assert "state" in answer.json()["detail"]


async def test_changes_name_the_token_in_journal_and_audit(api: Api) -> None:
    job_id = (await submit(api)).json()["id"]
    path = f"/api/v1/jobs/{job_id}"
    moved = await api.send("PATCH", path, "admin.mutate", json={"priority": 3, "reason": "vip"})
    assert moved.json()["priority"] == 3
    ended = await api.send("POST", f"{path}/cancel", "admin.mutate", json={"reason": "no need"})
    assert ended.json()["state"] == "cancelled"
    again = await api.send("POST", f"{path}/retry", "admin.mutate")
    assert (again.status_code, again.json()["code"]) == (409, "command_rejected")
    journal = (await api.send("GET", f"{path}/journal", "admin.read")).json()
    assert [each["kind"] for each in journal] == ["created", "adjusted", "cancelled"]
    audit = (await api.send("GET", "/api/v1/audit?action=job", "admin.read")).json()
    assert [(each["action"], each["actor"], each["reason"]) for each in audit] == [
        ("job.cancel", "token:test", "no need"),
        ("job.set", "token:test", "vip"),
    ]


async def test_why_explains_a_job_that_waits(api: Api) -> None:
    job_id = (await submit(api)).json()["id"]
    answer = await api.send("GET", f"/api/v1/jobs/{job_id}/why", "admin.read")
    assert [each["code"] for each in answer.json()] == ["no_worker"]


def test_every_error_has_a_status_and_every_status_an_error() -> None:
    def below(kind: type[TrellisError]) -> set[type[TrellisError]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    errors = {each for each in below(TrellisError) if each.__module__ == "trellis.errors"}
    assert set(STATUSES) <= {each.code for each in errors}
    for each in errors:
        assert 400 <= status_of(each.__new__(each)) < 600


async def test_a_page_has_the_offsets_that_the_admin_api_knows(api: Api) -> None:
    for number in range(4):
        await submit(api, payload=number)
    pages = []
    offset: int | None = 0
    while offset is not None:
        query = f"/api/v1/jobs?type=invoice&limit=2&offset={offset}"
        page = (await api.send("GET", query, "admin.read")).json()
        assert (page["count"], page["offset"], page["limit"]) == (5, offset, 2)
        pages.append([each["payload"] for each in page["entries"]])
        offset = page["nextOffset"]
    assert pages == [[3, 2], [1, 0], [7]]
    beyond = (await api.send("GET", "/api/v1/jobs?offset=50", "admin.read")).json()
    assert (beyond["entries"], beyond["count"], beyond["nextOffset"]) == ([], 5, None)


async def test_a_payload_is_checked_against_the_deployed_contract(api: Api) -> None:
    service = Service("billing", api.service.url)

    @service.job
    async def pay(order: Order) -> None: ...

    @service.job
    async def wake() -> None: ...

    async with service, service.worker():
        pass  # a worker that starts deploys the contract

    async def send(payload: object) -> httpx.Response:
        body = {"type": "billing/pay", "payload": payload}
        return await api.send("POST", "/api/v1/jobs", "submit:billing", json=body)

    wrong = await send({"number": "seven", "lines": [{"amount": -1}]})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "payload_invalid")
    assert {each["path"] for each in wrong.json()["errors"]} == {
        "body.payload.number",
        "body.payload.lines.0.amount",
    }
    assert (await send(None)).status_code == 422
    assert await api.operator.find(service="billing").count() == 0
    assert (await send({"number": 7, "lines": [{"amount": 1}]})).status_code == 202
    assert (await submit_as(api, "billing/wake")).status_code == 202


async def submit_as(api: Api, name: str) -> httpx.Response:
    return await api.send("POST", "/api/v1/jobs", "submit:*", json={"type": name})


async def test_a_busy_key_is_a_conflict_that_names_the_holder(api: Api) -> None:
    service = Service("billing", api.service.url)

    @service.job(per_key=PerKey("order/{number}"))
    async def pay(order: Order) -> None: ...

    async with service:
        holder = await pay.create(Order(number=7))
    body = {"type": "billing/pay", "payload": {"number": 7, "lines": []}}
    answer = await api.send("POST", "/api/v1/jobs", "submit:billing", json=body)
    assert (answer.status_code, answer.json()["code"]) == (409, "key_busy")
    assert answer.json()["existing"] == holder.id


async def test_logs_are_read_from_a_line_on_and_followed_in_the_stream(api: Api) -> None:
    service = Service("billing", api.service.url)

    @service.job
    async def talk(job: ActiveJob[int]) -> None:
        for number in range(job.payload):
            job.log.info("line", number=number)

    async with service, service.worker():
        ref = await talk.create(5)
        await ref.wait("20s")
    path = f"/api/v1/jobs/{ref.id}/logs"
    lines = (await api.send("GET", f"{path}?after=2&limit=2", "admin.read")).json()
    assert [each["fields"]["number"] for each in lines] == [2, 3]
    answer = await api.send("GET", f"{path}?follow=true", "admin.read")
    assert answer.status_code == 303
    assert answer.next_request is not None
    assert answer.next_request.url.path == "/api/v1/stream"
    assert answer.next_request.url.params["jobs"] == ref.id
    outcomes = (await api.send("GET", f"/api/v1/jobs/{ref.id}/outcomes", "admin.read")).json()
    assert [each["state"] for each in outcomes] == ["completed"]


async def test_settings_are_shown_without_secrets(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_URL", "postgresql://ann:geheim@db/jobs")
    monkeypatch.setenv("TRELLIS_LEASE", "45s")
    answer = await api.send("GET", "/api/v1/settings", "admin.read")
    body = answer.json()
    assert "geheim" not in answer.text
    assert body["url"].endswith("@db/jobs")
    assert (body["engine"], body["worker"]["lease"]) == ("sqlite", "45s")
    assert "TRELLIS_LEASE" in body["origins"]["lease"]
    assert body["limits"]["streams"] == 500
