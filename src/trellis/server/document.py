"""The OpenAPI document: what FastAPI writes, with every problem that a route can answer with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from trellis.server.access import COOKIE
from trellis.server.problems import MEDIA_TYPE

#: Routes that need neither a token nor a login.
_OPEN: Final = frozenset({"/healthz", "/readyz", "/login"})
_PROBLEM: Final = {
    "type": "object",
    "description": "RFC 9457; `code` is stable, `detail` is for people.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "existing": {"type": "string", "description": "The job that is in the way."},
        "count": {"type": "integer", "description": "How many jobs match now."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path", "message"],
                "properties": {"path": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
_SECURITY: Final = {
    "token": {"type": "http", "scheme": "bearer"},
    "login": {"type": "apiKey", "in": "cookie", "name": f"{COOKIE}_8321"},
}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    document["components"]["securitySchemes"] = _SECURITY
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _describe(path, method, operation)
    return document


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    responses: dict[str, Any] = operation["responses"]
    for status in sorted({*_statuses(path, method, operation)}):
        responses[str(int(status))] = _problem(status)
    if path not in _OPEN:
        operation["security"] = [{"token": []}, {"login": []}]


def _statuses(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[HTTPStatus]:
    """Yield with what problems an operation can answer."""
    yield HTTPStatus.MISDIRECTED_REQUEST
    yield HTTPStatus.BAD_REQUEST
    yield HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    yield HTTPStatus.LENGTH_REQUIRED
    if path != "/healthz":
        yield HTTPStatus.SERVICE_UNAVAILABLE
    if path == "/login":
        yield HTTPStatus.UNAUTHORIZED
    if path in {"/healthz", "/readyz"}:
        return
    yield HTTPStatus.UNPROCESSABLE_ENTITY
    if path not in _OPEN:
        yield from (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
    if "{" in path or method == "post" or path == "/api/v1/stream":
        yield HTTPStatus.NOT_FOUND
    if method != "get" or "{" in path or path in {"/api/v1/audit", "/api/v1/stream"}:
        yield HTTPStatus.CONFLICT  # also of an id that is the beginning of several
    if "requestBody" in operation:
        yield HTTPStatus.REQUEST_TIMEOUT


def _problem(status: HTTPStatus) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": status.phrase,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        seconds = {"schema": {"type": "string"}, "description": "Seconds until a new try."}
        answer["headers"] = {"Retry-After": seconds}
    return answer
