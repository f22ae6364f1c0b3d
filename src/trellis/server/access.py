"""Who calls, and what the caller may do: tokens, scopes, and the checks of every request.

A program is known by a bearer token. A browser that has logged in is known by a cookie, which is
not enough to change something: a page of another site could send it, but not the header that goes
with it. Each route names the scope it needs, so that a test can list all routes with their scopes.
Requests for a host that this server is not called by are refused: a page of another site could
otherwise reach a server on the same machine through a name that it controls. For the same reason a
request that changes something must not come from a page of another site.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from fastapi import Depends, Request, Response
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trellis.core.access import (
    ADMIN_SCOPES,
    ALL_SERVICES,
    MUTATE,
    READ,
    SERVICE_SCOPES,
    SESSION,
    allows,
    forgery_guard,
    has_token,
)
from trellis.engines.http import protocol
from trellis.errors import EngineError
from trellis.operations.logins import Session, find_session
from trellis.operations.operator import Operator
from trellis.server.limits import Limits
from trellis.server.problems import defect, problem

#: The names of this machine for itself.
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_EVERYTHING: Final = (*ADMIN_SCOPES, *(f"{kind}:{ALL_SERVICES}" for kind in SERVICE_SCOPES))
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: The cookie of a browser's session (see `cookie_of`), and the header that goes with changes.
COOKIE: Final = "trellis_session"
CSRF_HEADER: Final = "X-Trellis-CSRF"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever a request comes from, as a token says."""

    #: For the journal and the audit.
    actor: str
    scopes: tuple[str, ...]
    #: The id of its token, by which its requests and streams are counted; "": it needs none.
    token: str
    #: The login of a browser.
    session: Session | None = None


async def caller_of(request: Request) -> Caller:
    """Return the caller; raise 401 without a valid token, 429 after too many requests."""
    caller = await _find_caller(request)
    request.app.state.requests.take(caller.token)
    request.state.caller = caller
    return caller


async def has_access(request: Request, needed: str) -> bool:
    """Return whether the caller of a request that goes on still has this scope."""
    try:
        return allows((await _find_caller(request)).scopes, needed)
    except HTTPException:
        return False
    except EngineError:  # the store is away: access is decided when it answers
        return True


async def _find_caller(request: Request) -> Caller:
    if request.app.state.is_open:
        return Caller("http", _EVERYTHING, "")
    given = request.headers.get("authorization", "")
    cookie = request.cookies.get(cookie_of(request))
    if not given and cookie is not None:
        return await _find_browser(request, cookie)
    kind, _, text = given.partition(" ")
    reads = request.app.state.token_reads
    token = await reads.find(text.strip()) if kind.lower() == "bearer" else None
    if token is None:
        raise HTTPException(
            HTTPStatus.UNAUTHORIZED,
            "Send a valid token: Authorization: Bearer trl_... Create one with: trellis tokens "
            "create SCOPE",
            {"WWW-Authenticate": 'Bearer realm="trellis"'},
        )
    return Caller(f"token:{token.name or token.id}", token.scopes, token.id)


def cookie_of(request: Request) -> str:
    """Return the name of the cookie of a login.

    It has the port by which the browser knows the server, because browsers send a cookie to every
    port of a host: the login at one server would otherwise overwrite that at another.
    """
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdecimal() else COOKIE


async def _find_browser(request: Request, cookie: str) -> Caller:
    found = await find_session(request.app.state.operator.engine, cookie)
    if found is None:
        raise HTTPException(
            HTTPStatus.UNAUTHORIZED,
            "The login has ended. Get a new address with: trellis tokens login",
            {"WWW-Authenticate": 'Bearer realm="trellis"'},
        )
    if request.method not in SAFE_METHODS:
        origin = urlsplit(request.headers.get("origin", "")).netloc
        sent = request.headers.get(CSRF_HEADER, "")
        if origin != request.headers.get("host") or not compare_digest(
            sent.encode(), forgery_guard(found.text).encode()
        ):
            raise HTTPException(
                HTTPStatus.FORBIDDEN,
                f"A change by a browser needs the Origin of this server and {CSRF_HEADER} with "
                "csrf of /api/v1/session. Nothing was changed.",
            )
    record = found.record
    scopes = tuple(each for each in record.scopes if each != SESSION)
    return Caller(f"browser:{record.name}", scopes, record.id, found)


def path_of(request: Request, route: str, **parameters: str) -> str:
    """Return the path of a route, below the prefix at which this application is mounted."""
    return below_mount(request, request.app.url_path_for(route, **parameters))


def below_mount(request: Request, path: str) -> str:
    """Return a path of this application, below the prefix at which it is mounted."""
    return f"{request.scope.get('root_path', '')}{path}"


def check_scope(caller: Caller, needed: str) -> None:
    """Raise 403 unless the caller has this scope."""
    if not allows(caller.scopes, needed):
        raise HTTPException(HTTPStatus.FORBIDDEN, f"This needs a token with the scope {needed}.")


class Needs:
    """A dependency of a route: the operator's API in the name of a caller with this scope."""

    def __init__(self, scope: str) -> None:
        #: Read by the test that lists routes and scopes.
        self.scope = scope

    async def __call__(self, request: Request) -> Operator:
        """Return the operator's API; raise 401 or 403."""
        caller = await caller_of(request)
        check_scope(caller, self.scope)
        return Operator(request.app.state.operator.engine, actor=caller.actor)


Reader = Annotated[Operator, Depends(Needs(READ))]
Changer = Annotated[Operator, Depends(Needs(MUTATE))]
Known = Annotated[Caller, Depends(caller_of)]


class Guard:
    """Checks host, origin and size of every request, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], limits: Limits) -> None:
        self._app = app
        self._allowed = frozenset(map(str.lower, hosts)) | LOOPBACK
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        refusal = _refusal(request, self._allowed, self._limits)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, _in_time(receive, self._limits.body_seconds), send_guarded)
        except Exception as error:
            if has_begun:
                raise
            await defect(request, error)(scope, receive, send_guarded)


def _in_time(receive: Receive, seconds: float) -> Receive:
    """Return the same, with an end to the wait for a body."""
    until = asyncio.get_running_loop().time() + seconds
    is_complete = False

    async def receive_in_time() -> Message:
        nonlocal is_complete
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT,
                f"The body did not arrive within {seconds:g} seconds. Nothing was changed.",
                {"Connection": "close"},
            ) from None
        is_complete = not message.get("more_body", False)
        return message

    return receive_in_time


def _refusal(request: Request, allowed: frozenset[str], limits: Limits) -> Response | None:
    host = name_of(request.headers.get("host", ""))
    if host not in allowed:
        return problem(
            HTTPStatus.MISDIRECTED_REQUEST,
            "host_unknown",
            f"This server does not answer for the host {host!r}. Name it with --host-name.",
        )
    if request.method not in SAFE_METHODS:
        origin = request.headers.get("origin")
        if origin is not None and name_of(urlsplit(origin).netloc) not in allowed:
            return problem(
                HTTPStatus.FORBIDDEN, "origin_refused", "A page of another site sent this request."
            )
    if has_token(unquote(f"{request.url.path}?{request.url.query}")):
        return problem(
            HTTPStatus.BAD_REQUEST,
            "token_in_url",
            "A token in a URL ends up in logs and histories: revoke this one, and send a new one "
            "in the header: Authorization: Bearer trl_...",
        )
    return _refused_body(request, limits.body)


def _refused_body(request: Request, limit: int) -> Response | None:
    length = request.headers.get("content-length", "0")
    if protocol.PATH in request.url.path:
        limit = protocol.BODY_LIMIT
    if not length.isdecimal() or int(length) > limit:
        return problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "body_too_large",
            f"The body may have {limit:,} bytes. Nothing was changed.",
        )
    if "chunked" in request.headers.get("transfer-encoding", "").lower():
        return problem(
            HTTPStatus.LENGTH_REQUIRED, "length_required", "Send the body with Content-Length."
        )
    return None


def name_of(netloc: str) -> str:
    """Return the name in a host header without its port."""
    name = netloc.lower()
    return name.rpartition(":")[0] if name.rpartition(":")[2].isdecimal() else name
