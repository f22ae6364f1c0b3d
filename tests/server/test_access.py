"""Every route has a scope; a caller without it is refused, and so is another site's page."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from tests.server.conftest import Api
from trellis.core.access import ADMIN_SCOPES
from trellis.server import create_app
from trellis.server.access import Needs
from trellis.server.limits import Limits

#: Routes that no dependency gives a scope: open ones, and those that check it themselves.
OPEN = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/login")}
SCOPES = (
    *ADMIN_SCOPES, "worker:shop", "submit:shop", "submit:other", "submit:table_maintenance"
)  # fmt: skip
CHECKED_INSIDE = {
    ("POST", "/api/v1/jobs"): ("submit:shop", "admin.mutate"),
    ("GET", "/api/v1/session"): SCOPES,
    ("POST", "/logout"): SCOPES,
    ("POST", "/api/jobs/claim"): ("worker:shop",),
    ("PUT", "/api/jobs/{job_id}/status"): ("worker:shop",),
    ("POST", "/api/jobs/{job_id}/logs"): ("worker:shop",),
    ("POST", "/api/workers/{worker_id}/heartbeat"): ("worker:shop",),
    ("DELETE", "/api/workers/{worker_id}"): ("worker:shop",),
    ("POST", "/tables/{db}/{table}/maintenance"): ("submit:table_maintenance", "admin.mutate"),
    # Each verb has its own scopes: tests/engines/http/test_access.py.
    ("POST", "/api/v1/engine/{verb}"): SCOPES,
}
#: Values for the parameters of paths.
VALUES = {"verb": "pause", "switch": "on", "service": "shop", "queue": "invoice"}
#: So that a stream is refused after the check of the scope and does not stay open.
QUERIES = {"/api/v1/stream": "?events=unknown"}


def all_routes(routes: Iterable[BaseRoute]) -> Iterator[APIRoute]:
    """Yield every route, also those of routers that FastAPI keeps apart."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif (router := getattr(route, "original_router", None)) is not None:
            yield from all_routes(router.routes)


def routes() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield every route: method, path and the scopes of which one is needed."""
    for route in all_routes(create_app().routes):
        for method in route.methods or ():
            needs = [
                each.call.scope for each in route.dependant.dependencies
                if isinstance(each.call, Needs)
            ]  # fmt: skip
            if (method, route.path) in OPEN:
                continue
            yield method, route.path, (*needs, *CHECKED_INSIDE.get((method, route.path), ()))


def a_path(path: str) -> str:
    for part in path.split("/"):
        if part.startswith("{"):
            path = path.replace(part, VALUES.get(part.strip("{}"), "unknown"))
    return path + QUERIES.get(path, "")


def test_the_list_of_routes_is_that_of_the_document() -> None:
    documented = create_app().openapi()["paths"]
    pairs = {(method.upper(), path) for path, methods in documented.items() for method in methods}
    #: The engines of remote programs speak it, of the same version.
    of_engines = {("POST", "/api/v1/engine/{verb}")}
    assert {(method, path) for method, path, _ in routes()} | OPEN == pairs | of_engines


def test_every_route_has_a_scope_or_is_named_as_open() -> None:
    assert [route for route in routes() if not route[2]] == []


async def test_every_route_refuses_callers_without_its_scope(api: Api) -> None:
    tokens = {scope: await api.token(scope) for scope in SCOPES}
    for (method, path, needed), scope in itertools.product(routes(), SCOPES):
        body = {"type": "shop/invoice", "payload": 1} if method == "POST" else None
        answer = await api.send(method, a_path(path), token=tokens[scope], json=body)
        expected = scope in needed
        assert (answer.status_code != 403) == expected, (method, path, scope, answer.text)


async def test_every_route_refuses_callers_without_a_valid_token(api: Api) -> None:
    revoked = await api.token("admin.read", "admin.mutate", "submit:*")
    await api.operator.tokens.revoke(revoked)
    wrong = [None, "", "trl_unknown", revoked, revoked[:-1] + ("x" if revoked[-1] != "x" else "y")]
    for (method, path, _), token in itertools.product(routes(), wrong):
        answer = await api.send(method, a_path(path), token=token, json={"type": "shop/invoice"})
        assert answer.status_code == 401, (method, path, token, answer.text)
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_an_expired_token_gives_no_access(api: Api) -> None:
    token = (await api.operator.tokens.create(["admin.read"], lifetime="1ms")).text
    while (await api.operator.tokens.find())[0].state == "valid":
        pass
    assert (await api.send("GET", "/api/v1/jobs", token=token)).status_code == 401


@pytest.mark.parametrize("place", ["queues?token={}", "queues?a=b&access_token={}", "jobs/{}"])
async def test_a_token_in_the_url_is_refused_with_what_to_do(api: Api, place: str) -> None:
    token = await api.token("admin.read")
    for text in (token, token.replace("_", "%5F", 1)):
        answer = await api.send("GET", f"/api/v1/{place.format(text)}", token=token)
        assert (answer.status_code, answer.json()["code"]) == (400, "token_in_url")
        assert "revoke" in answer.json()["detail"]
        assert token not in answer.text


async def test_a_request_for_another_host_is_refused(api: Api) -> None:
    for host in ("evil.example", "evil.example:8321", "127.0.0.1.evil.example", ""):
        answer = await api.send("GET", "/healthz", headers={"Host": host})
        assert (answer.status_code, answer.json()["code"]) == (421, "host_unknown")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1.evil.example"])
async def test_a_change_from_a_page_of_another_site_is_refused(api: Api, origin: str) -> None:
    answer = await api.send("POST", "/api/v1/drain/on", "admin.mutate", headers={"Origin": origin})
    assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")
    assert await api.operator.drain_history() == []


async def test_a_body_over_the_limit_is_refused(api: Api) -> None:
    answer = await api.send(
        "POST", "/api/v1/jobs", "submit:shop", content=b"x" * (Limits().body + 1)
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_every_answer_forbids_frames_scripts_and_caches(api: Api) -> None:
    for answer in (await api.send("GET", "/healthz"), await api.send("GET", "/api/v1/jobs")):
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
