"""The application inside another program: below a prefix, with that program's lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from tests.server.conftest import BASE, Api
from trellis import __version__
from trellis.engines.http.protocol import PATH, PROTOCOL, PROTOCOL_HEADER
from trellis.operations.logins import create_code
from trellis.server import create_app
from trellis.server.access import CSRF_HEADER


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of a program that has the API below /trellis."""
    mounted = create_app(engine=api.engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with mounted.router.lifespan_context(mounted):
            yield

    program = FastAPI(lifespan=lifespan)
    program.mount("/trellis", mounted)

    @program.get("/own")
    async def own() -> str:
        return "own"

    async with (
        program.router.lifespan_context(program),
        httpx.AsyncClient(transport=httpx.ASGITransport(program), base_url=BASE) as client,
    ):
        yield client


async def test_a_job_that_is_submitted_is_found_at_its_location(
    api: Api, client: httpx.AsyncClient
) -> None:
    client.headers["Authorization"] = f"Bearer {await api.token('submit:shop', 'admin.read')}"
    made = await client.post("/trellis/api/v1/jobs", json={"type": "shop/invoice", "payload": 7})
    assert made.status_code == 202
    found = await client.get(made.headers["location"])
    assert (found.status_code, found.json()["id"]) == (200, made.json()["id"])


async def test_a_login_stays_below_the_prefix(api: Api, client: httpx.AsyncClient) -> None:
    code = await create_code(api.engine, "ann")
    answer = await client.get(f"/trellis/login?code={code}", follow_redirects=True)
    assert (answer.status_code, answer.json()["actor"]) == (200, "browser:ann")
    (cookie,) = client.cookies.jar
    assert cookie.path == "/trellis"
    guard = {"Origin": BASE, CSRF_HEADER: answer.json()["csrf"]}
    assert (await client.post("/trellis/api/v1/drain/on", headers=guard)).status_code == 200
    assert (await client.post("/trellis/logout", headers=guard)).status_code == 204
    assert (await client.get("/trellis/api/v1/session")).status_code == 401


async def test_remote_programs_reach_it(api: Api, client: httpx.AsyncClient) -> None:
    client.headers["Authorization"] = f"Bearer {await api.token('worker:shop')}"
    headers = {PROTOCOL_HEADER: str(PROTOCOL)}
    answer = await client.post(f"/trellis{PATH}hello", json={}, headers=headers)
    assert (answer.status_code, answer.json()[0]) == (200, __version__)


async def test_the_routes_of_the_program_have_its_own_rules(client: httpx.AsyncClient) -> None:
    answer = await client.get("/own", headers={"Host": "any.example"})
    assert (answer.status_code, answer.json()) == (200, "own")
    assert "content-security-policy" not in answer.headers
    refused = await client.get("/trellis/healthz", headers={"Host": "any.example"})
    assert refused.status_code == 421


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/trellis/nothing", 404, "openapi.json"),
        ("DELETE", "/trellis/api/v1/queues", 405, "Allow"),
    ],
)
async def test_a_request_without_a_route_is_told_where_the_routes_are(
    client: httpx.AsyncClient, method: str, path: str, status: int, says: str
) -> None:
    answer = await client.request(method, path)
    assert (answer.status_code, says in answer.json()["detail"]) == (status, True)


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        ('{"type": "shop/invoice"}', "application/x-www-form-urlencoded", "Content-Type"),
        ('{"type": "shop/invoice"}', None, "Content-Type"),
        ('{"type": ', "application/json", "not JSON at character 9"),
        ("[1]", "application/json", "body"),
    ],
)
async def test_a_body_that_cannot_be_read_is_told_why(
    api: Api, client: httpx.AsyncClient, content: str, kind: str | None, says: str
) -> None:
    headers = {"Authorization": f"Bearer {await api.token('submit:shop')}"}
    headers |= {} if kind is None else {"Content-Type": kind}
    answer = await client.post("/trellis/api/v1/jobs", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")
    assert says in answer.json()["detail"]
    assert answer.json()["errors"][0]["path"] == "body"
