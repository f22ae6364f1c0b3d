"""Browsers: one code opens one session, the cookie alone changes nothing, all servers know it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.server.conftest import BASE, Api
from trellis.engines.sqlite import SqliteEngine
from trellis.operations.logins import create_code
from trellis.server import create_app
from trellis.server.access import CSRF_HEADER

OWN = {"Origin": BASE}
COOKIE = "trellis_session_8321"


def browser_of(app: FastAPI) -> httpx.AsyncClient:
    """Return a client that keeps cookies."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE)


@pytest.fixture
async def browser(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that has logged in."""
    async with browser_of(api.app) as client:
        answer = await client.get(f"/login?code={await create_code(api.engine, 'ann')}")
        assert answer.status_code == 303
        yield client


async def guard_of(browser: httpx.AsyncClient) -> dict[str, str]:
    """Return the header that goes with changes."""
    return {CSRF_HEADER: (await browser.get("/api/v1/session")).json()["csrf"]}


async def test_a_login_reads_and_leads_to_a_page_that_says_who_one_is(
    api: Api, browser: httpx.AsyncClient
) -> None:
    assert (await browser.get("/api/v1/jobs")).json()["count"] == 1
    who = (await browser.get("/api/v1/session")).json()
    assert (who["actor"], set(who["scopes"])) == (
        "browser:ann",
        {"admin.read", "admin.mutate", "admin.stream"},
    )
    async with browser_of(api.app) as other:
        code = await create_code(api.engine, "ann")
        answer = await other.get(f"/login?code={code}", follow_redirects=True)
    assert answer.json()["actor"] == "browser:ann"


async def test_the_cookie_is_hidden_from_scripts_and_other_sites(api: Api) -> None:
    async with browser_of(api.app) as client:
        answer = await client.get(f"/login?code={await create_code(api.engine, 'ann')}")
        cookie = answer.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "max-age=43200"))
        assert "secure" not in cookie
    app = create_app(engine=api.engine, behind_proxy=True)
    async with app.router.lifespan_context(app), browser_of(app) as client:
        answer = await client.get(f"/login?code={await create_code(api.engine, 'ann')}")
        assert "secure" in answer.headers["set-cookie"].lower()


async def test_logins_at_two_servers_of_one_host_do_not_overwrite_each_other(
    api: Api, tmp_path: Path
) -> None:
    engine = SqliteEngine(tmp_path / "other.db")
    await engine.open()
    other = create_app(engine=engine)
    ports = {":8321": api.app, ":8322": other, "": api.app}
    mounts = {f"http://127.0.0.1{port}": httpx.ASGITransport(app) for port, app in ports.items()}
    async with other.router.lifespan_context(other), httpx.AsyncClient(mounts=mounts) as browser:
        for name, port, store in (("ann", ":8321", api.engine), ("eve", ":8322", engine),
                                  ("joe", "", api.engine)):  # fmt: skip
            code = await create_code(store, name)
            await browser.get(f"http://127.0.0.1{port}/login?code={code}")
        for name, port in (("ann", ":8321"), ("eve", ":8322"), ("joe", "")):
            who = await browser.get(f"http://127.0.0.1{port}/api/v1/session")
            assert who.json()["actor"] == f"browser:{name}"
    await engine.close()


async def test_a_code_opens_one_session_whoever_tries_it_at_the_same_time(api: Api) -> None:
    code = await create_code(api.engine, "ann")
    other = create_app(engine=api.engine)
    async with other.router.lifespan_context(other):
        answers = await asyncio.gather(
            *(_try(app, code) for app in (api.app, other) for _ in range(5))
        )
    assert sorted(answers) == [303] + [401] * 9


async def _try(app: FastAPI, code: str) -> int:
    async with browser_of(app) as client:
        return (await client.get(f"/login?code={code}")).status_code


async def test_a_wrong_revoked_or_expired_code_opens_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked = await create_code(api.engine, "ann")
    await api.operator.tokens.revoke(f"trl_{revoked}")
    monkeypatch.setattr("trellis.operations.logins.CODE_LIFETIME", 1)
    expired = await create_code(api.engine, "ann")
    token = (await api.token("admin.read")).removeprefix("trl_")
    for code in ("", "x", revoked, expired, token, f"{revoked[:-1]}*"):
        assert await _try(api.app, code) == 401, code


async def test_codes_and_sessions_are_no_tokens_and_tokens_no_sessions(
    api: Api, browser: httpx.AsyncClient
) -> None:
    code, session = await create_code(api.engine, "ann"), browser.cookies[COOKIE]
    for text in (f"trl_{code}", session):
        assert (await api.send("GET", "/api/v1/jobs", token=text)).status_code == 401
    cookie = {"Cookie": f"{COOKIE}={await api.token('admin.read')}"}
    assert (await api.send("GET", "/api/v1/jobs", headers=cookie)).status_code == 401


async def test_a_change_needs_the_origin_and_the_header(
    api: Api, browser: httpx.AsyncClient
) -> None:
    guard = await guard_of(browser)
    other_port = {"Origin": "http://127.0.0.1:9999"}
    for headers in ({}, OWN, guard, {**other_port, **guard}, {**OWN, CSRF_HEADER: "0" * 64}):
        answer = await browser.post("/api/v1/drain/on", headers=headers)
        assert answer.status_code == 403, headers
    assert await api.operator.drain_history() == []
    answer = await browser.post("/api/v1/drain/on", headers={**OWN, **guard})
    assert answer.status_code == 200
    assert (await api.operator.audit(action="drain"))[0].actor == "browser:ann"


async def test_the_header_of_another_session_does_not_help(
    api: Api, browser: httpx.AsyncClient
) -> None:
    async with browser_of(api.app) as other:
        await other.get(f"/login?code={await create_code(api.engine, 'eve')}")
        guard = await guard_of(other)
    answer = await browser.post("/api/v1/drain/on", headers={**OWN, **guard})
    assert answer.status_code == 403


async def test_a_logout_ends_the_session_on_every_server(
    api: Api, browser: httpx.AsyncClient
) -> None:
    cookie = {"Cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}
    other = create_app(engine=api.engine)
    async with other.router.lifespan_context(other), browser_of(other) as elsewhere:
        assert (await elsewhere.get("/api/v1/jobs", headers=cookie)).status_code == 200
        assert (await browser.post("/logout", headers=OWN)).status_code == 403
        guard = await guard_of(browser)
        answer = await browser.post("/logout", headers={**OWN, **guard})
        assert (answer.status_code, COOKIE in browser.cookies) == (204, False)
        assert (await elsewhere.get("/api/v1/jobs", headers=cookie)).status_code == 401


async def test_a_login_is_listed_and_ends_when_it_is_revoked(
    api: Api, browser: httpx.AsyncClient
) -> None:
    (session,) = [each for each in await api.operator.tokens.find() if "session" in each.scopes]
    await api.operator.tokens.revoke(session.id)
    assert (await browser.get("/api/v1/jobs")).status_code == 401
