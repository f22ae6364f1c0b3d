"""Who calls, and what the caller may do: tokens, scopes, and the checks of every request.

A caller is known by a bearer token and by nothing else. Each route names the scope it needs, so
that a test can list all routes with their scopes. Requests for a host that this server is not
called by are refused: a page of another site could otherwise reach a server on the same machine
through a name that it controls. For the same reason a request that changes something must not come
from a page of another site.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from trellis.core.access import ADMIN_SCOPES, ALL_SERVICES, MUTATE, READ, SERVICE_SCOPES, allows
from trellis.operations.operator import Operator
from trellis.operations.tokens import find_token
from trellis.server.problems import problem

#: The names of this machine for itself.
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
#: The most bytes of a request's body; the payload limit of a job is checked when it is created.
BODY_LIMIT: Final = 2 * 1024 * 1024
_EVERYTHING: Final = (*ADMIN_SCOPES, *(f"{kind}:{ALL_SERVICES}" for kind in SERVICE_SCOPES))
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever a request comes from, as a token says."""

    #: For the journal and the audit.
    actor: str
    scopes: tuple[str, ...]
    #: Whose requests and streams are counted together.
    key: str


async def caller_of(request: Request) -> Caller:
    """Return the caller; raise 401 without a valid token."""
    if request.app.state.is_open:
        return Caller("http", _EVERYTHING, "http")
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    engine = request.app.state.operator.engine
    token = await find_token(engine, text.strip()) if kind.lower() == "bearer" else None
    if token is None:
        raise HTTPException(
            HTTPStatus.UNAUTHORIZED,
            "Send a valid token: Authorization: Bearer trl_... Create one with: trellis tokens "
            "create SCOPE",
            {"WWW-Authenticate": 'Bearer realm="trellis"'},
        )
    return Caller(f"token:{token.name or token.id}", token.scopes, token.id)


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


def guard(app: FastAPI, hosts: Iterable[str]) -> None:
    """Check host, origin and size of every request, and add headers to every answer."""
    allowed = frozenset(map(str.lower, hosts)) | LOOPBACK

    @app.middleware("http")
    async def check(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = _refusal(request, allowed) or await call(request)
        for name, value in _HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer


def _refusal(request: Request, allowed: frozenset[str]) -> Response | None:
    host = _name_of(request.headers.get("host", ""))
    if host not in allowed:
        return problem(
            HTTPStatus.MISDIRECTED_REQUEST,
            "host_unknown",
            f"This server does not answer for the host {host!r}. Name it with --host-name.",
        )
    if request.method not in _SAFE_METHODS:
        origin = request.headers.get("origin")
        if origin is not None and _name_of(urlsplit(origin).netloc) not in allowed:
            return problem(
                HTTPStatus.FORBIDDEN, "origin_refused", "A page of another site sent this request."
            )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > BODY_LIMIT:
        return problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "body_too_large",
            f"The body may have {BODY_LIMIT:,} bytes. Nothing was changed.",
        )
    if "chunked" in request.headers.get("transfer-encoding", "").lower():
        return problem(
            HTTPStatus.LENGTH_REQUIRED, "length_required", "Send the body with Content-Length."
        )
    return None


def _name_of(netloc: str) -> str:
    """Return the name in a host header without its port."""
    name = netloc.lower()
    return name.rpartition(":")[0] if name.rpartition(":")[2].isdecimal() else name
