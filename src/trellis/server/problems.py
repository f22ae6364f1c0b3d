"""Errors as RFC 9457 problems: one table from the stable codes of `trellis.errors` to statuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trellis.errors import AdmissionError, TrellisError

#: The media type of a problem.
MEDIA_TYPE: Final = "application/problem+json"
#: Seconds after which a caller may try again what could not be done now.
_RETRY_AFTER: Final = "5"
#: What is said instead of the words of the router.
_ROUTING: Final = {
    HTTPStatus.NOT_FOUND.phrase: (
        "There is no such route. /api/v1/openapi.json describes all of them."
    ),
    HTTPStatus.METHOD_NOT_ALLOWED.phrase: (
        "The route has no such method; Allow has those that it has. /api/v1/openapi.json "
        "describes all routes. Nothing was changed."
    ),
}
_logger = logging.getLogger(__name__)

#: The status of every error, by its code or by the code of its nearest base class.
STATUSES: Final = {
    "trellis": HTTPStatus.INTERNAL_SERVER_ERROR,
    "configuration": HTTPStatus.UNPROCESSABLE_ENTITY,
    "unknown_service": HTTPStatus.NOT_FOUND,
    "unknown_job_type": HTTPStatus.NOT_FOUND,
    "not_admitted": HTTPStatus.CONFLICT,
    "payload_invalid": HTTPStatus.UNPROCESSABLE_ENTITY,
    "payload_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "key_unresolved": HTTPStatus.UNPROCESSABLE_ENTITY,
    "unknown_prerequisite": HTTPStatus.UNPROCESSABLE_ENTITY,
    "draining": HTTPStatus.SERVICE_UNAVAILABLE,
    "job": HTTPStatus.CONFLICT,
    "job_not_found": HTTPStatus.NOT_FOUND,
    "wait_timeout": HTTPStatus.GATEWAY_TIMEOUT,
    "lock_busy": HTTPStatus.CONFLICT,
    "lock_lost": HTTPStatus.CONFLICT,
    "not_found": HTTPStatus.NOT_FOUND,
    "cursor_invalid": HTTPStatus.UNPROCESSABLE_ENTITY,
    "cursor_expired": HTTPStatus.GONE,
    "contract_not_accepted": HTTPStatus.CONFLICT,
    "move_refused": HTTPStatus.CONFLICT,
    "unstorable": HTTPStatus.UNPROCESSABLE_ENTITY,
    "engine": HTTPStatus.INTERNAL_SERVER_ERROR,
    "engine_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "capability_missing": HTTPStatus.NOT_IMPLEMENTED,
}


def status_of(error: TrellisError) -> HTTPStatus:
    """Return the status of an error."""
    for kind in type(error).__mro__:
        code = vars(kind).get("code")
        if code in STATUSES:
            return STATUSES[code]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **more: object,
) -> JSONResponse:
    """Return an RFC 9457 answer; `code` is stable, `detail` is for people."""
    phrase = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": phrase, "status": status, "detail": detail}
    return JSONResponse(
        {**body, "code": code, **more}, status, headers=headers, media_type=MEDIA_TYPE
    )


def install(app: FastAPI) -> None:
    """Answer every error of the application with a problem."""
    app.add_exception_handler(TrellisError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_gone)


async def _on_error(_: Request, error: Exception) -> JSONResponse:
    error = cast("TrellisError", error)
    status = status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.SERVICE_UNAVAILABLE:
        _logger.error("A request failed: %s", error)
    headers = {"Retry-After": _RETRY_AFTER} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    existing = error.existing if isinstance(error, AdmissionError) else None
    more = {} if existing is None else {"existing": existing}
    return problem(status, error.code, str(error), headers=headers, **more)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    fields = [_field(each) for each in cast("RequestValidationError", error).errors()]
    if [each["path"] for each in fields] == ["body"] and not _is_json(request):
        sent = request.headers.get("content-type", "none")[:100]
        message = f"it is read as JSON only with Content-Type: application/json, and has {sent}"
        fields = [{"path": "body", "message": message}]
    return invalid(fields, "request_invalid")


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def invalid(fields: Sequence[Mapping[str, str]], code: str) -> JSONResponse:
    """Return the answer to a request with wrong fields, each with its path and a message."""
    detail = "; ".join(f"{each['path']}: {each['message']}" for each in fields)
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return problem(status, code, f"{detail}. Nothing was changed.", errors=list(fields))


def _field(error: Mapping[str, Any]) -> dict[str, str]:
    location: Sequence[object] = error["loc"]
    if error["type"] == "json_invalid":
        why = error.get("ctx", {}).get("error", "")
        return {"path": "body", "message": f"it is not JSON at character {location[-1]}: {why}"}
    return {"path": ".".join(map(str, location)), "message": str(error["msg"])}


async def _on_http(_: Request, error: Exception) -> JSONResponse:
    error = cast("HTTPException", error)
    status = HTTPStatus(error.status_code)
    detail = _ROUTING.get(error.detail, error.detail)
    return problem(status, status.name.lower(), detail, headers=error.headers)


async def _on_gone(_: Request, __: Exception) -> JSONResponse:
    """Return the answer that a client which left before its body was complete does not get."""
    status = HTTPStatus.BAD_REQUEST
    return problem(status, "body_incomplete", "The body is incomplete. Nothing was changed.")


def defect(request: Request, error: Exception) -> JSONResponse:
    """Log an error that no part of the server has foreseen; return the answer."""
    _logger.error("A defect in %s %s", request.method, request.url.path, exc_info=error)
    detail = "The server failed. Its log has the reason; the request may have been carried out."
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "defect", detail)
