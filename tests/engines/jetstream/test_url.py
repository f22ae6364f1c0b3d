"""Engines by their URL."""

from __future__ import annotations

import pytest

from trellis.engines import make_engine
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.jetstream.subjects import Subjects
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
    with pytest.raises(NotATrellisDatabase, match="trellis migrate"):
        await engine.open()
    await engine.close()


def test_an_option_that_trellis_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="options that Trellis does not know: wake"):
        make_engine("nats://localhost?wake=poll")
