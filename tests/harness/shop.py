"""A store behind a server that asks for tokens, programs with tokens, requests of every verb."""

from __future__ import annotations

import dataclasses
import json
import ssl
import typing
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final

import httpx
import pytest

from tests.harness.app_server import AppServer
from trellis.core.job import JobRecord
from trellis.core.policy import Policy
from trellis.engines.http.address import TOKEN
from trellis.engines.http.engine import http_engine
from trellis.engines.http.protocol import PATH, PROTOCOL, PROTOCOL_HEADER, VERBS
from trellis.engines.instrumented import verbs
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.operations.operator import Operator
from trellis.testing.builders import a_demand, a_job, a_worker

#: Of no use to a server without TLS: to load the certificates takes longer than a request.
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Shop:
    """A store behind a server that asks for tokens, and programs with tokens."""

    def __init__(self, url: str, engine: Engine, stack: AsyncExitStack) -> None:
        self.url, self.engine, self._stack = url, engine, stack
        self.operator = Operator(engine)

    async def token(self, *scopes: str) -> str:
        return (await self.operator.tokens.create(scopes, name="test")).text

    async def program(self, *scopes: str) -> Engine:
        """Return the engine of a program with a new token of these scopes."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(TOKEN, await self.token(*scopes))
            program = http_engine(self.url)
        await program.open()
        self._stack.push_async_callback(program.close)
        return program

    async def call(self, verb: str, arguments: object, token: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", PROTOCOL_HEADER: str(PROTOCOL)}
        async with httpx.AsyncClient(headers=headers, verify=NO_TLS) as client:
            body = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
            return await client.post(f"{self.url}{PATH}{verb}", content=body)

    async def get(self, path: str, token: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(headers=headers, verify=NO_TLS) as client:
            return await client.get(f"{self.url}{path}")

    async def a_running_job(self, worker: Engine) -> JobRecord:
        await self.engine.create([a_job()])
        session = (await worker.open_session(a_worker(), 30_000_000)).id
        (taken,) = (await worker.claim(session, [a_demand()], 1)).jobs
        return taken


@pytest.fixture(scope="session")
def guarded_server() -> Iterator[AppServer]:
    """A server that asks for tokens."""
    server = AppServer(no_auth=False)
    yield server
    server.close()


@pytest.fixture
async def shop(guarded_server: AppServer, tmp_path: Path) -> AsyncIterator[Shop]:
    """A store behind a server that asks for tokens."""
    path = str(tmp_path / "jobs.db")
    engine = SqliteEngine(path)
    await engine.open()
    async with AsyncExitStack() as stack:
        with guarded_server.serving(lambda: SqliteEngine(path)) as url:
            yield Shop(url, engine, stack)
            await stack.aclose()
    await engine.close()


def a_value(kind: Any, known: dict[str, Any], name: str = "") -> Any:  # noqa: ANN401 - any type
    """Return a value of a type: required fields have the known value of their name, if any."""
    if name in known:
        return known[name]
    if isinstance(kind, typing.NewType):
        return a_value(kind.__supertype__, known, name)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return parts[0]
    if origin is not None and NoneType in parts:
        return None
    if origin is tuple and parts[-1] is not ...:
        return tuple(a_value(part, known) for part in parts)
    if origin in {typing.Union, UnionType}:
        return a_value(parts[0], known, name)
    if origin is not None:
        return {} if issubclass(origin, Mapping) else [a_value(parts[0], known)]
    if kind is Policy:
        return Policy()
    if hasattr(kind, "_fields") or dataclasses.is_dataclass(kind):
        return kind(**_required(kind, known))
    return {str: "shop", int: 1, bool: True, float: 1.0}[kind]


def _required(kind: Any, known: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a class
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        names = [f.name for f in dataclasses.fields(kind)
                 if f.default is missing and f.default_factory is missing]  # fmt: skip
    else:
        names = [name for name in kind._fields if name not in kind._field_defaults]
    return {name: a_value(hints[name], known, name) for name in names}


def a_request(verb: str, known: dict[str, Any]) -> object:
    """Return the arguments of a request about the shop."""
    request = VERBS[verb]
    declared = verbs().get(verb)
    hints = {} if declared is None else typing.get_type_hints(declared)
    values = [
        known.get(f"{verb}.{field.name}", known.get(field.name, field.default))
        if not field.is_required or field.name in known or f"{verb}.{field.name}" in known
        else a_value(hints[field.name], known, field.name)
        for field in request.fields
    ]
    named = {field.name: value for field, value in zip(request.fields, values, strict=True)}
    positional, options = request.positional(named)
    return json.loads(request.write(*positional, **options))
