"""Sending one request to a server, and the errors that it may lead to.

A request that never reached the server raises `EngineUnavailable`. One whose reply was lost raises
`OutcomeUnknown` if it may have changed something. A problem of the server becomes the error with
its code.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from trellis.engines.calls import Verb
from trellis.engines.http.address import TOKEN, ServerAddress
from trellis.engines.http.protocol import (
    PATH,
    POLL,
    PROTOCOL,
    PROTOCOL_HEADER,
    READS,
    VERSION_HEADER,
)
from trellis.errors import (
    AccessDenied,
    AddressUnusable,
    AdmissionError,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    TrellisError,
    VersionMismatch,
)

#: How long to wait for a connection, and for an answer, in seconds.
_CONNECT: Final = 10.0
_ANSWER: Final = 60.0
_TIMEOUT: Final = httpx.Timeout(POLL + _ANSWER, connect=_CONNECT).as_dict()
#: An unused connection is closed before servers and proxies close it, which is 5 s at the least.
_KEEP_ALIVE: Final = 4.0
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Transport:
    """The connections to one server."""

    def __init__(self, address: ServerAddress, version: str) -> None:
        self._url = address.url
        self._version = version
        headers = {
            "Content-Type": "application/json",
            PROTOCOL_HEADER: str(PROTOCOL),
            VERSION_HEADER: version,
        }
        if address.token is not None:
            headers["Authorization"] = f"Bearer {address.token}"
        self._has_token = address.token is not None
        self._headers = headers
        # Not a client of httpx: it would log each request, also into the log of the running job.
        self._http = httpx.AsyncHTTPTransport(
            limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE),
            verify=address.url.startswith("https:"),  # to load the certificates takes long
            proxy=_proxy(address.url),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def call(self, verb: Verb, body: bytes) -> Any:  # noqa: ANN401 - the answer of any verb
        """Send a request and return its answer."""
        try:
            reply = await self._send(verb, body)
        except _NOT_SENT as error:
            raise self._unreachable(error) from error
        except httpx.HTTPError as error:
            raise self._lost(verb, str(error) or type(error).__name__) from error
        if reply.status_code != HTTPStatus.OK:
            raise self._refusal(verb, reply)
        try:
            return verb.read_answer(reply.content)
        except ValueError as error:
            raise self._mismatch(
                reply, f"The answer to {verb.name} cannot be read: {error}."
            ) from error

    async def _send(self, verb: Verb, body: bytes) -> httpx.Response:
        try:
            return await self._post(verb, body)
        except _NOT_SENT:
            raise
        except httpx.TransportError:
            if verb.name not in READS:
                raise
            # The connection may have been closed while it was unused; reading twice is safe.
            return await self._post(verb, body)

    async def _post(self, verb: Verb, body: bytes) -> httpx.Response:
        url = f"{self._url}{PATH}{verb.name}"
        request = httpx.Request(
            "POST", url, headers=self._headers, content=body, extensions={"timeout": _TIMEOUT}
        )
        reply = await self._http.handle_async_request(request)
        try:
            await reply.aread()
        finally:
            await reply.aclose()
        return reply

    def _unreachable(self, error: Exception) -> EngineError:
        if any(isinstance(each, ssl.SSLCertVerificationError) for each in _causes(error)):
            return AddressUnusable(
                f"The certificate of {self._url} is not trusted ({error}). Nothing was sent. Name "
                "the certificate of its authority in SSL_CERT_FILE."
            )
        return EngineUnavailable(
            f"The server at {self._url} cannot be reached ({str(error) or type(error).__name__}). "
            "Nothing was sent. Start it with: trellis serve"
        )

    def _lost(self, verb: Verb, why: str) -> EngineError:
        if verb.name in READS:
            return EngineUnavailable(f"The server at {self._url} did not answer ({why}).")
        return OutcomeUnknown(
            f"The server at {self._url} did not answer ({why}), so it is not known whether the "
            "change was stored. Read the job before you repeat it."
        )

    def _refusal(self, verb: Verb, reply: httpx.Response) -> TrellisError:
        problem = _problem(reply)
        detail = str(problem.get("detail", "")) or f"HTTP status {reply.status_code}"
        code = problem.get("code")
        if reply.status_code == HTTPStatus.UNAUTHORIZED:
            return AccessDenied(self._token_advice())
        if reply.status_code == HTTPStatus.FORBIDDEN:
            return AccessDenied(f"The server at {self._url} refused {verb.name}: {detail}")
        if code in _ERRORS:
            return _error(_ERRORS[code], detail, problem)
        if code == VersionMismatch.code or reply.status_code == HTTPStatus.NOT_FOUND:
            return self._mismatch(reply, detail)
        if reply.status_code in _BUSY:
            return EngineUnavailable(f"The server at {self._url} is not available: {detail}")
        if reply.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return self._lost(verb, detail)
        return EngineError(f"The server at {self._url} refused {verb.name}: {detail}")

    def _token_advice(self) -> str:
        what = "does not accept the token in" if self._has_token else "needs a token in"
        return (
            f"The server at {self._url} {what} {TOKEN}. Create one on a machine that reaches the "
            "database: trellis tokens create worker:SERVICE (to run jobs), submit:SERVICE (to "
            "create them), or admin.read admin.mutate (for operators)."
        )

    def _mismatch(self, reply: httpx.Response, what: str) -> EngineError:
        server = reply.headers.get(VERSION_HEADER)
        if server is None:
            return AddressUnusable(
                f"{self._url} does not answer as a Trellis server does ({what}). Check the URL; "
                "write it as `trellis serve` shows it."
            )
        return VersionMismatch(
            f"{what} This program has Trellis {self._version}, the server at {self._url} has "
            f"Trellis {server}. Install the same version on both sides."
        )


#: Nothing was done: a proxy or the server was too busy.
_BUSY: Final = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL (HTTPS_PROXY, NO_PROXY)."""
    parts = urlsplit(url)
    if proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _problem(reply: httpx.Response) -> dict[str, Any]:
    try:
        found = json.loads(reply.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _tree(kind: type[TrellisError]) -> Iterator[type[TrellisError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _tree(each)


#: The errors that a message is enough for, by code; a code of another version is none of them.
_ERRORS: Final = {
    kind.code: kind
    for kind in _tree(TrellisError)
    if kind.__module__ == TrellisError.__module__
    and kind is not VersionMismatch
    and kind.code not in {"lock_busy", "lock_lost", "cursor_expired"}
}


def _error(kind: type[TrellisError], detail: str, problem: dict[str, Any]) -> TrellisError:
    error = kind(detail)
    if isinstance(error, AdmissionError):
        error.existing = problem.get("existing")
    return error
