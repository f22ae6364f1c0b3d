"""What the HTTP engine raises: for bad URLs, servers that do not answer, and other versions."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.harness.app_server import AppServer
from trellis.core.commands import Command
from trellis.core.job import JobRecord
from trellis.engines import make_engine
from trellis.engines.http import protocol, transport
from trellis.engines.http.address import TOKEN, server_address
from trellis.engines.http.engine import http_engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import JobFilter
from trellis.engines.wire import WireError, codec_of, dump
from trellis.errors import (
    AddressUnusable,
    ConfigurationError,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    TransactionRefused,
    Unstorable,
    VersionMismatch,
)
from trellis.testing.builders import a_job, a_record

# -- URLs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://trl_secret@jobs.example", "Put the token into TRELLIS_TOKEN"),
        ("https://user:trl_secret@jobs.example", "Put the token into TRELLIS_TOKEN"),
        ("https://jobs.example?token=trl_secret", "Put the token into TRELLIS_TOKEN"),
        ("https://jobs.example?x=1", "has options"),
        ("https://", "has no host"),
        ("https://jobs.example:port", "has no usable port"),
    ],
)
def test_a_url_that_cannot_be_one_is_refused_and_shows_no_token(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        make_engine(url)
    assert "trl_secret" not in str(caught.value)


@pytest.mark.parametrize("end", ["", "/", "/api/v1", "/api/v1/"])
def test_the_url_may_be_written_as_serve_shows_it(end: str) -> None:
    assert server_address(f"http://127.0.0.1:8321{end}").url == "http://127.0.0.1:8321"


def test_a_token_that_would_be_two_headers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "trl_x\r\nHost: evil")
    with pytest.raises(ConfigurationError, match="characters that a header cannot have"):
        make_engine("http://127.0.0.1:1")


# -- servers that do not answer ----------------------------------------------------------------

Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def a_server(reply: Reply) -> AsyncIterator[str]:
    """Run a server that answers one request per connection as told; yield its URL."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        await reply(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(serve(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*tasks)


def answers(status: str, body: object, **headers: str) -> Reply:
    """Return a server that gives one answer to every request."""

    async def reply(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(text)}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + text)

    return reply


async def _request(reader: asyncio.StreamReader) -> None:
    length = 0
    while line := await reader.readline():
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
        if line == b"\r\n":
            await reader.readexactly(length)
            return


async def cuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Give no answer."""


def a_transport(url: str) -> transport.Transport:
    return transport.Transport(server_address(url), "1.2.3")


async def called(url: str, verb: str, *arguments: object) -> object:
    request = protocol.VERBS[verb]
    sender = a_transport(url)
    try:
        return await sender.call(request, request.write(*arguments))
    finally:
        await sender.close()


async def test_a_server_that_is_not_there_is_unavailable_and_nothing_was_sent() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for verb in ("now", "prune"):
            with pytest.raises(EngineUnavailable, match=r"Nothing was sent.*trellis serve"):
                await called(url, verb, *((5,) if verb == "prune" else ()))


async def test_a_lost_reply_to_a_change_is_an_unknown_outcome_to_a_read_it_is_not() -> None:
    async with a_server(cuts) as url:
        with pytest.raises(OutcomeUnknown, match="not known whether the change was stored"):
            await called(url, "prune", 5)
        with pytest.raises(EngineUnavailable):
            await called(url, "now")


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        ("503 Busy", b"<html>", EngineUnavailable),
        ("429 Slow", b"", EngineUnavailable),
        ("502 Bad Gateway", b"<html>", OutcomeUnknown),
        ("500 Oops", {"code": "defect", "detail": "x"}, OutcomeUnknown),
        ("503 No", {"code": "engine_busy", "detail": "x"}, EngineUnavailable),
        ("422 No", {"code": "unstorable", "detail": "x"}, Unstorable),
        ("418 Teapot", {"code": "of_another_version", "detail": "x"}, EngineError),
        ("404 Not Found", b"<html>", AddressUnusable),
        ("200 OK", b"<html>", AddressUnusable),
    ],
)
async def test_every_answer_leads_to_a_typed_error(
    status: str, body: object, expected: type[Exception]
) -> None:
    async with a_server(answers(status, body)) as url:
        with pytest.raises(expected):
            await called(url, "prune", 5)


async def test_an_answer_of_another_version_names_both_versions() -> None:
    async with a_server(answers("200 OK", ["what"], Trellis_Version="9.9.9")) as url:
        with pytest.raises(VersionMismatch, match=r"Trellis 1\.2\.3.*Trellis 9\.9\.9"):
            await called(url, "now")


async def test_a_request_of_another_version_names_both_versions(
    app_server: AppServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app_server.serving(lambda: SqliteEngine(str(tmp_path / "jobs.db"))) as url:
        monkeypatch.setattr(transport, "PROTOCOL", 99)
        with pytest.raises(VersionMismatch, match=r"protocol 99.*1\.2\.3"):
            await called(url, "now")
        monkeypatch.undo()
        later = protocol.VERBS["now"]._replace(name="teleport")
        sender = a_transport(url)
        with pytest.raises(VersionMismatch, match="teleport"):
            await sender.call(later, b"{}")
        with pytest.raises(VersionMismatch, match="'colour'"):
            await sender.call(protocol.VERBS["now"], b'{"colour":1}')
        with pytest.raises(VersionMismatch, match=r"limit: int expected, not str"):
            await sender.call(protocol.VERBS["prune"], b'{"limit":"5"}')
        with pytest.raises(VersionMismatch):
            await sender.call(protocol.VERBS["prune"], b'{"limit":' + b"[" * 100_000)
        await sender.close()


async def test_a_closed_engine_says_so(app_server: AppServer, tmp_path: Path) -> None:
    with app_server.serving(lambda: SqliteEngine(str(tmp_path / "jobs.db"))) as url:
        engine = http_engine(url)
        with pytest.raises(EngineClosed):
            await engine.now()
        await engine.open()
        with pytest.raises(TransactionRefused, match="Leave out tx="):
            engine.create_within(object(), [a_job()])
        await engine.close()
        with pytest.raises(EngineClosed):
            await engine.find(JobFilter())


# -- values ------------------------------------------------------------------------------------


def test_a_value_of_another_shape_is_refused_with_its_place() -> None:
    codec = codec_of(JobFilter)
    assert codec.decode([["shop"]]) == JobFilter(services=("shop",))
    with pytest.raises(WireError, match="JobFilter as a list of 0 to"):
        codec.decode({"services": ["shop"]})
    with pytest.raises(WireError, match="str expected, not int"):
        codec.decode([[7]])


def test_no_class_but_those_of_the_port_can_be_named() -> None:
    codec = codec_of(Command)
    forged: list[object] = [["Popen", {}], ["__class__", {}], ["Complete"], "Complete", {}, None]
    for raw in forged:
        with pytest.raises(WireError):
            codec.decode(raw)


def test_a_job_is_read_as_it_was_written() -> None:
    record = a_record(tags=(("a", "\ud800 ü"),), config='{"x":1}')
    codec = codec_of(JobRecord)
    text = dump(codec.write(record))
    assert codec.decode(json.loads(text)) == record
