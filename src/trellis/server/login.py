"""Browsers: log in with a one-time code, see who one is, log out."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from trellis.core.access import forgery_guard
from trellis.core.durations import SECOND, to_datetime
from trellis.engines.audit import By
from trellis.operations.logins import SESSION_LIFETIME, open_session
from trellis.server.access import Known, cookie_of

router: Final = APIRouter(tags=["session"])


class SessionView(BaseModel):
    """The caller of a request."""

    actor: str
    scopes: list[str]
    #: What a page sends as X-Trellis-CSRF with requests that change something; None for tokens.
    csrf: str | None = None
    expires_at: datetime | None = None


@router.get(
    "/login",
    status_code=HTTPStatus.SEE_OTHER,
    response_class=RedirectResponse,
    responses={303: {"description": "Logged in; the session is in a cookie."}},
)
async def login(request: Request, code: Annotated[str, Query(max_length=100)]) -> Response:
    """Open a session with the one-time code that `trellis serve` has written."""
    state = request.app.state
    session = await open_session(state.operator.engine, code)
    if session is None:
        raise HTTPException(
            HTTPStatus.UNAUTHORIZED,
            "The code was used or has expired. Get a new address with: trellis tokens login",
        )
    answer = RedirectResponse(state.home, HTTPStatus.SEE_OTHER)
    answer.set_cookie(
        cookie_of(request),
        str(session.text),
        max_age=SESSION_LIFETIME // SECOND,
        path=request.scope.get("root_path") or "/",
        secure=state.is_encrypted or request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


@router.get("/api/v1/session")
async def session(caller: Known) -> SessionView:
    """Return who the caller is, and for a browser what it sends with changes."""
    found = caller.session
    if found is None:
        return SessionView(actor=caller.actor, scopes=list(caller.scopes))
    return SessionView(
        actor=caller.actor,
        scopes=list(caller.scopes),
        csrf=forgery_guard(found.text),
        expires_at=to_datetime(found.record.expires_at),
    )


@router.post("/logout", status_code=HTTPStatus.NO_CONTENT)
async def logout(request: Request, response: Response, caller: Known) -> None:
    """End the session of a browser on every server."""
    if caller.session is not None:
        by = By(caller.actor, "logged out")
        await request.app.state.operator.engine.revoke_token(caller.session.record.id, by)
    response.delete_cookie(cookie_of(request), path=request.scope.get("root_path") or "/")
