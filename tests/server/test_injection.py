"""Texts that end a line, a header, a path or a value: no route takes them for anything but text."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from tests.server.conftest import Api
from tests.server.serving import Listener, serving
from tests.server.test_access import routes
from trellis.core.job import Relations
from trellis.core.policy import KeyPolicy
from trellis.engines.values import WorkerInfo
from trellis.testing.builders import a_job, a_keyed_job

#: Everything that an engine stores as a key, a tag, a tenant or the name of a worker.
STORABLE = (
    "a\r\nX-Injected: 1\r\n\r\n<script>alert(1)</script>",
    "../../../etc/passwd",
    "a/b?c=d&e#f;g",
    "%2e%2e%2f%00%0d%0a",
    "'; drop table trellis_job; --",
    '"\\{}$`|',
    "\u2028\u2029\u202e\x1b[31m\x7f\x01",
    "grün 日本 🦆 e\u0301",
    " leading and trailing ",
    "x" * 400,
)
EVERYTHING = ("admin.read", "admin.mutate", "admin.stream", "worker:shop", "submit:shop")


@pytest.mark.parametrize("text", [*STORABLE, "\0", "\x00\x00"], ids=lambda text: ascii(text)[:20])
async def test_no_parameter_of_a_path_is_more_than_text(api: Api, text: str) -> None:
    token = await api.token(*EVERYTHING)
    written = quote(text, safe="")
    for method, path, _ in routes():
        if "{" not in path or path.startswith("/api/v1/engine/"):
            continue
        for name in ("job_id", "batch_id", "service", "queue", "name", "worker", "worker_id",
                     "db", "table", "verb", "switch"):  # fmt: skip
            path = path.replace(f"{{{name}}}", written)  # noqa: PLW2901 - step by step
        answer = await api.send(method, path, token=token, json={})
        assert 400 <= answer.status_code < 500, (method, path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert "x-injected" not in answer.headers
        assert answer.json()["status"] == answer.status_code


@pytest.mark.parametrize("text", STORABLE, ids=lambda text: ascii(text)[:20])
async def test_every_text_that_can_be_stored_is_found_and_shown_as_it_is(
    api: Api, text: str
) -> None:
    token = await api.token(*EVERYTHING)
    keyed = a_keyed_job(text, KeyPolicy("{id}", active=1), type="keyed")
    tagged = a_job(tags=(("tenant", text),), relations=Relations(tenant=text))
    await api.engine.create([keyed, tagged])
    for word, value, new in (("key", text, keyed), ("tag", f"tenant={text}", tagged),
                             ("tenant", text, tagged)):  # fmt: skip
        answer = await api.send("GET", "/api/v1/jobs", token=token, params={word: value})
        (found,) = answer.json()["entries"]
        assert (found["id"], found["key"], found["tenant"]) == (
            new.id, new.key, new.relations and new.relations.tenant,
        )  # fmt: skip
    keys = (await api.send("GET", "/api/v1/keys", token=token)).json()
    assert [each["key"] for each in keys] == [text]
    metrics = await api.send("GET", "/metrics", token=token)
    assert metrics.status_code == 200


@pytest.mark.parametrize("text", STORABLE, ids=lambda text: ascii(text)[:20])
async def test_reasons_and_names_of_workers_reach_the_audit_as_they_are(
    api: Api, text: str
) -> None:
    token = await api.token("admin.read", "admin.mutate")
    await api.engine.open_session(WorkerInfo(text, "host", 1), 60_000_000)
    names = [
        each["name"] for each in (await api.send("GET", "/api/v1/workers", token=token)).json()
    ]
    assert names == [text]
    answer = await api.send("POST", "/api/v1/drain/on", token=token, json={"reason": text})
    assert answer.json()["reason"] == text
    (entry,) = (await api.send("GET", "/api/v1/audit?action=drain", token=token)).json()
    assert entry["reason"] == text


async def test_a_text_in_the_stream_ends_no_line_and_starts_no_event(api: Api) -> None:
    listener = Listener(await api.token("admin.stream"), "after=s0.0&queue=invoices")
    new = [a_job(tags=(("text", text),)) for text in STORABLE]
    await api.engine.create(new)
    with serving(api.service.url) as running:
        await listener.listen_for(running.port, "change", len(new))
    assert [each["tags"]["text"] for each in listener.of("change")] == list(STORABLE)
    assert {each.name for each in listener.events} == {"ready", "change"}
    assert all(line.startswith((":", "retry")) for line in listener.said)


async def test_an_idempotency_key_is_compared_as_it_is(api: Api) -> None:
    token = await api.token("submit:shop")
    body = {"type": "shop/invoice", "payload": 1}
    ids = []
    for key in ("a b", "a  b", "a/b", "a%2Fb", '"a"', "a;b"):
        answer = await api.send(
            "POST", "/api/v1/jobs", token=token, json=body, headers={"Idempotency-Key": key}
        )
        ids.append(answer.json()["id"])
    assert len({*ids}) == len(ids), json.dumps(ids)
