"""Many jobs at once: previewed, confirmed by their number, and refused when it has changed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.conftest import Api
from trellis.server import bulk


async def act(api: Api, **body: Any) -> httpx.Response:  # noqa: ANN401 - JSON
    return await api.send("POST", "/api/v1/jobs/actions", "admin.mutate", json=body)


async def create(api: Api, number: int) -> None:
    for payload in range(number):
        body = {"type": "shop/invoice", "payload": payload, "tags": {"run": "a"}}
        await api.send("POST", "/api/v1/jobs", "submit:shop", json=body)


async def test_a_preview_counts_shows_and_changes_nothing(api: Api) -> None:
    await create(api, 12)
    answer = await act(api, verb="cancel", filter={"tag": {"run": "a"}}, dry_run=True)
    assert (answer.json()["count"], len(answer.json()["sample"])) == (12, 10)
    assert await api.operator.find(state="cancelled").count() == 0


async def test_the_number_of_the_preview_confirms(api: Api) -> None:
    await create(api, 3)
    which = {"tag": {"run": "a"}}
    answer = await act(api, verb="cancel", filter=which, expected=3, reason="wrong run")
    effect = answer.json()
    assert (effect["done"], effect["refused"], len(effect["ids"])) == (3, 0, 3)
    assert await api.operator.find(state="cancelled").count() == 3
    entries = await api.operator.audit(action="job.cancel")
    assert {(each.actor, each.reason) for each in entries} == {("token:test", "wrong run")}


async def test_another_number_of_jobs_changes_nothing(api: Api) -> None:
    await create(api, 3)
    answer = await act(api, verb="cancel", filter={"state": "pending"}, expected=3)
    assert (answer.status_code, answer.json()["code"]) == (409, "selection_changed")
    assert answer.json()["count"] == 4
    assert await api.operator.find(state="cancelled").count() == 0


@pytest.mark.parametrize(
    "body",
    [
        {"verb": "cancel"},
        {"verb": "cancel", "filter": {}, "expected": 1},
        {"verb": "cancel", "filter": {"state": "pending"}},
        {"verb": "cancel", "filter": {"state": "pending"}, "ids": ["x"], "expected": 1},
        {"verb": "cancel", "filter": {"stat": "pending"}, "dry_run": True},
        {"verb": "cancel", "filter": {"state": "done"}, "dry_run": True},
        {"verb": "explode", "ids": ["x"]},
        {"verb": "set", "ids": ["01J00000000000000000000000"]},
    ],
)
async def test_what_is_not_clear_is_refused(api: Api, body: dict[str, Any]) -> None:
    answer = await act(api, **body)
    assert answer.status_code == 422, answer.text
    assert await api.operator.find(state="cancelled").count() == 0


async def test_named_jobs_need_no_number_and_refusals_are_named(api: Api) -> None:
    (job,) = [each async for each in api.operator.find()]
    missing = "01J00000000000000000000000"
    effect = (await act(api, verb="replay", ids=[job.id, missing])).json()
    assert (effect["done"], effect["refused"], effect["missing"]) == (0, 1, 1)
    assert effect["refusals"][0]["id"] == job.id


async def test_every_verb_is_applied(api: Api) -> None:
    (job,) = [each async for each in api.operator.find()]
    done = {}
    for verb, more in (
        ("set", {"priority": 2}),
        ("set", {"queue": "other"}),
        ("clone", {}),
        ("cancel", {}),
        ("delete", {}),
    ):
        done[verb] = (await act(api, verb=verb, ids=[job.id], **more)).json()["done"]
    assert done == dict.fromkeys(("set", "clone", "cancel", "delete"), 1)
    for verb in ("retry", "replay", "dismiss"):
        assert (await act(api, verb=verb, filter={"state": verb_state(verb)}, expected=0)).json()[
            "done"
        ] == 0


def verb_state(verb: str) -> str:
    """Return the state that a verb is for."""
    return "failed" if verb == "retry" else "dead"


async def test_more_jobs_than_one_request_changes_are_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST", 2)
    await create(api, 3)
    answer = await act(api, verb="cancel", filter={"tag": {"run": "a"}}, expected=3)
    assert (answer.status_code, "Narrow the filter" in answer.json()["detail"]) == (422, True)
    assert await api.operator.find(state="cancelled").count() == 0
