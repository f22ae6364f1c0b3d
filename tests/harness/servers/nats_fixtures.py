"""What a conftest imports: the NATS server of a test process, and a cluster to break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.servers.nats import NatsCluster, NatsServer, nats_cluster, nats_server

__all__ = ["nats", "nats_three", "nats_url", "own_nats"]


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server shared by the tests of this process: use a prefix of your own, never stop it."""
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="session")
def nats_url(nats: NatsServer) -> str:
    """Where the shared server is."""
    return nats.url


@pytest.fixture
def own_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that a test may stop, kill, reconfigure and start again."""
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def nats_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """A cluster for the tests of one module, which may stop and kill its nodes."""
    with nats_cluster(tmp_path_factory.mktemp("nats-cluster")) as cluster:
        yield cluster
