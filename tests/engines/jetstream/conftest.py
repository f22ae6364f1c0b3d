"""A NATS server for the tests of this folder; each test has a deployment of its own on it."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from trellis.engines.jetstream import topology
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with JetStream, in a folder of its own."""
    folder = tmp_path_factory.mktemp("nats")
    ports = folder / "ports"
    ports.mkdir()
    program = Path(sys.executable).with_name("nats-server")
    process = subprocess.Popen(  # noqa: S603 - a program of the environment
        [program, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(folder / "store"),
         "--ports_file_dir", str(ports), "-l", str(folder / "log")],
    )  # fmt: skip
    try:
        yield _address(process, ports)
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], ports: Path) -> str:
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        for file in ports.iterdir():
            _, _, address = file.read_text().partition("nats://")
            port = address.partition(":")[2].partition('"')[0]
            with suppress(OSError, ValueError):
                socket.create_connection(("127.0.0.1", int(port)), 1).close()
                return f"nats://127.0.0.1:{port}"
        time.sleep(0.01)
    raise RuntimeError("The NATS server did not start.")


@pytest.fixture
def subjects() -> Subjects:
    """The names of a deployment of this test alone."""
    return Subjects("t" + secrets.token_hex(6))


@pytest.fixture
async def link(nats_url: str) -> AsyncIterator[Link]:
    """A connection."""
    link = Link([nats_url])
    await link.open()
    yield link
    await link.close()


@pytest.fixture
async def deployed(link: Link, subjects: Subjects) -> AsyncIterator[Subjects]:
    """The names of a deployment whose streams are there."""
    await topology.migrate(link, subjects, 1, dry_run=False)
    yield subjects
    for part in reversed(topology.parts(subjects, 1)):
        if part.consumer is None:
            await link.api(f"STREAM.DELETE.{part.stream}")
