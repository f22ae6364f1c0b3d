"""Engines by their URL."""

from __future__ import annotations

import pytest

from trellis.engines import make_engine
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.url import deployment_of, servers_of
from trellis.errors import ConfigurationError, NotATrellisDatabase
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept_one


async def test_a_url_leads_to_the_deployment_with_its_prefix(
    nats_url: str, deployed: Subjects
) -> None:
    engine = make_engine(f"{nats_url}?prefix={deployed.prefix}")
    assert isinstance(engine, JetStreamEngine)
    await engine.open()
    new = a_job()
    assert (await accept_one(engine, new)).definition.id == new.id
    await engine.close()


async def test_a_server_without_streams_says_what_to_do(nats_url: str) -> None:
    engine = make_engine(f"{nats_url}?prefix=nowhere")
    with pytest.raises(NotATrellisDatabase, match=r"migrate --url '\S+\?prefix=nowhere'"):
        await engine.open()
    await engine.close()


def test_an_option_that_trellis_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="options that Trellis does not know: wake"):
        make_engine("nats://localhost?wake=poll")


@pytest.mark.parametrize(
    ("end", "says"),
    [("?prefix=a&prefix=b", "an option twice: prefix"), ("#4?prefix=a", "write %23")],
)
def test_what_would_not_be_read_is_refused(end: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        deployment_of(f"nats://localhost{end}")


def test_the_number_of_replicas_can_be_named() -> None:
    assert deployment_of("nats://localhost?replicas=3").replicas == 3
    assert deployment_of("nats://localhost").replicas is None
    with pytest.raises(ConfigurationError, match="write 1, 3 or 5"):
        deployment_of("nats://localhost?replicas=two")


@pytest.mark.parametrize(
    ("url", "addresses", "login"),
    [
        ("nats://a:1,b:2", ["nats://a:1", "b:2"], {}),
        ("nats://a:1,nats://b:2?prefix=eu", ["nats://a:1", "b:2"], {}),
        ("nats://me:p%40ss@a:1,b", ["nats://a:1", "b"], {"user": "me", "password": "p@ss"}),
        ("nats://me:x@a,nats://me:x@b", ["nats://a", "b"], {"user": "me", "password": "x"}),
        ("nats://secret@[::1]:4222", ["nats://[::1]:4222"], {"token": "secret"}),
    ],
)
def test_several_servers_have_one_login(
    url: str, addresses: list[str], login: dict[str, str]
) -> None:
    assert servers_of(deployment_of(url).servers.split(",")) == (addresses, login)
