"""Callers that ask for too much or come too slowly: a clear answer, or a closed connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

from tests.server.conftest import Api
from tests.server.serving import ENOUGH, header_seconds, serving
from trellis import Service
from trellis.engines.http.protocol import PROTOCOL
from trellis.server import create_app
from trellis.server.limits import Limits, Requests


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """Return the URL of a store."""
    async with Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}") as service:
        return service.url


async def talk(port: int, text: str) -> bytes:
    """Send a text, stay, and return all that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text.encode())
        async with asyncio.timeout(ENOUGH):
            return await reader.read()
    finally:
        writer.close()


def test_a_bucket_fills_by_the_rate_and_each_caller_has_one() -> None:
    now = 0.0
    requests = Requests(Limits(rate=2, burst=3), clock=lambda: now)
    for _ in range(3):
        requests.take("a")
    with pytest.raises(HTTPException) as refused:
        requests.take("a")
    assert (refused.value.status_code, refused.value.headers) == (429, {"Retry-After": "1"})
    requests.take("b")
    now = 0.5
    requests.take("a")
    with pytest.raises(HTTPException):
        requests.take("a")
    now = 100.0
    for _ in range(3):
        requests.take("a")
    with pytest.raises(HTTPException):
        requests.take("a")


def test_idle_callers_are_forgotten_and_no_rate_means_no_limit() -> None:
    requests = Requests(Limits(rate=1, burst=1), clock=lambda: 0.0)
    for number in range(10_001):
        requests.take(str(number))
    requests.take("0")  # forgotten, so its bucket is full again
    unlimited = Requests(Limits(rate=0, burst=0), clock=lambda: 0.0)
    for _ in range(1000):
        unlimited.take("a")


async def test_too_many_requests_of_a_token_get_429_and_others_go_on(api: Api) -> None:
    app = create_app(engine=api.engine, limits=Limits(rate=0.001, burst=2))
    async with app.router.lifespan_context(app):
        limited = Api(app, api.engine, api.service)
        token, other = await api.token("admin.read"), await api.token("admin.read")
        answers = [await limited.send("GET", "/api/v1/jobs", token=token) for _ in range(3)]
        assert [each.status_code for each in answers] == [200, 200, 429]
        assert answers[-1].json()["code"] == "too_many_requests"
        assert int(answers[-1].headers["retry-after"]) > 0
        assert (await limited.send("GET", "/api/v1/jobs", token=other)).status_code == 200
        assert (await limited.send("GET", "/healthz")).status_code == 200


async def test_a_header_that_does_not_arrive_closes_the_connection(url: str) -> None:
    with header_seconds(0.2), serving(url) as server:
        whole = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        for sent in ("", "GET", whole):
            assert await talk(server.port, sent) == b"", sent
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{whole}\r\n".encode())
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /he")  # a second request on the same connection
        async with asyncio.timeout(ENOUGH):
            assert await reader.read() == b""
        writer.close()


async def test_a_body_that_does_not_arrive_gets_408(url: str) -> None:
    with serving(url, Limits(body_seconds=0.2), app={"no_auth": True}) as server:
        head = "POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        answer = await talk(server.port, f'{head}Content-Length: 1000\r\n\r\n{{"type":')
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"Nothing was changed" in answer


async def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_defect(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(url, app={"no_auth": True}) as server:
        path = "/api/v1/engine/now"
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nTrellis-Protocol: {PROTOCOL}\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f'{head}Content-Length: 1000\r\n\r\n{{"'.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        last = await talk(server.port, "GET /readyz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"ready" in last
    assert not caplog.records


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Content-Length: 99999999\r\n", 413),
        ("Content-Length: -1\r\n", 400),
        ("Content-Length: 1\r\nContent-Length: 2\r\n", 400),
        ("Transfer-Encoding: chunked\r\n", 411),
        ("X: a\r\n b\x00\r\n", 400),
    ],
)
async def test_what_no_client_sends_is_refused(url: str, head: str, status: int) -> None:
    with serving(url, app={"no_auth": True}) as server:
        start = "POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        answer = await talk(server.port, f"{start}{head}\r\n")
        assert answer.startswith(f"HTTP/1.1 {status}".encode()), answer


async def test_a_defect_is_answered_with_a_problem_and_the_usual_headers(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise RuntimeError("secret detail")

    api.app.add_api_route("/broken", broken)
    answer = await api.send("GET", "/broken")
    assert (answer.status_code, answer.json()["code"]) == (500, "defect")
    assert "secret detail" not in answer.text
    assert "secret detail" in caplog.text
    assert answer.headers["x-content-type-options"] == "nosniff"
