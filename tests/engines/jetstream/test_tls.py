"""Servers that require TLS: the client checks their certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.servers.nats import NatsServer, nats_server
from trellis.engines import make_engine
from trellis.errors import EngineUnavailable
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept_one, the

#: A certificate of 127.0.0.1, signed by itself, and its key: for these tests only.
FILES = Path(__file__).with_name("tls")


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[NatsServer]:
    config = f'tls {{ cert_file: "{FILES}/certificate.pem", key_file: "{FILES}/key.pem" }}'
    with nats_server(tmp_path / "server", config) as server:
        yield server


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_jobs_are_on_a_server_whose_certificate_is_trusted(
    secure: NatsServer, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(FILES / "certificate.pem"))
    engine = make_engine(secure.url.replace("nats", scheme))
    await engine.migrate()
    await engine.open()
    new = await accept_one(engine, a_job())
    assert await the(engine, new.definition.id) == new
    await engine.close()


async def test_a_certificate_that_is_not_trusted_is_named(secure: NatsServer) -> None:
    engine = make_engine(secure.url)
    with pytest.raises(EngineUnavailable, match="certificate"):
        await engine.migrate()
    await engine.close()
